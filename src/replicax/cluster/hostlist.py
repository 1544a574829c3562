"""The short notation in which Slurm lists hosts and tasks. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from replicax.cluster.bounds import MAX_TASKS
from replicax.core.errors import ClusterError

# One name: pieces of plain text and of ranges in brackets, up to a comma outside brackets.
_HOSTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECES = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")
_MAX_NAME = 255


def expand_hosts(text: str) -> list[str]:
    """The hosts of a Slurm node list, in its order.

    Raises:
        ClusterError: If `text` is not such a list, or lists too many hosts; then none of them is
            counted out.

    Example:
        >>> expand_hosts("n[1-2],m5,o[08-10]")
        ['n1', 'n2', 'm5', 'o08', 'o09', 'o10']
        >>> expand_hosts("r[1-2]n[3,5]")
        ['r1n3', 'r1n5', 'r2n3', 'r2n5']
    """
    names = _HOSTS.findall(text)
    if not text or ",".join(names) != text:
        raise _bad_hosts(text)
    hosts: list[str] = []
    for name in names:
        hosts += _expand_name(name, text)
        _check_count(len(hosts), text)
    return hosts


def _expand_name(name: str, text: str) -> list[str]:
    parts = []
    for ranges, plain in _PIECES.findall(name):
        if len(plain) > _MAX_NAME:
            raise _bad_hosts(text)
        parts.append([plain] if plain else _expand_ranges(ranges, text))
    _check_count(math.prod(map(len, parts)), text)
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise _bad_hosts(text)
        first, last = match[1], match[2] or match[1]
        _check_count(len(numbers) + int(last) - int(first) + 1, text)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _check_count(count: int, text: str) -> None:
    if count > MAX_TASKS:
        raise ClusterError(
            f"{_cut(text)} lists {count} hosts or more; a cluster has at most {MAX_TASKS} tasks."
        )


def _bad_hosts(text: str) -> ClusterError:
    return ClusterError(
        f"{_cut(text)} is no list of hosts; expected one such as 'n[1-3,7],login0'."
    )


def _cut(text: str) -> str:
    return repr(text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}...")


def expand_tasks_per_node(text: str) -> list[int]:
    """The number of tasks of each node, from Slurm's notation.

    Raises:
        ClusterError: If `text` is not in that notation, or counts too many nodes or tasks.

    Example:
        >>> expand_tasks_per_node("3(x2),1")
        [3, 3, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise ClusterError(
                f"{_cut(text)} does not say how many tasks each node has; expected counts such as "
                "'3(x2),1'."
            )
        num_nodes = int(match[2] or 1)
        if max(len(counts) + num_nodes, sum(counts) + int(match[1]) * num_nodes) > MAX_TASKS:
            raise ClusterError(
                f"{_cut(text)} counts more nodes or tasks than a cluster has, {MAX_TASKS}."
            )
        counts += [int(match[1])] * num_nodes
    return counts


def block_hosts(tasks_per_host: Mapping[str, int]) -> list[str]:
    """The host of each task when one host is filled after the other.

    Example:
        >>> block_hosts({"n1": 2, "n2": 1})
        ['n1', 'n1', 'n2']
    """
    return [host for host, count in tasks_per_host.items() for _ in range(count)]


def cyclic_hosts(tasks_per_host: Mapping[str, int]) -> list[str]:
    """The host of each task when the hosts take turns.

    Example:
        >>> cyclic_hosts({"n1": 2, "n2": 1})
        ['n1', 'n2', 'n1']
    """
    rounds = range(max(tasks_per_host.values(), default=0))
    return [host for turn in rounds for host, count in tasks_per_host.items() if count > turn]


def tasks_by_host(hosts: Sequence[str], counts: Sequence[int]) -> dict[str, int]:
    """Host to number of tasks.

    Raises:
        ClusterError: If there are not as many counts as hosts.

    Example:
        >>> tasks_by_host(["n1", "n2"], [2, 1])
        {'n1': 2, 'n2': 1}
    """
    if len(hosts) != len(counts):
        raise ClusterError(
            f"there are {len(hosts)} hosts {list(hosts)} and {len(counts)} counts of tasks "
            f"{list(counts)}; expected one count for each host."
        )
    return dict(zip(hosts, counts, strict=True))
