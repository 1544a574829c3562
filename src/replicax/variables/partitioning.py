"""Which variables are cut into pieces over the logical devices of a replica, and how.

By what was asked for at creation, or else by the first rule of the strategy whose pattern is
found in the variable's name. Optimizers ask for the layout of the variable that their state
belongs to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from replicax.backend import devices, partition
from replicax.backend.mesh import ReplicaMesh
from replicax.backend.partition import Layout
from replicax.core.typing import Device

Rules = Mapping[str, Layout | None] | Sequence[tuple[str | re.Pattern[str], Layout | None]]
"""Patterns of names, each with a layout, or None for variables that stay whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionRules:
    """A checked table from name patterns to layouts; the first match wins.

    Attributes:
        rows: The patterns with their layouts.

    Example:
        >>> import jax
        >>> from replicax.backend.mesh import logical_mesh
        >>> mesh = logical_mesh((tuple(jax.devices()[:2]),))
        >>> rules = PartitionRules.of({r"mlp/.*kernel": [1, 2], "kernel": None}, mesh)
        >>> rules.find("block_0/mlp/in/kernel")[1], rules.find("attention/kernel")[1]
        ([1, 2], None)
    """

    rows: tuple[tuple[re.Pattern[str], Any], ...] = ()

    @classmethod
    def of(cls, rules: Rules | None, mesh: ReplicaMesh) -> PartitionRules:
        """The table of what a user passed.

        Raises:
            ValueError: If a pattern is no regular expression, or a layout does not fit the
                logical devices of `mesh`.
        """
        if rules is None:
            return cls()
        pairs = rules.items() if isinstance(rules, Mapping) else rules
        return cls(tuple(_checked_rule(pair, mesh) for pair in pairs))

    def find(self, name: str) -> tuple[str, Any] | None:
        """The first rule for a variable of this name, as pattern and layout."""
        for pattern, layout in self.rows:
            if pattern.search(name):
                return pattern.pattern, layout
        return None


NO_RULES = PartitionRules()


def _checked_rule(pair: Any, mesh: ReplicaMesh) -> tuple[re.Pattern[str], Any]:
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or not isinstance(pair[0], (str, re.Pattern)):
        raise ValueError(
            f"a partition rule is {pair!r}; expected a pair of a pattern for names and a layout, "
            'such as (r"mlp/.*kernel", [1, 4]).'
        )
    try:
        pattern = re.compile(pair[0])
    except re.error as error:
        raise ValueError(
            f"the pattern {pair[0]!r} of a partition rule is no regular expression: {error}."
        ) from error
    layout = pair[1]
    try:
        if isinstance(layout, PartitionSpec):
            partition.check_axes(layout, mesh)
        elif layout is not None:
            layout = partition.checked_pieces(layout, mesh)
    except ValueError as error:
        raise _broken(pattern.pattern, error) from None
    return pattern, layout


def _broken(pattern: str, error: ValueError) -> ValueError:
    return ValueError(f"the partition rule for names with {pattern!r}: {error}")


def partition_of(
    asked: Layout | None,
    rules: PartitionRules,
    name: str,
    shape: tuple[int, ...],
    *,
    mesh: ReplicaMesh | None,
    home: Device | None,
) -> PartitionSpec | None:
    """How a new variable is cut; None if it stays whole.

    Args:
        asked: What was asked for at its creation.
        rules: What holds where nothing was asked for.
        name: Its name.
        shape: Its shape.
        mesh: The devices of its copies; None if there is one copy.
        home: The device of a single copy.

    Raises:
        ValueError: If what was asked for, or the first rule of its name, does not fit it.
    """
    what = f"variable {name!r}"
    if asked is not None:
        if mesh is None:
            _require_whole(asked, shape, what, home)
            return None
        return partition.spec_for(asked, shape, mesh, what)
    rule = rules.find(name) if mesh is not None else None
    if rule is None or rule[1] is None or mesh is None:
        return None
    try:
        return partition.spec_for(rule[1], shape, mesh, what)
    except ValueError as error:
        raise _broken(rule[0], error) from None


def _require_whole(asked: Layout, shape: tuple[int, ...], what: str, home: Device | None) -> None:
    """Raises unless `asked` leaves a variable whole that has one copy, on one device."""
    entries = list(asked) if isinstance(asked, Iterable) else [asked]
    if any(entry not in (None, 1) for entry in entries):
        place = "no strategy" if home is None else f"one device, {devices.device_name(home)},"
        raise ValueError(
            f"{what} is created {'on' if home is not None else 'under'} {place} and cannot have "
            f"partition_dimensions {asked!r}. Create it in the scope of a strategy whose replicas "
            "have several logical devices, such as MirroredStrategy(logical_devices=4)."
        )
    if not isinstance(asked, PartitionSpec):
        partition.require_fit(entries, shape, what)
