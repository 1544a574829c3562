"""The table of the names under tf.distribute: none is missing without a reason."""

import fnmatch

import pytest

from website import tensorflow_table
from website.tensorflow_table import NOTES, REASONS, TO_COME, rows


@pytest.fixture(scope="module")
def table():
    return rows()


def test_the_list_is_that_of_tensorflow(table):
    names = {row.name for row in table}
    assert len(names) == len(table) == 538
    assert {
        "tf.distribute.CrossDeviceOps.batch_reduce_implementation",
        "tf.distribute.ReduceOp.MEAN",
        "tf.distribute.experimental.PreemptionWatcher.preemption_message",
        "tf.compat.v1.distribute.StrategyExtended.read_var",
    } <= names
    by_name = {row.name: row for row in table}
    assert by_name["tf.distribute.Strategy.run"].parameters == ("fn", "args", "kwargs", "options")


def test_no_name_is_missing_without_a_reason(table):
    assert [row.name for row in table if not row.exists and not row.reason] == []


def test_only_what_comes_with_parameter_servers_is_still_to_come(table):
    coming = [row.name for row in table if not row.exists and row.reason == TO_COME]
    assert all("Server" in name or ".coordinator" in name for name in coming)
    final = [row for row in table if not row.exists and row.reason != TO_COME]
    patterns = {p for p in REASONS for row in final if fnmatch.fnmatch(row.name, p)}
    assert {p for p, text in REASONS.items() if text != TO_COME} <= patterns, "leave out the others"


def test_no_parameter_of_tensorflow_is_missing(table):
    assert [(row.name, row.lacks) for row in table if row.lacks] == []


def test_every_note_is_for_a_name(table):
    names = [row.name for row in table]
    assert [pattern for pattern in NOTES if not fnmatch.filter(names, pattern)] == []


def test_the_table_says_how_many_there_are(table):
    assert f"{sum(row.exists for row in table)} exist." in tensorflow_table.counted(table)
    assert {row.status for row in table if row.name.endswith("ReduceOp.SUM")} == {"as documented"}
