"""`check_mirrored`: the copies of every mirrored variable are equal, bit by bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from replicax.backend.devices import device_name
from replicax.core import nest
from replicax.core.errors import CheckError
from replicax.strategies.base import Strategy
from replicax.testing.snapshot import comparable, differences, require_values
from replicax.variables.mirrored import MirroredVariable
from replicax.variables.registry import live_variables
from replicax.variables.variable import Variable


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MirroredReport:
    """What `check_mirrored` compared and found equal.

    Attributes:
        names: The variables, oldest first.
        num_copies: How many copies each has.

    Example:
        >>> MirroredReport(names=("w",), num_copies=2)
        <MirroredReport: equal copies on 2 replicas, variables: w>
    """

    names: tuple[str, ...]
    num_copies: int

    def __repr__(self) -> str:
        return (
            f"<MirroredReport: equal copies on {self.num_copies} replicas, variables: "
            f"{', '.join(self.names) or 'none'}>"
        )


def check_mirrored(strategy: Strategy, variables: Any = None) -> MirroredReport:
    """Verifies that all copies of every mirrored variable are equal.

    They always should be; a difference means that something wrote to one copy.

    Args:
        strategy: The strategy whose variables to look at.
        variables: A nest of its variables; all that exist if None. Those that are
            not mirrored are left out.

    Returns:
        What was compared.

    Raises:
        CheckError: An AssertionError that names the variables, the copies and the
            largest difference.
        ValueError: If `variables` contains anything but variables of `strategy`.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = rx.Variable([1.0, 2.0], name="v")
        >>> check_mirrored(strategy)
        <MirroredReport: equal copies on 2 replicas, variables: v>
    """
    require_values("check_mirrored")
    found = live_variables(strategy) if variables is None else nest.flatten(variables)[0]
    for variable in found:
        if not isinstance(variable, Variable) or variable.strategy is not strategy:
            raise ValueError(
                f"check_mirrored got {variable!r}, which is no variable of {strategy!r}."
            )
    mirrored = [variable for variable in found if isinstance(variable, MirroredVariable)]
    problems = [problem for variable in mirrored for problem in _different_copies(variable)]
    if problems:
        raise CheckError(
            "copies of mirrored variables differ:\n" + "\n".join(f"- {line}" for line in problems)
        )
    return MirroredReport(
        tuple(variable.name for variable in mirrored), strategy.num_replicas_in_sync
    )


def _different_copies(variable: MirroredVariable) -> list[str]:
    """A line for each copy that differs from the first one."""
    copies = [np.asarray(copy) for copy in variable.values]
    places = [device_name(device) for device in variable._devices_in_order]
    lines = []
    for index, copy in enumerate(copies[1:], start=1):
        apart = differences(comparable(copies[0]), comparable(copy))
        if apart.any():
            at = np.unravel_index(int(np.argmax(apart)), apart.shape)
            where = f" at {list(map(int, at))}" if at else ""
            lines.append(
                f"variable {variable.name!r}: copy {index} on {places[index]} differs from copy 0 "
                f"on {places[0]} by up to {apart[at]:.6g}{where}: {copy[at]} instead of "
                f"{copies[0][at]}; {int(np.count_nonzero(apart))} of {apart.size} elements differ."
            )
    return lines
