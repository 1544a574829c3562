"""Reads collectives out of compiled programs in another way than `replicax.costs` does.

By the types of their results, and not by those of their operands: of an all-gather the result is
as many times larger as devices meet, of a reduce-scatter smaller.
"""

from __future__ import annotations

import collections
import re

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_LINE = re.compile(rf"= (\(.*?\)|\S+) ({KINDS})\(.*")
_ARRAY = re.compile(r"(pred|[a-z]+?)(\d*)\[([\d,]*)\]")


def operands_in(text: str) -> collections.Counter[tuple[str, int]]:
    """How many operands of each kind and number of bytes there are; loops count once."""
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for line in text.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        types, kind = match.groups()
        for _, bits, dims in _ARRAY.findall(types):
            size = int(bits or 8) // 8
            for dim in filter(None, dims.split(",")):
                size *= int(dim)
            group = group_size(line)
            if kind == "all-gather":
                size //= group
            elif kind == "reduce-scatter":
                size *= group
            found[kind, size] += 1
    return found


def group_size(line: str) -> int:
    """How many devices meet."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed is not None:
        return listed[1].count(",") + 1
    named = re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", line)
    if named is not None:
        (size,) = [int(n) for axis, n in re.findall(r"('\w+')=(\d+)", named[1]) if axis in named[2]]
        return size
    tiled = re.search(r"replica_groups=\[\d+,(\d+)\]<=", line)
    return int(tiled[1]) if tiled is not None else 1
