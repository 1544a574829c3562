"""`explain`: what a step costs, as tables, before anybody pays for it."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from replicax.core.shown import Rows, as_html, as_size, as_text
from replicax.costs.collectives import Collective
from replicax.costs.hints import Hint, hints_for, short
from replicax.costs.program import StepProgram, inspect_step
from replicax.strategies.base import Strategy

_NAMES_SHOWN = 3  # of the variables that a collective serves


class Explanation:
    """What a step sends, keeps and computes, with hints; made by `explain`.

    Printed as tables. Notebooks show it as HTML, and ``show()`` in colours of the terminal.

    Attributes:
        program: All facts, as data.
        hints: What could be done, each with its figures.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> step = rx.function(lambda x: (x * x).sum())
        >>> explanation = step.explain(np.ones(2, np.float32))
        >>> explanation.program.memory.arguments, explanation.hints
        (8, ())
    """

    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self.hints: tuple[Hint, ...] = hints_for(program)

    def __repr__(self) -> str:
        parts = [self._title]
        for heading, rows in self._tables():
            parts += ["", heading, _indented(as_text(rows))]
        if self.hints:
            parts += ["", "hints", *(f"  - {hint.text}" for hint in self.hints)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        tables = [as_html(heading, rows) for heading, rows in self._tables()]
        hints = [("hint", "what to do"), *((hint.topic, hint.text) for hint in self.hints)]
        tables += [as_html("hints", hints)] if self.hints else []
        return "".join([as_html("", [(self._title,)]), *tables])

    def __rich__(self) -> Group:
        parts: list[Any] = [Text(self._title, style="bold")]
        for heading, rows in self._tables():
            parts.append(_rich_table(heading, rows))
        parts += [Text(f"- {hint.text}") for hint in self.hints]
        return Group(*parts)

    def show(self, console: Console | None = None) -> None:
        """Prints the tables in the terminal, with its colours and width.

        Args:
            console: Where; the terminal if None.
        """
        (Console(highlight=False) if console is None else console).print(self)

    def to_json(self) -> str:
        """All facts and hints as one JSON object.

        Returns:
            The text; fields have the names of the attributes of ``program``.
        """
        facts = dataclasses.asdict(self.program)
        facts["ring_bytes"], facts["tree_bytes"] = self.program.ring_bytes, self.program.tree_bytes
        facts["memory"]["total"] = self.program.memory.total
        return json.dumps({**facts, "hints": [dataclasses.asdict(hint) for hint in self.hints]})

    @property
    def _title(self) -> str:
        program = self.program
        return f"{program.name}: {program.strategy}, not run"

    def _tables(self) -> list[tuple[str, Rows]]:
        found = [
            ("one step, on each device", _overview(self.program)),
            ("collectives", _collectives(self.program.collectives)),
            ("memory of one device", _memory(self.program)),
            ("to the host and back", _host(self.program)),
            ("programs so far", _traces(self.program)),
        ]
        return [(heading, rows) for heading, rows in found if len(rows) > 1]


def explain(
    step: Callable[..., Any], *args: Any, strategy: Strategy | None = None, **kwargs: Any
) -> Explanation:
    """What a step sends, keeps and computes, from its compiled program, without running it.

    Explained is the call ``step(*args, **kwargs)``, which may contain ``strategy.run``; with
    `strategy` it is ``strategy.run(step, args, kwargs)``. The step is traced and compiled as that
    call would, and the call finds the program; no variable changes. A step that creates variables
    in its first call creates them now.

    Args:
        step: A ``function``, or any Python function, which is seen as if ``function`` were around
            it.
        *args: The arguments of the call.
        strategy: The strategy whose ``run`` is to be explained; None for a call as it stands.
        **kwargs: Arguments by keyword.

    Returns:
        Tables to print: collectives with their lines and variables, bytes sent, memory by kind,
        operations, host transfers, programs so far; and hints with figures.

    Raises:
        TypeError: If `step` cannot be called, or `strategy` is no strategy.
        ContextError: Where there is no single program: in a step, while functions run as plain
            Python, for a function that goes through a dataset, and under a strategy whose replicas
            do not run one program together.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     w = rx.Variable(np.zeros((1000, 10), np.float32), name="w")
        >>> def replica_step(x):
        ...     gradient = rx.grad(lambda: ((x @ w) ** 2).sum(), w)
        ...     return rx.get_replica_context().all_reduce("SUM", gradient)
        >>> @rx.function
        ... def train_step(x):
        ...     w.assign_sub(0.1 * strategy.run(replica_step, args=(x,)))
        >>> batch = strategy.distribute_batch(np.ones((8, 1000), np.float32))
        >>> explanation = rx.explain(train_step, batch)
        >>> [(c.kind, c.num_bytes, c.variables) for c in explanation.program.collectives]
        [('all-reduce', 40000, ('w',))]
        >>> explanation.program.ring_bytes  # 2 (n - 1) / n times as much, with n = 2
        40000.0
    """
    return Explanation(inspect_step(step, args, kwargs, strategy=strategy))


# -- tables ------------------------------------------------------------------------------------


def _overview(program: StepProgram) -> Rows:
    arithmetic, at_least = program.arithmetic, ""
    if arithmetic.is_at_least:
        at_least = ", and more in while loops"
    elif arithmetic.uncounted:
        at_least = f", without {', '.join(arithmetic.uncounted)}"
    spans = program.num_logical_devices
    divided = f", by the {spans} devices of a replica together" if spans > 1 else ""
    rounds = [sum(c.times * way(c).num_rounds for c in program.collectives) for way in _WAYS]
    open_ended = "at least " if any(c.count is None for c in program.collectives) else ""
    rows = [
        ("figure", "value"),
        ("floating-point operations", f"{_number(arithmetic.flops)}{at_least}{divided}"),
        ("bytes read and written", f"{as_size(arithmetic.bytes_accessed)}{divided}"),
        ("operations for each byte", f"{arithmetic.intensity:.1f}"),
        ("memory", as_size(program.memory.total)),
        ("donated", _donated(program)),
    ]
    if program.collectives:
        sent = [as_size(program.ring_bytes), as_size(program.tree_bytes)]
        rows.append(("sent, in rings", f"{open_ended}{sent[0]} in {rounds[0]} rounds"))
        rows.append(("sent, in trees", f"{open_ended}{sent[1]} in {rounds[1]} rounds"))
    return rows


_WAYS = (Collective.ring, Collective.tree)


def _donated(program: StepProgram) -> str:
    size = sum(one.device_bytes for one in program.state if one.is_written)
    if not size:
        return "nothing is written"
    if program.donates:
        return f"{as_size(size)} of variables, which the new values take"
    return f"nothing; {as_size(size)} of variables are kept beside the new values"


def _collectives(found: Sequence[Collective]) -> Rows:
    """One row for all that are alike and of one line."""
    groups: dict[Any, list[Collective]] = collections.defaultdict(list)
    for one in found:
        key = one.kind, one.line, one.group_size, one.over, one.count, one.in_branch
        groups[(*key, one.is_inserted)].append(one)
    rows = [("collective", "arrays", "bytes", "devices", "times", "ring sends", "for", "line")]
    for members in groups.values():
        first = members[0]
        names = list(dict.fromkeys(name for one in members for name in one.variables))
        times = "?" if first.count is None else str(first.count)
        rows.append(
            (
                first.kind + (" (added by XLA)" if first.is_inserted else ""),
                str(sum(one.num_operands for one in members)),
                as_size(sum(one.num_bytes for one in members)),
                f"{first.group_size} {first.over}",
                times + (" in a branch" if first.in_branch else ""),
                as_size(sum(one.times * one.ring().num_bytes for one in members)),
                _listed(names),
                short(first.line),
            )
        )
    return rows


def _memory(program: StepProgram) -> Rows:
    memory = program.memory
    kinds: list[tuple[str, int | None, str]] = [
        ("variables", memory.variables, _layouts(program, slots=False)),
        ("optimizer state", memory.slots, _layouts(program, slots=True)),
        ("arguments", memory.arguments, _listed([one.name for one in program.arguments])),
        ("captured arrays", memory.constants, ""),
        ("results", memory.outputs, ""),
        (
            "temporaries",
            memory.temporaries,
            f"activations, gradients, scratch; the backward pass needs "
            f"{as_size(memory.activations)}"
            if memory.activations
            else "scratch",
        ),
        ("program", memory.code, ""),
        ("together", memory.total, ""),
    ]
    total = max(memory.total, 1)
    rows = [("kind", "bytes", "share", "")]
    for kind, size, note in kinds:
        if size or kind == "together":
            rows.append((kind, as_size(size or 0), f"{(size or 0) / total:.0%}", note))
    return rows


def _layouts(program: StepProgram, *, slots: bool) -> str:
    held = [one for one in program.state if (one.slot_of is not None) == slots]
    counts = collections.Counter(one.layout for one in held)
    return ", ".join(
        f"{count} with {layout}" if layout.startswith("a ") else f"{count} {layout}"
        for layout, count in counts.items()
    )


def _host(program: StepProgram) -> Rows:
    rows = [("what", "to the host", "from the host", "times", "line")]
    for call in program.host_calls:
        times = "?" if call.count is None else str(call.count)
        sizes = as_size(call.num_bytes_to_host), as_size(call.num_bytes_from_host)
        rows.append((call.kind, *sizes, times, short(call.line)))
    for one in program.arguments:
        if one.is_from_host:
            rows.append((f"argument {one.name}", "", as_size(one.device_bytes), "1", ""))
    return rows


def _traces(program: StepProgram) -> Rows:
    if program.num_programs < 2:
        return []
    rows = [("programs", "traces", "why another one")]
    reasons = program.retraces or ("",)
    rows += [("", "", reason) for reason in reasons[:-1]]
    return [*rows, (str(program.num_programs), str(program.num_traces), reasons[-1])]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    if more <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMES_SHOWN])} and {more} more"


def _number(count: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _rich_table(heading: str, rows: Iterable[Sequence[str]]) -> Table:
    columns, *lines = rows
    table = Table(*columns, title=heading, title_justify="left", title_style="bold")
    for line in lines:
        table.add_row(*map(Text, line))
    return table
