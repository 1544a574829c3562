"""Every error of contexts, values, run and collectives: its type, its text, and life after it."""

import pytest

import replicax as rx
from tests.contracts.executors import EXECUTORS
from tests.contracts.mistakes import CONTEXTS, VALUES, context, ids
from tests.contracts.run_mistakes import COLLECTIVES, RUN, STRATEGIES

ROWS = CONTEXTS + VALUES + RUN + COLLECTIVES + STRATEGIES


@pytest.mark.parametrize(
    "row, executor",
    [pytest.param(row, name, id=f"{row.name}-{name}") for row in ROWS for name in row.executors],
)
def test_a_mistake_is_an_error_that_says_what_to_do(two, row, executor):
    run = EXECUTORS[executor]
    with pytest.raises(row.error, match=row.text) as caught:
        row.call(two, run)
    assert not rx.has_strategy()
    assert not rx.in_cross_replica_context()
    text = str(caught.value)
    assert text and "Traceback" not in text
    total = run(two, lambda x: context().all_reduce("SUM", x + 1), (ids(two),))
    assert float(total) == 3.0


def test_every_row_has_a_name_of_its_own():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
