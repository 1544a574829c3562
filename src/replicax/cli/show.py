"""``replicax show``: the functions, variables and sizes of a saved model or a checkpoint."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from replicax.checkpoint import files
from replicax.checkpoint.entries import VariableEntry
from replicax.checkpoint.errors import CheckpointNotFoundError, DamagedCheckpointError
from replicax.checkpoint.latest import latest_checkpoint
from replicax.core.errors import ReplicaxError
from replicax.core.shown import as_size
from replicax.saved_model.loading import SavedFiles, is_saved_model
from replicax.saved_model.structure import from_json


@dataclasses.dataclass(slots=True)
class Contents:
    """What there is at a path.

    Attributes:
        path: The path; of a folder with several checkpoints that of the latest.
        kind: What it is, in words.
        num_bytes: The size of all files.
        functions: What is said of each function; empty for a checkpoint.
        variables: Key, shape, dtype, size in bytes and number of copies of each variable.
        others: Keys and kinds of what else was saved.
    """

    path: str
    kind: str
    num_bytes: int
    functions: dict[str, dict[str, Any]]
    variables: list[dict[str, Any]]
    others: dict[str, str]


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def show(path: Path, as_json: bool) -> None:
    """Show what is in a saved model or a checkpoint at PATH.

    Of a folder with several checkpoints the latest is shown. All files are checked: the exit code
    is 1 if there is nothing at PATH, or something that is damaged.
    """
    try:
        contents = look_at(path.absolute())
    except ReplicaxError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(contents), indent=2))
    else:
        _print(contents, Console(highlight=False))


def look_at(path: Path) -> Contents:
    """What is at `path`; every file is checked.

    Raises:
        CheckpointNotFoundError: If there is nothing.
        DamagedCheckpointError: If it is a damaged checkpoint.
        SavedModelError: If it is a damaged saved model.
    """
    if not files.is_complete(path) and path.is_dir():
        path = Path(latest_checkpoint(path) or path)
        if not files.is_complete(path):
            raise _nothing_at(path)
    manifest = files.read_manifest(path)
    files.verify(path, manifest)
    functions = SavedFiles(path).functions if is_saved_model(manifest) else {}
    records = manifest["records"]
    return Contents(
        path=str(path),
        kind="saved model" if functions else "checkpoint",
        num_bytes=sum(size for size, _ in manifest["files"].values()),
        functions=functions,
        variables=[_variable(k, r) for k, r in records.items() if r["kind"] == VariableEntry.kind],
        others={k: r["kind"] for k, r in records.items() if r["kind"] != VariableEntry.kind},
    )


def _nothing_at(path: Path) -> ReplicaxError:
    if any(path.glob(f"{files.DATA}*")):
        return DamagedCheckpointError(f"{path} is damaged: {files.MANIFEST} is missing.")
    return CheckpointNotFoundError(f"{path} holds no checkpoint and no saved model.")


def _variable(key: str, record: Mapping[str, Any]) -> dict[str, Any]:
    copies, shape = record.get("copies", 0), record["shape"]
    stored = copies + record["has_value"]
    num_bytes = math.prod(shape) * np.dtype(record["dtype"]).itemsize * stored
    return {
        "key": key,
        "shape": shape,
        "dtype": record["dtype"],
        "bytes": num_bytes,
        "copies": copies,
    }


# -- what is shown -----------------------------------------------------------------------------


def _print(contents: Contents, console: Console) -> None:
    console.print(
        f"{contents.kind} {contents.path}, {as_size(contents.num_bytes)}",
        markup=False,
        soft_wrap=True,
    )
    for name, says in contents.functions.items():
        console.print(f"\n{signature(name, says)}", markup=False, soft_wrap=True)
        console.print(f"  for {', '.join(says['platforms'])}", markup=False)
        if not says["differentiable"]:
            console.print("  without gradients", markup=False)
        if says["read"]:
            console.print(f"  uses {', '.join(says['read'])}", markup=False, soft_wrap=True)
        if says["written"]:
            console.print(f"  assigns {', '.join(says['written'])}", markup=False, soft_wrap=True)
    if contents.variables:
        console.print()
        console.print(_table(contents.variables))
    for key, kind in contents.others.items():
        console.print(f"{key}: {kind}", markup=False, soft_wrap=True)


def _table(variables: list[dict[str, Any]]) -> Table:
    table = Table("variable", "shape", "dtype", "size", "copies")
    for row in variables:
        copies = str(row["copies"]) if row["copies"] else ""
        table.add_row(
            row["key"], str(tuple(row["shape"])), row["dtype"], as_size(row["bytes"]), copies
        )
    return table


def signature(name: str, says: Mapping[str, Any]) -> str:
    """A function with its arguments and results, as Python would write them.

    Example:
        >>> arrays = [{"shape": [None, 2], "dtype": "float32"}]
        >>> signature(
        ...     "predict",
        ...     {"inputs": {"tuple": ["leaf"]}, "arguments": arrays, "outputs": "leaf",
        ...      "results": [{"shape": ["batch"], "dtype": "int32"}]},
        ... )
        'predict(float32[None, 2]) -> int32[batch]'
    """
    arguments = from_json(says["inputs"], iter([_array(a) for a in says["arguments"]]))
    result = from_json(says["outputs"], iter([_array(a) for a in says["results"]]))
    return f"{name}({', '.join(map(_nest, arguments))}) -> {_nest(result)}"


def _array(says: Mapping[str, Any]) -> str:
    return f"{says['dtype']}[{', '.join(map(str, says['shape']))}]"


def _nest(nest: Any) -> str:
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_nest(value)}" for key, value in nest.items()) + "}"
    if isinstance(nest, (list, tuple)):
        inside = ", ".join(map(_nest, nest))
        return f"[{inside}]" if isinstance(nest, list) else f"({inside})"
    return str(nest)
