"""Which collectives of a loop could be executed once, outside of it."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax.costs.loops import AFTER, BEFORE
from tests.costs.test_traced import all_reduce, found_in

ROWS = np.ones((8, 3), np.float32)


def scanned(body, x):
    return lax.scan(body, jnp.zeros(3), x)


def adds(total, row):
    return total + all_reduce(row), None


def adds_means(total, row):
    return all_reduce(row) / 4 + total, None


def adds_a_nest(totals, row):
    sums = all_reduce((row, 2 * row[:1]))
    return (totals[0] + sums[0], totals[1] + sums[1]), None


def collects(carry, row):
    return carry, all_reduce(row)


def looks_at_the_sum(total, row):
    return total + all_reduce(row * total), None


def squares(total, row):
    return total + all_reduce(row) ** 2, None


def multiplies(total, row):
    summed = all_reduce(row)
    return total + summed * summed, None


def divides_by_the_sum(total, row):
    return total + 2.0 / all_reduce(row), None


def puts_beside_others(total, row):
    return total + jnp.concatenate([all_reduce(row[:1]), row[1:]]), None


def carries(carry, row):
    return all_reduce(carry + row), None


def takes_the_largest(largest, row):
    return jnp.maximum(largest, all_reduce(row)), None


@pytest.mark.parametrize(
    ("body", "could_be"),
    [
        (adds, AFTER),
        (adds_means, AFTER),
        (collects, None),  # together they are as many bytes
        (looks_at_the_sum, None),
        (squares, None),
        (multiplies, None),
        (divides_by_the_sum, None),
        (puts_beside_others, None),
        (carries, None),
        (takes_the_largest, None),
    ],
)
def test_sums_that_are_only_added_up_can_be_made_after_the_loop(body, could_be):
    (found,) = found_in(lambda x: scanned(body, x), ROWS).collectives
    assert found.could_be == could_be


def test_a_nest_in_one_collective_can_be_made_after_the_loop():
    def step(x):
        return lax.scan(adds_a_nest, (jnp.zeros(3), jnp.zeros(1)), x)

    assert {one.could_be for one in found_in(step, ROWS).collectives} == {AFTER}


def test_what_is_the_same_in_every_round_can_be_made_before_the_loop():
    def step(x):
        scale = x.sum()
        return lax.scan(lambda carry, row: (carry * all_reduce(scale * 2), None), x[0], x)

    (found,) = found_in(step, ROWS).collectives
    assert found.could_be == BEFORE


def test_the_largest_is_no_sum():
    def body(total, row):
        return total + lax.pmax(row, rx.REPLICA_AXIS), None

    (found,) = found_in(lambda x: scanned(body, x), ROWS).collectives
    assert found.could_be is None


def test_outside_of_loops_and_in_loops_of_one_round_there_is_nothing_to_gain():
    assert [one.could_be for one in found_in(all_reduce).collectives] == [None]
    one_row = np.ones((4, 3), np.float32)
    (found,) = found_in(lambda x: scanned(adds, x), one_row).collectives
    assert found.could_be is None
