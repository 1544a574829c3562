"""Reads a compiled program: what its devices exchange, and what each of them gets."""

import dataclasses
import re

KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
        kind: Such as ``all-reduce``.
        shapes: The shapes of its results on a device.
        groups: Which devices exchange with one another, as XLA writes it.
        name: The last part of the name of the operation that it is for.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    groups: str
    name: str


def shapes_in(text):
    return tuple(tuple(map(int, found.split(","))) for found in re.findall(r"\[([\d,]+)\]", text))


def collectives_of(program):
    """The collectives of a compiled program, in order."""
    found = []
    pattern = rf"= (.*?) ({KINDS})(?:-start)?\((.*)$"
    for result, kind, rest in re.findall(pattern, program.as_text(), re.MULTILINE):
        groups = re.search(
            r"(?:replica_groups|source_target_pairs)=(mesh\[.*?\] \{.*?\}|\S+),", rest
        )
        name = re.search(r'op_name="([^"]*)"', rest)
        last = name.group(1).rsplit("/", 1)[-1] if name else ""
        found.append(Collective(kind, shapes_in(result), groups.group(1) if groups else "", last))
    return found


def all_gathers_of(program):
    """The names of the operations that gather pieces into whole values."""
    return {found.name for found in collectives_of(program) if found.kind == "all-gather"}


def arguments_of(program):
    """The shapes of the arguments on one device."""
    entry = program.as_text().split("\nENTRY ", 1)[1].split("\n", 1)[0]
    inputs = entry.split(" -> ", 1)[0]
    return shapes_in(inputs)
