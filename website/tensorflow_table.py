"""Every public name below ``tf.distribute`` in TensorFlow 2.21: here, different, or why not.

What exists is looked up when the page is made, so the table follows the code. `reference` writes
the page; a test asks that no name is missing without a reason.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import inspect
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import replicax.tf as tf

LIST = pathlib.Path(__file__).parents[1] / "tests/tf/tensorflow_distribute.txt"

TO_COME = "Comes with parameter servers."

REASONS = {
    "*.configure": "Sets up a session, and there are none.",
    "*.update_config_proto": "Sets up a session, and there are none.",
    "tf.distribute.*Options.count": "Of the tuple that it is in TensorFlow; a dataclass here.",
    "tf.distribute.*Options.index": "Of the tuple that it is in TensorFlow; a dataclass here.",
    "tf.distribute.experimental.rpc*": (
        "Calls between processes of the user's own. Use any library for that, such as gRPC."
    ),
    "*Server*": TO_COME,
    "*.coordinator*": TO_COME,
}
"""Why a name is missing, by pattern; the first one that fits counts."""

_XLA = "XLA chooses the algorithm"
_EXACT = "a MEAN over a dim counts every example once, and a nest is reduced leaf by leaf"
_DIVIDED = "the same global batches for any number of workers, and uneven ones without loss"

NOTES = {
    "*.NcclAllReduce": _XLA,
    "*.HierarchicalCopyAllReduce": _XLA,
    "*.CrossDeviceOps.*_implementation": "asked while a compiled step is traced, too",
    "*.experimental.PreemptionWatcher": "watches SIGTERM, on any platform",
    "*.TPUClusterResolver.tpu_hardware_feature": "JAX offers no embedding devices",
    "*.experimental.CollectiveHints": "a function that gives CommunicationOptions",
    "*Strategy.reduce": _EXACT,
    "*Strategy.experimental_distribute_dataset": _DIVIDED,
    "*Strategy.run": "compiled, if it is a function; plain Python is run eagerly",
    "*Strategy.scope": "may be entered again",
    "*Extended.update": "on a plain variable, just calls the function",
}
"""What differs beside parameters, by pattern."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One name of TensorFlow's.

    Attributes:
        name: With all modules, and the class if it is a member.
        parameters: The names of its parameters; None if it cannot be called.
        exists: Whether `replicax.tf` has it.
        lacks: Parameters of TensorFlow's that it does not take here.
        own: Parameters that it takes here only.
    """

    name: str
    parameters: tuple[str, ...] | None
    exists: bool
    lacks: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is missing; empty if nobody said."""
        fits = (text for pattern, text in REASONS.items() if fnmatch.fnmatch(self.name, pattern))
        return next(fits, "")

    @property
    def status(self) -> str:
        """What the table says of it."""
        if not self.exists:
            return f"missing. {self.reason}"
        said = [text for pattern, text in NOTES.items() if fnmatch.fnmatch(self.name, pattern)]
        if self.lacks:
            said.append(f"without {', '.join(f'``{name}``' for name in self.lacks)}")
        if self.own:
            said.append(f"also {', '.join(f'``{name}``' for name in self.own)}")
        return "; ".join(said) or "as documented"


def rows() -> list[Row]:
    """All names, in the order of the list."""
    return [_row(name, parameters) for name, parameters in _listed()]


def counted(table: Sequence[Row]) -> str:
    """One sentence with the numbers of the table."""
    there = sum(row.exists for row in table)
    return (
        f"Of the {len(table)} public names and members that TensorFlow 2.21 has under "
        f"``tf.distribute`` and ``tf.compat.v1.distribute``, {there} exist."
    )


def _listed() -> Iterator[tuple[str, tuple[str, ...] | None]]:
    module = ""
    for line in LIST.read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            module = line.removesuffix(":")
            continue
        name, is_called, parameters = line.strip().removesuffix(")").partition("(")
        yield f"{module}.{name}", tuple(parameters.split()) if is_called else None


def _row(name: str, parameters: tuple[str, ...] | None) -> Row:
    try:
        thing = functools.reduce(getattr, name.split(".")[1:], tf)
    except AttributeError:
        return Row(name, parameters, exists=False)
    here = _parameters(thing)
    # What has no parameters there, or any, is made by a strategy, or checks them by itself.
    if not parameters or here is None or any(each.startswith("*") for each in parameters):
        return Row(name, parameters, exists=True)
    lacks = tuple(each for each in parameters if each not in here)
    return Row(name, parameters, True, lacks, tuple(e for e in here if e not in parameters))


def _parameters(thing: Any) -> list[str] | None:
    """The names of the parameters of a call; None if any name is taken, or it is no call."""
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in found):
        return None
    return [each.name for each in found if each.name not in ("self", "cls")]
