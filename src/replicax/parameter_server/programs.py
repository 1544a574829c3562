"""Makes a program for workers of a traced closure: StableHLO, cut where it needs rows.

What computes which rows a lookup needs is a stage before the stage that uses them; the last stage
computes everything else. A stage holds what its outputs need and nothing more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from replicax.core import nest
from replicax.core.errors import TraceError, VariableError
from replicax.engine.functions.program import TracedFunction, TracedObject
from replicax.engine.storage import Storage
from replicax.engine.trace.host_calls import callbacks_in
from replicax.jax_internals.programs import Literal, eval_jaxpr, is_ref
from replicax.parameter_server.messages import (
    Array,
    Element,
    Emission,
    InputSource,
    Lookup,
    ProgramSpec,
    ProgramStage,
    StageInput,
)
from replicax.parameter_server.storage import ServerStorage
from replicax.parameter_server.tracing import ElementKey, RowsKey, UpdatePurpose, WorkerKey
from replicax.variables.rows import RowGradient

Submit = Callable[["ClosureProgram", list[Array]], Any]


class ClosureProgram:
    """A traced closure; stands in a `CallSite` where a `Program` does.

    Attributes:
        spec: What a worker needs of it.
        variants: Programs for elements of other shapes.
        retrace: Makes such a program.
        returns_arguments: Not.
    """

    returns_arguments = False

    def __init__(
        self, traced: TracedFunction, *, name: str, donate: bool, program_id: int, submit: Submit
    ) -> None:
        """Cuts and exports `traced`; running it is `submit`."""
        del donate
        refuse_what_workers_lack(traced, name)
        self._submit = submit
        self._storages = [key for key in traced.frame.entered if isinstance(key, ServerStorage)]
        self._results = traced.results
        self._structure = traced.structure
        self.spec = _Cutter(traced).spec(program_id, name)
        self.variants: dict[tuple[Element, ...], ClosureProgram] = {}
        self.retrace: Callable[[tuple[Element, ...]], ClosureProgram] | None = None

    def lives(self) -> list[object]:
        """An object for each of its variables that goes when the variable does."""
        return [storage.life for storage in self._storages]

    def is_alive(self) -> bool:
        """Whether all its variables exist."""
        return all(storage.has_value for storage in self._storages)

    def run(self, arrays: list[Array]) -> Any:
        """Hands the program over, with its arguments."""
        return self._submit(self, arrays)

    def finish(self, outputs: Sequence[Any]) -> Any:
        """The result of the closure, of the results of the program."""
        leaves = [
            result.value if isinstance(result, TracedObject) else outputs[result.index]
            for result in self._results
        ]
        return nest.unflatten(self._structure, leaves)


def refuse_what_workers_lack(traced: TracedFunction, name: str) -> None:
    """Raises where a closure needs what is in this process only.

    Raises:
        TraceError: If it calls back into Python, or returns a gradient by rows, which is no array.
        VariableError: If it uses a variable that is on no server.
    """
    callback = next(callbacks_in(traced.jaxpr), None)
    if callback is not None:
        raise TraceError(
            f"closure {name!r} calls {callback}, and runs on a worker, where there is nothing to "
            "call back. Return the value, and look at it in the coordinator."
        )
    for result in traced.results:
        if isinstance(result, TracedObject) and isinstance(result.value, RowGradient):
            raise TraceError(
                f"closure {name!r} returns the RowGradient of a variable of shape "
                f"{result.value.shape}. Return gradient.dense(), or its rows and values."
            )
    for key in traced.frame.entered:
        if isinstance(key, Storage) and not isinstance(key, ServerStorage):
            raise VariableError(
                f"closure {name!r} uses variable {key.name!r}, which is on no parameter server. "
                "Create it in `with strategy.scope():`, or pass its value as an argument."
            )


class _Cutter:
    """Cuts one trace into stages."""

    def __init__(self, traced: TracedFunction) -> None:
        self._traced = traced
        self._jaxpr = traced.jaxpr
        self._entered = list(traced.frame.entered)
        num_written = len(traced.frame.written)
        first = num_written + traced.num_outputs
        self._outputs = list(traced.jaxpr.outvars[num_written:first])
        self._emitted = list(traced.jaxpr.outvars[first : first + len(traced.frame.emitted)])
        self._reads: list[ServerStorage] = []
        self._elements: list[ElementKey] = []
        self._lookups: dict[RowsKey, int] = {}  # where each is in the program
        self._levels: dict[RowsKey, int] = {}

    def spec(self, program_id: int, name: str) -> ProgramSpec:
        updates = [
            (purpose, place)
            for place, (purpose, _) in enumerate(self._traced.frame.emitted)
            if isinstance(purpose, UpdatePurpose)
        ]
        needed = [(p.rows, place) for p, place in updates]
        places = list(dict.fromkeys(i for pair in needed for i in pair if i is not None))
        final = [*self._outputs, *(self._emitted[place] for place in places)]
        output_of = {place: len(self._outputs) + index for index, place in enumerate(places)}
        self._find_levels(final)
        by_level: dict[int, list[RowsKey]] = {}
        for key, level in self._levels.items():
            by_level.setdefault(level, []).append(key)
        self._lookups = {
            key: place
            for place, key in enumerate(itertools.chain(*(by_level[x] for x in sorted(by_level))))
        }
        stages, lookups = [], []
        for level in sorted(by_level):
            keys = by_level[level]
            stages.append(self._stage([self._emitted[key.emission] for key in keys]))
            for output, key in enumerate(keys):
                lookups.append(Lookup(key.storage.shards, level, output))
        stages.append(self._stage(final))
        return ProgramSpec(
            program_id,
            name,
            tuple(stages),
            tuple(
                storage.shards[:1] if storage.is_copied else storage.shards
                for storage in self._reads
            ),
            tuple(lookups),
            tuple(
                Element(key.iterator_id, key.turn, key.leaf, key.local_shape, str(key.dtype))
                for key in self._elements
            ),
            tuple(
                Emission(
                    purpose.kind,
                    purpose.storage.shards,
                    output_of[place],
                    None if purpose.rows is None else output_of[purpose.rows],
                    purpose.optimizer_id,
                    purpose.storage.is_copied,
                )
                for purpose, place in updates
            ),
            len(self._outputs),
        )

    def _find_levels(self, outputs: Sequence[Any]) -> int:
        """Says of each lookup that `outputs` need after how many others it can be made."""
        highest = -1
        for key in self._keys_of(outputs):
            if not isinstance(key, RowsKey):
                continue
            if key not in self._levels:
                self._levels[key] = -1  # in progress; a program is no circle
                self._levels[key] = self._find_levels([self._emitted[key.emission]]) + 1
            highest = max(highest, self._levels[key])
        return highest

    def _keys_of(self, outputs: Sequence[Any]) -> list[Any]:
        _, used = _live_part(self._jaxpr, outputs)
        return [
            key for key, var in zip(self._entered, self._jaxpr.invars, strict=False) if var in used
        ]

    def _stage(self, outputs: Sequence[Any]) -> ProgramStage:
        eqns, used = _live_part(self._jaxpr, outputs)
        invars, inputs = [], []
        for index, var in enumerate(self._jaxpr.invars):
            if var in used:
                invars.append(var)
                inputs.append(self._input(index))
        jaxpr = self._jaxpr.replace(invars=invars, outvars=list(outputs), eqns=eqns)
        consts = [np.asarray(c) if isinstance(c, jax.Array) else c for c in self._traced.consts]

        def stage(*values: Any) -> list[Any]:
            return eval_jaxpr(jaxpr, consts, *values)

        shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in invars]
        return ProgramStage(jax.export.export(jax.jit(stage))(*shapes), tuple(inputs))

    def _input(self, index: int) -> StageInput:
        if index >= len(self._entered):
            return StageInput(InputSource.ARGUMENT, index - len(self._entered))
        key: Any = self._entered[index]
        if isinstance(key, RowsKey):
            return StageInput(InputSource.ROWS, self._lookups[key])
        if isinstance(key, WorkerKey):
            return StageInput(InputSource.WORKER)
        known: list[Any] = self._elements if isinstance(key, ElementKey) else self._reads
        if key not in known:
            known.append(key)
        is_element = isinstance(key, ElementKey)
        source = InputSource.ELEMENT if is_element else InputSource.VARIABLE
        return StageInput(source, known.index(key))


def _live_part(jaxpr: Any, outputs: Sequence[Any]) -> tuple[list[Any], set[Any]]:
    """The equations that `outputs` need, and all variables that are used by them.

    A write to a Ref is needed by whoever reads the Ref.
    """
    needed = {var for var in outputs if not isinstance(var, Literal)}
    eqns = []
    for eqn in reversed(jaxpr.eqns):
        inputs = [var for var in eqn.invars if not isinstance(var, Literal)]
        is_needed = any(var in needed for var in eqn.outvars)
        refs = [var for var in inputs if is_ref(var)]
        if is_needed or (eqn.effects and (not refs or any(ref in needed for ref in refs))):
            eqns.append(eqn)
            needed.update(inputs)
    return eqns[::-1], needed
