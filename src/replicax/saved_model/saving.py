"""`save`: writes functions and variables as one saved model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from replicax.checkpoint.checkpoint import PathLike
from replicax.checkpoint.entries import Entry, VariableEntry
from replicax.checkpoint.errors import SavedModelError
from replicax.checkpoint.objects import Found
from replicax.checkpoint.saving import Writing, require_host_code
from replicax.checkpoint.team import current_team
from replicax.core import notices
from replicax.core.errors import WorkersDifferError
from replicax.core.extras import require_extra
from replicax.engine.functions.function import Function
from replicax.saved_model import description
from replicax.saved_model.export import ExportedFunction, export_function

Functions = Function[..., Any] | Mapping[str, Function[..., Any]]

_LIBRARIES = {
    ("keras", "Model"): "Save it with model.save(path), or model.export(path) to serve it.",
    ("flax", "Module"): "Give a dict with functions that call it, or an object that has them.",
}
_EXTRA = "a saved model"


def save(
    obj: Any,
    export_dir: PathLike,
    signatures: Functions | None = None,
    options: Any = None,
    *,
    platforms: Sequence[str] | None = None,
) -> str:
    """Writes compiled functions and the variables they use, for processes without their code.

    Every `replicax.function` with an ``input_signature`` that `obj` has is exported, as one
    replica would run it. None in a signature is a dim of any size; the first dims of all
    arguments that are None are the same size. The values of variables are saved as a checkpoint
    does, so that ``rx.Checkpoint`` can restore from the same path.

    Works inside and outside of a scope. With many workers, all of them call it and the first one
    writes.

    Args:
        obj: A mapping of names to functions, variables, and whatever a `Checkpoint` takes; or an
            object that has these as attributes and methods.
        export_dir: The folder. What was saved there before stays whole until the new model is.
        signatures: A function, which becomes ``serving_default``, or functions by name, which are
            saved too.
        options: Accepted because it is documented.
        platforms: Where the functions shall run: some of ``"cpu"``, ``"cuda"``, ``"rocm"`` and
            ``"tpu"``. The platform of this process if None.

    Returns:
        The path.

    Raises:
        SavedModelError: If there is no function to save, or one that cannot be.
        ContextError: In a replica, or while a program is traced.
        CheckpointObjectError: If there is something else that cannot be saved.
        CheckpointWriteError: If the files cannot be written.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import replicax as rx
        >>> w = rx.Variable([[2.0], [3.0]])
        >>> @rx.function(input_signature=[rx.TensorSpec([None, 2])])
        ... def predict(x):
        ...     return x @ w
        >>> path = rx.saved_model.save({"predict": predict, "w": w}, tempfile.mkdtemp() + "/model")
        >>> rx.saved_model.load(path).predict(np.ones((1, 2)))
        Array([[5.]], dtype=float32)
    """
    del options
    require_host_code("saved_model.save")
    require_extra("orbax.checkpoint", user=_EXTRA, extra="checkpoint")
    require_extra("flatbuffers", user=_EXTRA, extra="checkpoint")
    path, team = Path(export_dir).absolute(), current_team()
    entries: dict[str, Entry] = {}
    beside: dict[str, bytes] = {}
    error = None
    try:
        entries, beside = _contents(obj, signatures, _checked_platforms(platforms))
    except Exception as problem:  # told to the other workers, who would wait for this one
        error = problem
    messages = team.settle("a saved model", error, message=sorted(beside))
    if any(message != messages[0] for message in messages):
        raise WorkersDifferError(
            f"the workers would save different functions: {messages}. Give saved_model.save the "
            "same functions on every worker."
        )
    Writing(path, lambda: entries, lambda commit: commit(), beside).finish()
    return str(path)


def _checked_platforms(platforms: Sequence[str] | None) -> list[str]:
    if platforms is None:
        return [{"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())]
    known = ("cpu", "cuda", "rocm", "tpu")
    unknown = [name for name in platforms if name not in known]
    if isinstance(platforms, str) or unknown or not platforms:
        raise SavedModelError(f"platforms is {platforms!r}; expected a list of some of {known}.")
    return list(dict.fromkeys(platforms))


def _contents(
    obj: Any, signatures: Functions | None, platforms: Sequence[str]
) -> tuple[dict[str, Entry], dict[str, bytes]]:
    """What the checkpoint saves, and the files beside it."""
    _refuse_library(obj)
    functions, rest = _functions_of(obj)
    functions |= _signatures(signatures)
    _check_functions(functions, obj)
    found = Found()
    if isinstance(rest, Mapping):
        found.add_all(rest, lambda name, value: None)
    else:
        found.add_root(rest, "")
    entries = found.entries
    exported = {name: export_function(name, fn, platforms) for name, fn in functions.items()}
    keys: dict[int, str] = {}
    for key, entry in entries.items():
        if isinstance(entry, VariableEntry):
            keys.setdefault(id(entry.variable), key)
    for function in exported.values():
        for variable in function.read:
            if id(variable) not in keys:  # captured by the function, and not in the object
                key = _free_key(variable.name, entries)
                entries[key] = VariableEntry(variable)
                keys[id(variable)] = key
    return entries, _files(exported, entries, keys)


def _files(
    exported: Mapping[str, ExportedFunction], entries: Mapping[str, Entry], keys: Mapping[int, str]
) -> dict[str, bytes]:
    variables = {
        key: {
            "name": entry.variable.name,
            "trainable": entry.variable.trainable,
            "synchronization": entry.variable.synchronization.name,
            "aggregation": entry.variable.aggregation.name,
        }
        for key, entry in entries.items()
        if isinstance(entry, VariableEntry) and keys[id(entry.variable)] == key
    }
    functions, files = {}, {}
    for name, function in exported.items():
        functions[name] = {
            "arguments": function.arguments,
            "differentiable": function.differentiable,
            "inputs": function.inputs,
            "outputs": function.outputs,
            "platforms": function.platforms,
            "read": [keys[id(variable)] for variable in function.read],
            "results": function.results,
            "written": [keys[id(variable)] for variable in function.written],
        }
        files[description.program_file(name)] = function.program
        files[description.stablehlo_file(name)] = function.stablehlo
    return {description.FILE: description.encode(functions, variables), **files}


def _free_key(name: str, entries: Mapping[str, Entry]) -> str:
    key, number = name, 0
    while key in entries:
        number += 1
        key = f"{name}_{number}"
    return key


def _refuse_library(obj: Any) -> None:
    for base in type(obj).__mro__:
        advice = _LIBRARIES.get((base.__module__.partition(".")[0], base.__name__))
        if advice is not None:
            raise SavedModelError(
                f"saved_model.save got a {type(obj).__name__}, which is a {base.__module__}."
                f"{base.__name__}. {advice}"
            )


def _functions_of(obj: Any) -> tuple[dict[str, Function[..., Any]], Any]:
    """The functions of `obj` by name, and what else to look for state in."""
    if isinstance(obj, Function):
        return {"serving_default": obj}, {}
    if isinstance(obj, Mapping):
        functions = {str(name): fn for name, fn in obj.items() if isinstance(fn, Function)}
        return functions, {name: value for name, value in obj.items() if str(name) not in functions}
    found = {}
    for name in dir(obj):
        if not name.startswith("_"):
            with contextlib.suppress(AttributeError):
                if isinstance(inspect.getattr_static(obj, name), Function):
                    found[name] = getattr(obj, name)
    return found, obj


def _signatures(signatures: Functions | None) -> dict[str, Function[..., Any]]:
    if signatures is None:
        return {}
    if isinstance(signatures, Function):
        signatures = {"serving_default": signatures}
    wrong = not isinstance(signatures, Mapping) or [
        fn for fn in signatures.values() if not isinstance(fn, Function)
    ]
    if wrong:
        raise SavedModelError(
            f"signatures is {signatures!r}; expected a replicax.function or a dict of them."
        )
    for name, fn in signatures.items():
        if fn.input_signature is None:
            raise _without_signature(name)
    return dict(signatures)


def _check_functions(functions: dict[str, Function[..., Any]], obj: Any) -> None:
    """Drops functions without a signature, with a notice; refuses if none is left."""
    left_out = [name for name, fn in functions.items() if fn.input_signature is None]
    if not functions:
        raise SavedModelError(
            f"saved_model.save found no replicax.function in {type(obj).__name__}. Put "
            "@replicax.function(input_signature=[...]) on what shall be called after loading, or "
            "save variables alone with replicax.Checkpoint."
        )
    if len(left_out) == len(functions):
        raise _without_signature(left_out[0])
    for name in left_out:
        del functions[name]
    if left_out:
        notices.notify_once(
            ("functions without signature", *left_out),
            f"the functions {left_out} have no input_signature and are left out of the saved "
            "model. Give them one to save them too.",
        )
    for name in functions:
        if not description.is_name(name):
            raise SavedModelError(
                f"a function is called {name!r}; a saved model needs a name that Python could "
                "have, such as 'predict'."
            )


def _without_signature(name: str) -> SavedModelError:
    return SavedModelError(
        f"function {name!r} has no input_signature, so it is not known for which arguments to save "
        "it. Write @replicax.function(input_signature=[replicax.TensorSpec([None, 3])])."
    )
