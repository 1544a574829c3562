"""`check_equivalence`: training gives the same numbers on any number of replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.backend.devices import local_devices
from replicax.core.errors import CheckError
from replicax.engine.trace.frame import current_frame
from replicax.strategies.base import Strategy
from replicax.strategies.mirrored import MirroredStrategy
from replicax.testing.scaling import advice_for, describe_ratio, uniform_ratio
from replicax.testing.snapshot import (
    comparable,
    differences,
    is_readable,
    named_leaves,
    named_variables,
    require_values,
)
from replicax.variables.creators import variable_creator_scope
from replicax.variables.variable import Variable

_Step = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class EquivalenceReport:
    """What `check_equivalence` compared and found equal.

    Attributes:
        replicas: The numbers of replicas, the first is the reference.
        num_steps: How many steps each ran.
        num_values: How many variables and values were compared after each step.
        largest_difference: The largest difference, within the tolerance.

    Example:
        >>> import replicax as rx
        >>> def train(strategy):
        ...     with strategy.scope():
        ...         w = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)
        ...     batch = strategy.distribute_batch([1.0, 2.0])
        ...     strategy.run(lambda x: w.assign_sub(x.sum()), args=(batch,))
        ...     yield w
        >>> check_equivalence(train, replicas=(1, 2))
        <EquivalenceReport: equal on 1, 2 replicas, 1 steps of 1 values, largest difference 0>
    """

    replicas: tuple[int, ...]
    num_steps: int
    num_values: int
    largest_difference: float

    def __repr__(self) -> str:
        counts = ", ".join(map(str, self.replicas))
        return (
            f"<EquivalenceReport: equal on {counts} replicas, {self.num_steps} steps of "
            f"{self.num_values} values, largest difference {self.largest_difference:.2g}>"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """What one training did: `start` has the values from before the first step that are known."""

    num_replicas: int
    start: _Step
    steps: list[_Step]


def check_equivalence(
    train: Callable[[Any], Iterable[Any]],
    replicas: Sequence[int] = (1, 2, 8),
    *,
    steps: int | None = None,
    tolerance: float = 1e-5,
) -> EquivalenceReport:
    """Runs the same training on several numbers of replicas and compares every step.

    Args:
        train: ``train(strategy)`` creates everything anew in the strategy's scope,
            trains with the same global batches, and yields after each step the
            variables and values to compare, in any nest. A bare ``yield``
            compares all variables of the strategy.
        replicas: How many replicas to run on, each a `MirroredStrategy` on the
            first devices. The first number is the reference.
        steps: How many steps to run; until `train` ends if None.
        tolerance: A difference up to ``tolerance * max(1, |reference|)`` is none.

    Returns:
        What was compared.

    Raises:
        CheckError: An AssertionError that names, for each number of replicas, the
            first step and variable that differ and by which ratio.

    Example:
        >>> import replicax as rx
        >>> def train(strategy):
        ...     with strategy.scope():
        ...         w = rx.Variable(1.0, name="w", aggregation=rx.VariableAggregation.SUM)
        ...     def step(x):
        ...         w.assign_sub(0.1 * x.mean())  # wrong: a mean over this replica only
        ...     for _ in range(3):
        ...         strategy.run(step, args=(strategy.distribute_batch([1.0, 1.0]),))
        ...         yield w
        >>> check_equivalence(train, replicas=(1, 2))
        Traceback (most recent call last):
        ...
        replicax.core.errors.CheckError: results depend on the number of replicas...
        - on 2 replicas, after step 1: variable 'w' differs by 0.1: 0.8 instead of 0.9. Its change
        in this step is 2 times as large: the number of replicas. The replicas' losses or...
    """
    require_values("check_equivalence")
    counts = _checked_counts(replicas)
    reference = _record(train, counts[0], steps)
    others = [_record(train, count, steps) for count in counts[1:]]
    problems = [
        problem for other in others if (problem := _first_difference(reference, other, tolerance))
    ]
    if problems:
        raise CheckError(
            f"results depend on the number of replicas (compared with {counts[0]}, tolerance "
            f"{tolerance:g}):\n" + "\n".join(f"- {problem}" for problem in problems)
        )
    largest = max(
        (_largest_difference(reference, other) for other in others),
        default=0.0,
    )
    return EquivalenceReport(counts, len(reference.steps), len(reference.steps[0]), largest)


def _checked_counts(replicas: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(replicas)
    if len(counts) < 2 or any(count < 1 for count in counts):
        raise ValueError(
            f"check_equivalence got replicas={replicas!r}; expected two or more positive numbers."
        )
    num_devices = len(local_devices())
    if max(counts) > num_devices:
        raise ValueError(
            f"check_equivalence got replicas={counts}, but there are {num_devices} devices. Call "
            f"replicax.set_virtual_devices({max(counts)}) first in the program."
        )
    return counts


def _record(train: Callable[[Any], Iterable[Any]], num_replicas: int, limit: int | None) -> _Record:
    """Runs the training and notes what it yields."""
    strategy = MirroredStrategy(list(local_devices()[:num_replicas]))
    created: dict[int, tuple[Variable, np.ndarray]] = {}  # holds them, so that no id is used twice

    def note_initial_value(next_creator: Callable[..., Variable], **options: Any) -> Variable:
        variable = next_creator(**options)
        if current_frame() is None and is_readable(variable):
            created[id(variable)] = variable, comparable(variable)
        return variable

    steps: list[_Step] = []
    start: _Step = {}
    try:
        with variable_creator_scope(note_initial_value):
            iterator = iter(_checked_iterable(train(strategy)))
            while limit is None or len(steps) < limit:
                try:
                    yielded = next(iterator)
                except StopIteration:
                    break
                leaves = _leaves(yielded, strategy)
                steps.append({name: comparable(leaf) for name, leaf in leaves})
                for name, leaf in leaves:
                    if id(leaf) in created:
                        start.setdefault(name, created[id(leaf)][1])
    except Exception as error:
        error.add_note(f"It was raised by the training on {num_replicas} replicas.")
        raise
    if hasattr(iterator, "close"):
        iterator.close()  # pyright: ignore[reportAttributeAccessIssue]
    if not steps:
        raise ValueError(
            f"train yielded nothing on {num_replicas} replicas. Yield after each step what to "
            "compare, or nothing (`yield`) for all variables."
        )
    return _Record(num_replicas, start, steps)


def _checked_iterable(trained: Any) -> Iterable[Any]:
    if isinstance(trained, Iterable) and not isinstance(trained, (dict, str, Variable, jax.Array)):
        return trained
    raise TypeError(
        f"train(strategy) returned {trained!r}; expected a generator that yields after each step."
    )


def _leaves(yielded: Any, strategy: Strategy) -> list[tuple[str, Any]]:
    if yielded is None:
        return list(named_variables(strategy))
    return named_leaves(yielded)


def _first_difference(reference: _Record, other: _Record, tolerance: float) -> str | None:
    """A line about the first value that differs."""
    where = f"on {other.num_replicas} replicas"
    for number, (wanted, got) in enumerate(
        zip(reference.steps, other.steps, strict=False), start=1
    ):
        if list(wanted) != list(got):
            return f"{where}, step {number} yields {list(got)} instead of {list(wanted)}."
        for name in wanted:
            if wanted[name].shape != got[name].shape:
                return (
                    f"{where}, after step {number}: {name} has shape {got[name].shape} instead of "
                    f"{wanted[name].shape}."
                )
            apart = differences(wanted[name], got[name])
            size = np.maximum(1, np.nan_to_num(np.abs(wanted[name])))
            if (apart > tolerance * size).any():
                found = _describe(name, wanted[name], got[name], apart / size)
                ratio = _describe_scaling(name, number, reference, other)
                return f"{where}, after step {number}: {found} {ratio}"
    if len(reference.steps) != len(other.steps):
        return f"{where}, there are {len(other.steps)} steps instead of {len(reference.steps)}."
    return None


def _describe(name: str, wanted: np.ndarray, got: np.ndarray, apart: np.ndarray) -> str:
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    difference = float(differences(wanted, got)[index])
    at = f" at {list(map(int, index))}" if index else ""
    return (
        f"{name} differs by {difference:.6g}{at}: {got[index]:.6g} instead of {wanted[index]:.6g}."
    )


def _describe_scaling(name: str, number: int, reference: _Record, other: _Record) -> str:
    """What the ratio of the changes, or of the values, points at."""
    wanted, got = reference.steps[number - 1][name], other.steps[number - 1][name]
    before = reference.steps[number - 2] if number > 1 else reference.start
    before_got = other.steps[number - 2] if number > 1 else other.start
    ratio, what = None, "change in this step"
    if name in before and name in before_got:
        ratio = uniform_ratio(wanted - before[name], got - before_got[name])
    if ratio is None:
        ratio, what = uniform_ratio(wanted, got), "value"
    counts = other.num_replicas, reference.num_replicas
    if ratio is None:
        return advice_for(None, *counts)
    return f"Its {what} is {describe_ratio(ratio, *counts)}. {advice_for(ratio, *counts)}"


def _largest_difference(reference: _Record, other: _Record) -> float:
    return max(
        float(np.max(differences(wanted[name], got[name]), initial=0.0))
        for wanted, got in zip(reference.steps, other.steps, strict=True)
        for name in wanted
    )
