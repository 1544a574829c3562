"""What users can reach: the public functions, the public classes, and what these show.

Imports the package, unlike `source_tree`. A class is public if a facade lists it, if it derives
from such a class, or if users get its instances from public functions (`HANDED_OUT`).
"""

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.architecture.source_tree import facades, tree

# Modules that facades list as names, so that they are facades as well.
NAMED_MODULES = ("replicax.core.partitioners", "replicax.random")

# Classes whose instances users get, and that derive from no public class.
HANDED_OUT = (
    "replicax.backend.mesh.ReplicaMesh",  # extended.mesh
    "replicax.checkpoint.reader.CheckpointReader",  # tf.train.load_checkpoint
    "replicax.checkpoint.status.RestoreStatus",  # Checkpoint.restore
    "replicax.cluster.kubernetes_api.Pod",  # KubernetesApi.list_pods
    "replicax.drawing.Block",  # Drawing.blocks
    "replicax.drawing.Drawing",  # visualize_value
    "replicax.input.iterator.Optional",  # get_next_as_optional
    "replicax.input.pipeline.iterator.DatasetIterator",  # iter(data.Dataset)
    "replicax.variables.distributed.VariableCopy",  # experimental_local_results
    "replicax.variables.sharded.VariablePart",  # the first argument of an elementwise update
)


def _is_ours(thing: Any) -> bool:
    return thing.__module__.startswith("replicax.")


def _listed() -> Iterator[Any]:
    for name in (*facades(), *NAMED_MODULES):
        module = importlib.import_module(name)
        yield from (getattr(module, each) for each in getattr(module, "__all__", ()))


def public_functions() -> list[Any]:
    """The functions that facades list, each once."""
    found = (thing for thing in _listed() if inspect.isfunction(inspect.unwrap(thing)))
    return [*dict.fromkeys(thing for thing in found if _is_ours(thing))]


@functools.cache
def public_classes() -> tuple[type, ...]:
    """The public classes, each once, by name."""
    waiting = [thing for thing in _listed() if inspect.isclass(thing)]
    for path in HANDED_OUT:
        module, _, name = path.rpartition(".")
        waiting.append(getattr(importlib.import_module(module), name))
    found = {}
    while waiting:
        cls = waiting.pop()
        if _is_ours(cls) and not cls.__name__.startswith("_") and cls not in found:
            found[cls] = None
            waiting += cls.__subclasses__()
    return tuple(sorted(found, key=lambda cls: (cls.__name__, cls.__module__)))


def bases(cls: type) -> list[type]:
    """The class and those of its bases that are ours."""
    return [base for base in cls.__mro__ if _is_ours(base)]


def own_names(cls: type) -> set[str]:
    """The names without underscore that a class itself gives to its instances."""
    slots = vars(cls).get("__slots__", ())
    names = {*vars(cls), *vars(cls).get("__annotations__", {}), *slots}
    path = Path(inspect.getsourcefile(cls) or "")
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            names |= {
                part.attr
                for part in ast.walk(node)
                if isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            }
    return {name for name in names if not name.startswith("_")}
