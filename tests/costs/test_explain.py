"""What `explain` shows: text, HTML, the terminal's tables, JSON."""

import html.parser
import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import replicax as rx
from tests.contracts.strategies import mirrored


@pytest.fixture(scope="module")
def explanation():
    strategy = mirrored(4)
    with strategy.scope():
        w = rx.Variable(np.ones((1000, 8), np.float32), name="w")
        optimizer = rx.Optimizer(optax.adam(0.1))
    optimizer.build([w])

    @rx.function
    def train_step(x):
        jax.debug.callback(lambda total: None, x.sum())
        loss, gradient = rx.value_and_grad(lambda: ((x @ w) ** 2).sum(), w)
        optimizer.apply_gradients([(gradient, w)])
        return loss

    batch = strategy.distribute_batch(np.ones((16, 1000), np.float32))
    return rx.explain(train_step, batch, strategy=strategy)


def test_the_text_has_every_figure(explanation):
    text = repr(explanation)
    for pattern in (
        r"train_step: MirroredStrategy, 4 replicas, not run\n",
        r"floating-point operations  \d+\.\d k\n",
        r"donated +96\.0 kB of variables, which the new values take\n",
        r"sent, in rings +48\.0 kB in 6 rounds\n",
        r"sent, in trees +64\.0 kB in 4 rounds\n",
        r"all-reduce  1 +32\.0 kB  4 replicas  1 +48\.0 kB +w +test_explain\.py:\d+\n",
        r"variables +32\.0 kB +\d+% +\d with a copy on every replica\n",
        r"optimizer state +64\.0 kB +\d+% +2 with a copy on every replica\n",
        r"arguments +16\.0 kB +\d+% +'x'\n",
        r"temporaries .* the backward pass needs \d+ B\n",
        r"debug_callback +4 B +0 B +1 +test_explain\.py:\d+\n",
        r"- \d+% of the memory of a device is optimizer state",
    ):
        assert re.search(pattern, text), f"{pattern} not in\n{text}"
    assert str(explanation) == text
    assert not re.search(r" +$", text, re.MULTILINE)


class Cells(html.parser.HTMLParser):
    """The texts of a page, and the tags that are open."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.depth = [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.depth += 1

    def handle_endtag(self, tag):
        self.depth -= 1

    def handle_data(self, data):
        self.texts.append(data)


def test_notebooks_show_the_same_as_tables(explanation):
    page = Cells(explanation._repr_html_())
    assert page.depth == 0
    assert {"collectives", "memory of one device", "hints", "all-reduce", "w"} <= set(page.texts)
    assert [hint.text for hint in explanation.hints] == [
        text for text in page.texts if text in {hint.text for hint in explanation.hints}
    ]


def test_the_terminal_gets_tables_of_its_width(explanation):
    out = io.StringIO()
    explanation.show(Console(file=out, width=150, highlight=False))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 150
    for part in ("┃ collective", "│ optimizer state", "48.0 kB in 6 rounds", "test_explain.py:"):
        assert part in text
    narrow = io.StringIO()
    explanation.show(Console(file=narrow, width=60, highlight=False))
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_without_a_console_the_terminal_is_used(explanation, capsys):
    explanation.show()
    assert "train_step: MirroredStrategy, 4 replicas" in capsys.readouterr().out


def test_json_has_all_facts(explanation):
    facts, program = json.loads(explanation.to_json()), explanation.program
    assert facts["ring_bytes"] == program.ring_bytes == 48_000
    assert facts["tree_bytes"] == program.tree_bytes == 64_000
    assert facts["memory"]["total"] == program.memory.total
    assert facts["collectives"][0]["variables"] == ["w"]
    assert facts["arithmetic"]["flops"] == program.arithmetic.flops
    assert [hint["topic"] for hint in facts["hints"]] == [h.topic for h in explanation.hints]
    assert facts["compiled"]["memory"]["temporaries"] == program.memory.temporaries


def test_a_step_that_sends_nothing_has_no_table_for_it():
    text = repr(rx.explain(lambda x: x * 2, jnp.ones(3)))
    assert "collectives" not in text
    assert "sent, in rings" not in text
    assert "nothing is written" in text
    assert text.startswith("test_a_step_that_sends_nothing_has_no_table_for_it.")
    assert ": no strategy, not run\n" in text


def test_what_is_not_known_before_the_step_runs_is_said():
    strategy = mirrored(2)

    def step(x):
        return jax.lax.while_loop(
            lambda x: x.sum() < 100.0,
            lambda x: rx.get_replica_context().all_reduce("SUM", x) @ x,
            rx.get_replica_context().all_reduce("SUM", x),
        )

    batch = strategy.distribute_batch(np.tile(np.eye(2, dtype=np.float32), (2, 1)))
    text = repr(rx.explain(step, batch, strategy=strategy))
    assert re.search(r"all-reduce .* \?  ", text)
    assert "sent, in rings" in text
    assert re.search(r"sent, in rings +at least ", text)
    assert "and more in while loops" in text


def test_many_alike_collectives_have_one_row():
    strategy = mirrored(2, sharding=rx.experimental.Sharding(stage=3))
    with strategy.scope():
        many = [rx.Variable(np.ones(8, np.float32), name=f"v{i}") for i in range(6)]
    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = repr(rx.explain(lambda x: sum((x * v).sum() for v in many), batch, strategy=strategy))
    assert re.search(r"all-gather  6 +96 B +2 replicas +1 +96 B +v0, v1, v2 and 3 more", text)


def test_why_a_function_needed_another_program_is_told():
    step = rx.function(lambda x: x.sum())
    step(jnp.ones(2))
    text = repr(step.explain(jnp.ones(3)))
    assert "programs so far" in text
    assert "argument 'x' changed: array of shape (2,)" in text
    assert "programs so far" not in repr(rx.function(lambda: 1.0).explain())


def test_host_arguments_are_told():
    text = repr(rx.explain(lambda x: x.sum(), np.ones(500, np.float32)))
    assert re.search(r"argument 'x' +2\.0 kB +1", text)


def test_what_logical_devices_do_together_and_what_xla_adds_is_told():
    strategy = rx.MirroredStrategy(
        [f"CPU:{i}" for i in range(4)],
        logical_devices=2,
        partition_rules=[("w", jax.sharding.PartitionSpec("logical_0"))],
    )
    with strategy.scope():
        w = rx.Variable(np.ones((8, 4), np.float32), name="w")

    def step(x):
        return (x @ w).sum()

    batch = strategy.distribute_batch(np.ones((4, 8), np.float32))
    text = repr(rx.explain(step, batch, strategy=strategy))
    assert "step: MirroredStrategy, 2 replicas of 2 logical devices, not run" in text
    assert re.search(r"operations .*, by the 2 devices of a replica together\n", text)
    assert re.search(r"all-reduce \(added by XLA\) .* 2 logical devices .* test_explain\.py:", text)
    assert "1 cut over the logical devices" in text
