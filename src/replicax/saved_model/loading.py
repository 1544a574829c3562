"""`load`: makes the functions and variables of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from replicax.checkpoint import files
from replicax.checkpoint.checkpoint import Checkpoint, PathLike
from replicax.checkpoint.entries import ValueEntry, VariableEntry
from replicax.checkpoint.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    SavedModelError,
    reason_of,
)
from replicax.checkpoint.saving import require_host_code
from replicax.checkpoint.team import current_team
from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.core.extras import require_extra
from replicax.saved_model import description
from replicax.saved_model.loaded import LoadedModel, function_of
from replicax.variables.variable import Variable


def load(export_dir: PathLike, tags: Any = None, options: Any = None) -> LoadedModel:
    """Loads what `save` wrote; the Python code that it came from is not needed.

    In the scope of a strategy the variables are distributed, as if they had been created there,
    whatever strategy saved them. With many workers, all of them call it.

    Args:
        export_dir: The path.
        tags: Accepted because it is documented.
        options: Accepted because it is documented.

    Returns:
        The functions and variables.

    Raises:
        SavedModelError: If there is no saved model, or it is damaged, or not for this platform.
        ContextError: In a replica, or while a program is traced.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> w = rx.Variable(2.0)
        >>> double = rx.function(lambda x: w * x, input_signature=[rx.TensorSpec([None])])
        >>> path = rx.saved_model.save({"double": double}, tempfile.mkdtemp() + "/model")
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     model = rx.saved_model.load(path)
        >>> batch = strategy.distribute_batch([1.0, 2.0, 3.0])
        >>> strategy.gather(strategy.run(model.double, args=(batch,)), axis=0)
        Array([2., 4., 6.], dtype=float32)
    """
    del tags, options
    require_host_code("saved_model.load")
    require_extra("orbax.checkpoint", user="a saved model", extra="checkpoint")
    require_extra("flatbuffers", user="a saved model", extra="checkpoint")
    path = Path(export_dir).absolute()
    saved, error = None, None
    try:
        saved = SavedFiles(path)
        programs = saved.programs()
    except Exception as problem:  # told to the other workers, who would wait for this one
        programs, error = {}, problem
    current_team().settle("a load of a saved model", error)
    assert saved is not None
    variables = _made(saved)
    try:
        Checkpoint(variables).read(path).expect_partial()
    except DamagedCheckpointError as problem:
        raise SavedModelError(str(problem)) from problem
    functions = {
        name: function_of(name, programs[name], saved.functions[name], variables)
        for name in sorted(programs)
    }
    return LoadedModel(str(path), functions, variables, saved.values())


class SavedFiles:
    """What is at a path, checked, before anything is made of it.

    Attributes:
        path: The path.
        functions: What it says of each function.
        variables: What it says of each variable.
        records: The records of the checkpoint.

    Raises:
        SavedModelError: If there is no saved model, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        """Reads the descriptions and checks every file."""
        self.path = path
        try:
            self._manifest = files.read_manifest(path)
            files.verify(path, self._manifest)
        except (CheckpointNotFoundError, DamagedCheckpointError) as error:
            raise SavedModelError(str(error)) from error
        if not is_saved_model(self._manifest):
            raise SavedModelError(
                f"{path} is a checkpoint without functions, and no saved model. Restore it with "
                "replicax.Checkpoint, or save with replicax.saved_model.save."
            )
        try:
            content = description.parse(self.read(description.FILE))
        except (ValueError, RecursionError) as error:
            raise self.damaged(description.FILE, str(error)) from error
        self.functions: dict[str, Any] = content["functions"]
        self.variables: dict[str, Any] = content["variables"]
        self.records: dict[str, Any] = self._manifest["records"]
        for key in self.variables:
            if self.records.get(key, {}).get("kind") != VariableEntry.kind:
                raise self.damaged(description.FILE, f"there is no value of variable {key!r}")

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(size for size, _ in self._manifest["files"].values())

    def read(self, name: str) -> bytes:
        """The content of a file beside the values."""
        if name not in self._manifest["files"]:
            raise self.damaged(name, "it is missing")
        try:
            return (files.data_folder(self.path, self._manifest) / name).read_bytes()
        except OSError as error:
            raise self.damaged(name, str(error)) from error

    def damaged(self, name: str, reason: str) -> SavedModelError:
        """The error that names a file."""
        return SavedModelError(
            f"the saved model {self.path} is damaged: {name}: {reason}. Save it again."
        )

    def values(self) -> dict[str, Any]:
        """The Python values, by key."""
        kind = ValueEntry.kind
        return {k: r["value"] for k, r in self.records.items() if r["kind"] == kind}

    def programs(self) -> dict[str, export.Exported]:
        """The programs of all functions, by name.

        Raises:
            SavedModelError: If one is not what is said of it, or cannot run here.
        """
        return {name: self._program(name, says) for name, says in self.functions.items()}

    def _program(self, name: str, says: Mapping[str, Any]) -> export.Exported:
        file = description.program_file(name)
        content = self.read(file)
        try:
            program = export.deserialize(bytearray(content))
            inputs = jax.tree_util.tree_unflatten(program.in_tree, program.in_avals)
            (state, arrays), keywords = inputs
            found = [_like(aval) for aval in (*state, *arrays)]
            num_results = len(program.out_avals)
        except Exception as error:  # of any class: the bytes may say anything
            reason = f"this release of JAX cannot read it: {reason_of(error)}"
            raise self.damaged(file, reason) from error
        held = [self.records[key] for key in says["read"]]
        expected = [(tuple(record["shape"]), record["dtype"]) for record in held]
        expected += [(tuple(a["shape"]), a["dtype"]) for a in says["arguments"]]
        counts = num_results - len(says["written"]) - len(says["results"])
        if found != expected or keywords or counts:
            raise self.damaged(file, f"it takes {found} instead of {expected}")
        here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
        if here not in program.platforms:
            raise SavedModelError(
                f"function {name!r} of the saved model {self.path} was saved for "
                f"{list(program.platforms)}, and this process runs on {here!r}. Save it with "
                f"platforms={sorted({*program.platforms, here})}."
            )
        return program


def is_saved_model(manifest: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is a saved model as well."""
    return description.FILE in manifest["files"]


def _like(aval: Any) -> tuple[tuple[int | None, ...], str]:
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape)
    return shape, np.dtype(aval.dtype).name


def _made(saved: SavedFiles) -> dict[str, Variable]:
    """The variables, without their values; the strategy of the scope says of which kind."""
    made: dict[str, Variable] = {}
    for key in sorted(saved.variables):
        properties, record = saved.variables[key], saved.records[key]
        made[key] = Variable(
            np.zeros(record["shape"], np.dtype(record["dtype"])),
            properties["trainable"],
            name=properties["name"],
            synchronization=VariableSynchronization[properties["synchronization"]],
            aggregation=VariableAggregation[properties["aggregation"]],
        )
    return made
