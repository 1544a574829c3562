"""Every public name, where a user looks for it, and its documented name in TensorFlow.

A name is public if `replicax`, or a module that it lists, has it in ``__all__``. Knows nothing of
Sphinx; `reference` writes the pages, and a test asks for their docstrings.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

GROUPS: dict[str, tuple[str, ...]] = {
    "Strategies": (
        "replicax.strategies.current.experimental_set_strategy",
        "replicax.strategies.current.get_strategy",
        "replicax.strategies",
        "replicax.engine.contexts.stack.has_strategy",
    ),
    "Running a step": (
        "replicax.engine",
        "replicax.strategies.current.get_replica_context",
        "replicax.core.options.RunOptions",
        "replicax.backend.compilation_cache",
        "replicax.strategies.multi_step",
        "replicax.REPLICA_AXIS",
    ),
    "Reductions and communication": (
        "replicax.strategies.cross_device_ops",
        "replicax.core.enums.ReduceOp",
        "replicax.core.options",
    ),
    "Values": ("replicax.values", "replicax.core.spec", "replicax.core.value_context"),
    "Variables": (
        "replicax.variables",
        "replicax.core.partitioners",
        "replicax.core.sharding",
        "replicax.core.enums.Variable",
        "replicax.optimizers.trees",
        "replicax.strategies.parts",
    ),
    "Gradients, losses and optimizers": (
        "replicax.variables.gradients",
        "replicax.losses",
        "replicax.optimizers",
    ),
    "Costs of a step": ("replicax.costs", "replicax.watching"),
    "Metrics": ("replicax.metrics",),
    "Random numbers": ("replicax.random",),
    "Input": (
        "replicax.input",
        "replicax.data",
        "replicax.core.options.InputOptions",
        "replicax.core.enums",
    ),
    "Checkpoints": ("replicax.checkpoint",),
    "Saved models and summaries": ("replicax.saved_model", "replicax.summary"),
    "Parameter servers": ("replicax.coordinator", "replicax.parameter_server"),
    "Devices and clusters": ("replicax.backend", "replicax.cluster", "replicax.launch"),
    "Keras and Flax": ("replicax.integrations",),
    "Testing and looking inside": ("replicax.testing", "replicax.drawing"),
    "Errors and warnings": ("replicax.core.errors", "replicax.core.notices"),
}
"""The groups in order, with the beginnings of where their names are defined; the longest counts."""

LAST_GROUP = "Other names"


@dataclasses.dataclass(frozen=True, slots=True)
class PublicName:
    """A class, function or constant.

    Attributes:
        name: As users write it, beginning with ``replicax.``, the shortest spelling.
        thing: What it is.
        group: Where a user looks for it.
        documented: Its names in TensorFlow, the shortest first; those of ``tf.compat`` only if it
            has no other.
    """

    name: str
    thing: Any
    group: str
    documented: tuple[str, ...]

    @property
    def is_constant(self) -> bool:
        """Whether it is a plain value, which has no docstring."""
        return not callable(self.thing)

    @property
    def docstring(self) -> str:
        """Its own docstring; empty if it has none."""
        return "" if self.is_constant else inspect.cleandoc(self.thing.__doc__ or "")


def _walk(module: types.ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """Every name below a module with what it is; modules come after the names beside them."""
    inner = []
    for each in getattr(module, "__all__", ()):
        thing = getattr(module, each)
        if isinstance(thing, types.ModuleType):
            inner.append((f"{name}.{each}", thing))
        else:
            yield f"{name}.{each}", thing
    for path, thing in inner:
        yield from _walk(thing, path)


def public_names() -> list[PublicName]:
    """Every public name but those of `replicax.tf`, each thing once, in the order of the groups."""
    documented: dict[int, list[str]] = {}
    for name, thing in documented_names():
        names = documented.setdefault(id(thing), [])
        if not names or not name.startswith("tf.compat."):
            names.append(name)
    found: dict[object, PublicName] = {}
    for name, thing in _walk(importlib.import_module("replicax"), "replicax"):
        key = id(thing) if callable(thing) else name
        if key not in found:
            group = _group(thing, name)
            names = documented.get(id(thing), []) if callable(thing) else _same_constant(name)
            found[key] = PublicName(name, thing, group, tuple(names))
    order = [*GROUPS, LAST_GROUP]
    return sorted(found.values(), key=lambda each: (order.index(each.group), each.name.lower()))


def documented_names() -> list[tuple[str, Any]]:
    """Every name of `replicax.tf`, as ``tf.``, with what it is; the shortest first."""
    names = list(_walk(importlib.import_module("replicax.tf"), "tf"))
    return sorted(names, key=lambda each: (each[0].startswith("tf.compat"), len(each[0]), each[0]))


def _same_constant(name: str) -> list[str]:
    last = name.rpartition(".")[2]
    return [each for each, _ in documented_names() if each == f"tf.data.{last}"]


def _group(thing: Any, name: str) -> str:
    inside = f"{thing.__module__}.{thing.__qualname__}" if callable(thing) else name
    starts = [(len(start), group) for group, all_ in GROUPS.items() for start in all_
              if inside.startswith(start)]  # fmt: skip
    return max(starts, default=(0, LAST_GROUP))[1]
