"""Whether eager replicas that meet make the same call.

The replicas of an eager run are threads, each with functions and locals of its own, and what
they call together runs once. So what their functions bring along (see `engine.eager.captured`)
must be the same; a value that differs takes part as an argument does, or is an error.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from replicax.backend import placement
from replicax.backend.mesh import ReplicaMesh
from replicax.core.errors import RendezvousError
from replicax.engine.contexts.replica import ReplicaContext
from replicax.engine.eager.captured import CapturedValue
from replicax.values.distributed import ComponentView
from replicax.values.regroup import FindMirrored, same_python_value

_ABSENT = CapturedValue("", None, is_replaceable=False)  # where a replica brings less than another
_MAX_SHOWN = 120
_PASS_IT = "Use the same on every replica, or pass it as an argument of the function."

Brought = Sequence[Sequence[CapturedValue]]
"""For each replica what its function brings along."""


class SameCall:
    """Compares what the replicas of this worker bring to one meeting.

    Args:
        label: What they call.
        mesh: Their devices.
        find_mirrored: The mirrored value that an array is a copy of, if any.
    """

    def __init__(self, label: str, mesh: ReplicaMesh, find_mirrored: FindMirrored) -> None:
        """A comparison for the replicas that call `label`."""
        self._label = label
        self._mesh = mesh
        self._find_mirrored = find_mirrored

    def require(self, brought: Brought, then: str) -> None:
        """Raises unless the functions of all replicas bring the same.

        Args:
            brought: What they bring.
            then: What to do about it, for the error.

        Raises:
            RendezvousError: If two of them differ; it shows both.
        """
        for found in self._aligned(brought):
            for index, other in enumerate(found):
                if not self._is_same(found[0], other):
                    self._refuse(found[0], other, index, then)

    def own_values(
        self, brought: Brought, merge: Callable[[list[list[Any]]], list[Any]]
    ) -> dict[str, Any]:
        """The arrays and numbers that differ among what the functions bring, by their path.

        Args:
            brought: What they bring.
            merge: Makes one list of a list per replica, as it is done with arguments.

        Raises:
            RendezvousError: If anything else differs; it shows both.
        """
        rows: list[list[Any]] = [[] for _ in brought]
        paths: list[str] = []
        for found in self._aligned(brought):
            first = found[0]
            paths.append(first.path)
            for index, (row, other) in enumerate(zip(rows, found, strict=True)):
                is_equal = _is_equal(first, other)
                if not is_equal and not _may_differ(first, other):
                    self._refuse(first, other, index, _PASS_IT)
                row.append(first.value if is_equal else other.value)
        merged = zip(paths, merge(rows), rows[0], strict=True)
        return {path: value for path, value, first in merged if value is not first}

    def _aligned(self, brought: Brought) -> Iterator[list[CapturedValue]]:
        """What is in the same place on all replicas, place by place.

        A container that all replicas share is the same, although each saw it at another time.
        """
        rows = [iter(row) for row in brought]
        while True:
            found = [next(row, _ABSENT) for row in rows]
            if all(captured is _ABSENT for captured in found):
                return
            container = None if self._mesh.spans_workers else found[0].container
            if container is not None and all(c.container is container for c in found):
                for row, captured in zip(rows, found, strict=True):
                    next(itertools.islice(row, captured.num_inside, captured.num_inside), None)
                found = [found[0]] * len(rows)
            yield found

    def _is_same(self, one: CapturedValue, two: CapturedValue) -> bool:
        if _is_equal(one, two):
            return True
        values = (one.value, two.value)
        if one.path != two.path or not all(isinstance(v, placement.Arrays) for v in values):
            return False
        mirrored = self._find_mirrored(one.value)
        if mirrored is not None and mirrored is self._find_mirrored(two.value):
            return True
        return placement.are_same(values)

    def _refuse(self, one: CapturedValue, two: CapturedValue, index: int, then: str) -> NoReturn:
        replicas = [self._mesh.local_replicas[i] for i in (0, index)]
        what = repr(one.path)
        if one.path != two.path:
            what = " and ".join(repr(c.path) if c.path else "nothing" for c in (one, two))
        raise RendezvousError(
            f"replica {replicas[0]} and replica {replicas[1]} called {self._label} with different "
            f"values of {what}: "
            f"{_shown(one.value)} and {_shown(two.value)}. What the replicas call together runs "
            f"once, so it must be the same call. {then}"
        )


def _may_differ(one: CapturedValue, two: CapturedValue) -> bool:
    """Whether replicas may have these two as values of their own: arrays or numbers of one type."""
    return (
        one.path == two.path
        and all(c.is_replaceable and placement.is_array_like(c.value) for c in (one, two))
        and _dtype(one.value) == _dtype(two.value)
    )


def _dtype(value: Any) -> Any:
    return getattr(value, "dtype", type(value))


def _is_equal(one: CapturedValue, two: CapturedValue) -> bool:
    """Whether it makes no difference which of the two is used, whatever is done with it."""
    first, second = one.value, two.value
    if one.path != two.path or type(first) is not type(second):
        return False
    if first is second or same_python_value((first, second)):
        return True
    if isinstance(first, (bool, int, float, complex, *placement.Arrays)):
        return False
    if isinstance(first, ComponentView):
        return first._owner is not None and first._owner is second._owner
    if isinstance(first, ReplicaContext):  # which does not tell its id where it is not in force
        return first._is_of_same_run(second)
    try:  # what can be hashed does not change
        return hash(first) == hash(second) and bool(first == second)
    except Exception:
        return False


def _shown(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"the function {value.co_qualname!r} at {value.co_filename}:{value.co_firstlineno}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
