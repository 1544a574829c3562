"""Tables as text and as HTML, and what notebooks show of strategies, values and variables."""

import re

import jax
import jax.numpy as jnp

import replicax as rx
from replicax.core.shown import Description, as_html, as_text

DEVICES = ["CPU:0", "CPU:1"]
ROWS = [("replica", "value"), ("0", "<b>")]


def cells(html):
    return re.findall(r"<t[dh]>(.*?)</t[dh]>", html)


def test_the_columns_of_a_text_are_below_one_another():
    assert as_text(ROWS) == "replica  value\n0        <b>"


def test_what_is_in_a_cell_is_text_and_not_html():
    assert as_html("a & b", ROWS) == (
        "<table><caption>a &amp; b</caption><tr><th>replica</th><th>value</th></tr>"
        "<tr><td>0</td><td>&lt;b&gt;</td></tr></table>"
    )


def test_a_description_is_text_with_every_table():
    description = Description("title", [ROWS, ROWS])
    assert description == "title\n" + "\n".join([as_text(ROWS)] * 2)
    assert description._repr_html_().count("<table>") == 2


def test_a_notebook_shows_the_replicas_of_a_strategy():
    html = rx.MirroredStrategy(DEVICES).describe()._repr_html_()
    assert "<caption>MirroredStrategy, 2 replicas</caption>" in html
    assert cells(html)[3:] == ["0", "CPU:0", "cpu", "1", "CPU:1", "cpu"]


def test_a_notebook_shows_a_value_by_replica():
    strategy = rx.MirroredStrategy(DEVICES)
    html = strategy.distribute_batch([1.0, 2.0, 3.0])._repr_html_()
    assert cells(html)[3:] == [
        *("0", "CPU:0", "Array([1., 2.], dtype=float32)"),
        *("1", "CPU:1", "Array([3.], dtype=float32)"),
    ]
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", jnp.ones(())))
    assert cells(total._repr_html_())[5] == "Array(2., dtype=float32)"


def test_a_notebook_shows_the_copies_of_a_variable():
    with rx.MirroredStrategy(DEVICES).scope():
        w = rx.Variable([1.0, 2.0], name="w")
    html = w._repr_html_()
    assert "<caption>MirroredVariable &#x27;w&#x27;</caption>" in html
    assert cells(html)[3:5] == ["0", "CPU:0"]
    assert "numpy=[1., 2.]" in cells(html)[5]


def test_what_is_shown_while_a_step_is_traced_has_no_values():
    strategy = rx.MirroredStrategy(DEVICES)
    with strategy.scope():
        w = rx.Variable(1.0, name="w")
    shown = []

    @rx.function
    def step(x):
        shown.append(w._repr_html_())
        return x

    jax.block_until_ready(strategy.run(step, args=(jnp.ones(()),)))
    assert "shape=()" in shown[0] and "numpy=" not in shown[0]
