"""The efficiency on many hosts that a page has simulated, read from the table it prints."""

import dataclasses
import itertools
import math
import pathlib
import re

from website.pictures.svg import Colour, Picture

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "what_a_step_costs.md"
NETWORKS = {"aws-p4d": "400 Gb/s", "dgx-a100": "1,600 Gb/s"}
COLOURS: tuple[Colour, ...] = ("one", "two", "three")
LEFT, TOP, WIDTH, HEIGHT = 60, 50, 440, 220

_ROW = re.compile(r"(?P<machine>\S+) +(?P<rows>\d+) +(?P<shares>(?:\d+% *)+) (?P<limit>\w+)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Attributes:
        machine: The type of the hosts.
        rows: The batch of each replica.
        efficiencies: One for each number of hosts.
    """

    machine: str
    rows: int
    efficiencies: tuple[float, ...]


def table() -> tuple[tuple[int, ...], list[Row]]:
    """The numbers of hosts, and the rows; a test compares what the page prints with its code."""
    lines = PAGE.read_text("utf-8").splitlines()
    heading = next(line for line in lines if line.startswith("machine "))
    hosts = tuple(int(word) for word in heading.split()[2:])
    matches = [_ROW.match(line) for line in lines]
    rows = [
        Row(
            match["machine"],
            int(match["rows"]),
            tuple(int(share) / 100 for share in match["shares"].replace("%", "").split()),
        )
        for match in matches
        if match is not None
    ]
    return hosts, rows


def draw() -> Picture:
    """A line for each row, over the logarithm of the number of hosts."""
    hosts, rows = table()
    picture = Picture(720, 330, "Efficiency on many hosts, for two networks and two batches")
    picture.text(LEFT - 40, 28, "part of the speed that each host keeps", anchor="start", bold=True)
    last = math.log2(hosts[-1])

    def at(number: int, efficiency: float) -> tuple[float, float]:
        return LEFT + math.log2(number) / last * WIDTH, TOP + (1 - efficiency) * HEIGHT

    for quarter in range(5):
        _, y = at(1, quarter / 4)
        picture.line((LEFT, y), (LEFT + WIDTH, y))
        picture.text(LEFT - 8, y + 4, f"{quarter / 4:.0%}", anchor="end", size=12, quiet=True)
    for number in hosts:
        x, y = at(number, 0)
        picture.text(x, y + 20, f"{number:,}", size=12, quiet=True)
    picture.text(LEFT + WIDTH / 2, TOP + HEIGHT + 42, "hosts with 8 GPUs", size=12, quiet=True)
    for row, colour in zip(rows, COLOURS, strict=True):
        points = [at(*pair) for pair in zip(hosts, row.efficiencies, strict=True)]
        for start, end in itertools.pairwise(points):
            picture.line(start, end)
        for x, y in points:
            picture.box(x - 6, y - 6, 12, 12, colour=colour)
        _, y = points[-1]
        said = f"{NETWORKS[row.machine]}, {row.rows:,} rows"
        picture.text(LEFT + WIDTH + 16, y + 5, said, anchor="start")
    return picture
