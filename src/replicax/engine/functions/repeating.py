"""Recognises that a call is the last one again, and launches the same program.

Most calls of a training loop differ from the one before in nothing but the values of
their arguments. They are recognised by comparing everything that is part of the call
site's key, mostly by identity, in one closure; see `launching` for the reason.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any

from replicax.core import nest
from replicax.engine.contexts import stack
from replicax.engine.functions import arguments
from replicax.engine.functions.closures import Captured
from replicax.engine.functions.program import Program, SettingsChanged
from replicax.engine.functions.settings import SETTINGS
from replicax.engine.protocols import DIFFERENT, StrategyLike
from replicax.engine.trace import frame
from replicax.jax_internals.arrays import ConcreteArray, is_deleted
from replicax.jax_internals.traces import is_transforming
from replicax.values.distributed import PerReplica

Repeat = Callable[[Any, Sequence[Any], "Mapping[str, Any] | None"], Any]
"""From strategy and arguments to the result, or to `DIFFERENT`."""

_COMPARED = (bool, int, str, type(None))  # static arguments that are quickly compared


def not_repeated(
    strategy: StrategyLike | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Any:
    """The `Repeat` of a call site whose last call must not be repeated."""
    return DIFFERENT


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call outside every scope or directly in one, as its call site sees it.

    Attributes:
        captured: What the function had captured; the call site has no other function.
        leaves: Its arguments.
        structure: Of the arguments, by `arguments.flatten`.
        keys: For each leaf its `arguments.leaf_key`.
        strategy: The strategy whose replicas it ran on, or None.
        scope: The ``extended._serial`` of the strategy in whose scope it was made, or None.
    """

    captured: Captured
    leaves: Sequence[Any]
    structure: Any
    keys: tuple[Any, ...]
    strategy: StrategyLike | None
    scope: int | None

    @property
    def is_repeatable(self) -> bool:
        """Whether other arguments are quickly seen to be like these."""
        return all(type(x) in _COMPARED or arguments.is_traced(x) for x in self.leaves)


def repeat_of(call: Call, program: Program) -> Repeat:
    """A function that repeats this call.

    What it needs is bound here, once, because between two steps the devices have used up the
    processor's caches: there each Python call and each attribute costs several times what it costs
    in a loop.

    Args:
        call: The call.
        program: The program that it found, launched once.

    Returns:
        `not_repeated` if the call is of a kind that needs a second look every time.
    """
    if program.returns_arguments or not call.is_repeatable:
        return not_repeated
    captured = call.captured
    cells, functions, mappings = captured.cells, captured.functions, captured.mappings
    strategy, structure, keys, scope = call.strategy, call.structure, call.keys, call.scope
    is_nest = not isinstance(structure, int)
    kinds, num_leaves = list(map(type, call.leaves)), len(call.leaves)
    names = [functools.partial(arguments.path_of, i, structure) for i in range(num_leaves)]
    static = {i: x for i, x in enumerate(call.leaves) if not arguments.is_traced(x)}
    are_arrays = all(kind is ConcreteArray for kind in kinds)  # the launcher will look
    # Arrays over several devices, whose parts the user may have; those of values look themselves.
    spread = [i for i, x in enumerate(call.leaves) if _is_spread(x)]
    launcher, finish = program.launcher, program.finish
    assert finish is not None  # it has been launched
    make, made_of = program.only_result or (None, 0)
    is_made: bool | None = None  # known once: the direct launches all give arrays of one kind
    contexts, process = stack.watch()
    in_scope = stack.Mode.SCOPE
    traces, settings = frame.watch(), SETTINGS

    def launched(leaves: Sequence[Any]) -> Any:
        """The outputs for arguments that the program may not have seen like this; or None."""
        # The direct launcher has looked: a trace of ours is one of JAX, too.
        if is_transforming() or traces.frame is not None:
            return None
        if list(map(type, leaves)) != kinds:  # nobody has looked yet where all were arrays
            return None
        if tuple(map(arguments.leaf_key, leaves)) != keys or not program.is_alive():
            return None
        traced = [(leaf, names[i]) for i, leaf in enumerate(leaves) if i not in static]
        try:
            return launcher.launch([arguments.lower(leaf, name) for leaf, name in traced])
        except SettingsChanged:
            return None

    def repeat(on: Any, leaves: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
        nonlocal is_made
        entries = contexts.entries
        if entries:
            entry = entries[-1]
            if entry.mode is not in_scope or entry.strategy.extended._serial != scope:
                return DIFFERENT
        elif scope is not None or process.chosen is not None:
            return DIFFERENT
        if on is not strategy or settings.run_eagerly:
            return DIFFERENT
        if is_nest:
            leaves, found = nest.flatten((tuple(leaves), kwargs or {}))
            if found != structure:
                return DIFFERENT
        elif kwargs or len(leaves) != num_leaves:
            return DIFFERENT
        arrays = leaves
        if not are_arrays:
            arrays = []
            for index, leaf in enumerate(leaves):  # a strict zip costs more
                kind = type(leaf)
                if kind is not kinds[index]:
                    return DIFFERENT
                if kind is PerReplica:
                    leaf = leaf._packed_if_like(keys[index], names[index])
                    if leaf is None:
                        return DIFFERENT
                elif index in static:
                    if leaf != static[index]:
                        return DIFFERENT
                    continue
                arrays.append(leaf)
        if spread and any(is_deleted(leaves[index]) for index in spread):
            return DIFFERENT
        try:
            for cell, captured in cells:
                if cell.cell_contents is not captured:
                    return DIFFERENT
        except ValueError:  # a cell was emptied
            return DIFFERENT
        for fn, code, defaults, keywords in functions:
            if (
                fn.__defaults__ is not defaults
                or fn.__code__ is not code
                or fn.__kwdefaults__ is not keywords
            ):
                return DIFFERENT
        if mappings and not all(starmap(_has_same_items, mappings)):
            return DIFFERENT
        outputs = launcher.direct(arrays)
        if outputs is None:
            outputs = launched(leaves)
            if outputs is None:
                return DIFFERENT
        elif is_made is False:
            return outputs[made_of]
        elif is_made is None and make is not None:
            result = make(outputs[made_of])
            is_made = result is not outputs[made_of]
            return result
        return finish(outputs) if make is None else make(outputs[made_of])

    return repeat


def _is_spread(leaf: Any) -> bool:
    return type(leaf) is ConcreteArray and len(leaf.devices()) > 1


def _has_same_items(mapping: Mapping[str, Any], items: dict[str, Any]) -> bool:
    return mapping.keys() == items.keys() and all(mapping[name] is items[name] for name in items)
