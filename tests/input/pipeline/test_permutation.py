"""Computed permutations: bijections, spread evenly, the same for ever."""

import collections

import numpy as np
import pytest

from replicax.input.pipeline import permutation
from replicax.input.pipeline.permutation import mixed_seed, permuted, permuted_one

LARGE = (1 << 16) + 3


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 1 << 16, LARGE, 300_001])
def test_every_number_comes_once(size):
    order = permuted(np.arange(size), size, seed=5)
    assert np.array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [10, LARGE])
def test_one_by_one_gives_the_same(size):
    places = [0, 1, 7, size - 1]
    assert [permuted_one(place, size, 3) for place in places] == permuted(
        np.array(places), size, 3
    ).tolist()


def test_a_network_permutes_small_sizes_as_well():
    for size in range(1, 40):
        order = permutation._feistel(np.arange(size, dtype=np.uint64), size, 9)
        assert sorted(order.tolist()) == list(range(size))


def test_the_orders_of_three_are_equally_frequent():
    orders = collections.Counter(
        tuple(permuted(np.arange(3), 3, mixed_seed(1, epoch)).tolist()) for epoch in range(1200)
    )
    assert len(orders) == 6
    assert all(150 < count < 250 for count in orders.values())


@pytest.mark.parametrize("size", [1000, LARGE])
def test_neighbouring_seeds_have_nothing_in_common(size):
    orders = [permuted(np.arange(size), size, mixed_seed(1, epoch)) for epoch in range(4)]
    for i, one in enumerate(orders):
        assert np.mean(one == np.arange(size)) < 0.01
        for other in orders[:i]:
            assert np.mean(one == other) < 0.01
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.1


def test_an_order_never_changes():
    assert mixed_seed(1, 2, 3) == MIXED
    assert permuted(np.arange(8), 8, seed=1).tolist() == OF_EIGHT
    assert permuted(np.arange(4), LARGE, seed=1).tolist() == OF_MANY


MIXED = 7702586659592502839
OF_EIGHT = [0, 5, 4, 1, 2, 6, 7, 3]
OF_MANY = [49067, 38215, 1235, 37500]
