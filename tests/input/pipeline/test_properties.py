"""Properties that hold for any pipeline, against plain Python lists."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax.data import Dataset

quick = settings(deadline=None, max_examples=40, database=None)
sizes = st.integers(0, 30)
counts = st.integers(0, 12)
positive = st.integers(1, 12)


def ints(dataset):
    return [int(x) for x in dataset]


def source(size, is_stream):
    dataset = Dataset.range(size)
    return dataset.filter(lambda x: True) if is_stream else dataset


@quick
@given(sizes, positive, st.integers(-(2**40), 2**40), st.booleans())
def test_a_shuffle_is_a_permutation_within_its_windows(size, buffer_size, seed, is_stream):
    dataset = source(size, is_stream).shuffle(buffer_size, seed=seed)
    for _ in range(2):
        order = ints(dataset)
        assert sorted(order) == list(range(size))
        assert all(x // buffer_size == place // buffer_size for place, x in enumerate(order))


@quick
@given(sizes, positive, st.booleans(), st.booleans())
def test_unbatch_undoes_batch(size, batch_size, drop_remainder, is_stream):
    batched = source(size, is_stream).batch(batch_size, drop_remainder)
    kept = size - size % batch_size if drop_remainder else size
    assert ints(batched.unbatch()) == list(range(kept))
    assert all(len(batch) == batch_size for batch in list(batched)[:-1])


@quick
@given(sizes, counts, st.booleans())
def test_take_and_skip_partition(size, count, is_stream):
    dataset = source(size, is_stream)
    assert ints(dataset.take(count)) + ints(dataset.skip(count)) == list(range(size))
    again = dataset.take(count).concatenate(dataset.skip(count))
    assert ints(again) == list(range(size))


@quick
@given(sizes, positive, st.booleans())
def test_shards_partition(size, num_shards, is_stream):
    shards = [ints(source(size, is_stream).shard(num_shards, i)) for i in range(num_shards)]
    assert sorted(x for shard in shards for x in shard) == list(range(size))
    assert all(shard == list(range(i, size, num_shards)) for i, shard in enumerate(shards))


STEPS = {
    "take": (lambda d, n: d.take(n), lambda xs, n: xs[:n]),
    "skip": (lambda d, n: d.skip(n), lambda xs, n: xs[n:]),
    "repeat": (lambda d, n: d.repeat(n % 3), lambda xs, n: xs * (n % 3)),
    "shard": (lambda d, n: d.shard(n + 1, n // 2), lambda xs, n: xs[n // 2 :: n + 1]),
    "map": (lambda d, n: d.map(lambda x: x + n), lambda xs, n: [x + n for x in xs]),
    "filter": (
        lambda d, n: d.filter(lambda x: x % (n + 1) != 1),
        lambda xs, n: [x for x in xs if x % (n + 1) != 1],
    ),
    "concatenate": (lambda d, n: d.concatenate(Dataset.range(n)), lambda xs, n: [*xs, *range(n)]),
    "zip": (
        lambda d, n: Dataset.zip(d, Dataset.range(n)).map(lambda a, b: a * b),
        lambda xs, n: [a * b for a, b in zip(xs, range(n), strict=False)],
    ),
    "endless": (
        lambda d, n: d.repeat().take(n),
        lambda xs, n: (xs * n)[:n],
    ),
    "enumerate": (
        lambda d, n: d.enumerate(n).map(lambda i, x: i - x),
        lambda xs, n: [i - x for i, x in enumerate(xs, n)],
    ),
    "interleave": (
        lambda d, n: d.flat_map(lambda x: Dataset.from_tensors(x).repeat(n % 3)),
        lambda xs, n: [x for x in xs for _ in range(n % 3)],
    ),
    "batches": (lambda d, n: d.batch(n + 1).unbatch(), lambda xs, n: xs),
    "cache": (lambda d, n: d.cache(), lambda xs, n: xs),
    "prefetch": (lambda d, n: d.prefetch(n % 3), lambda xs, n: xs),
    "threads": (
        lambda d, n: d.map(lambda x: -x, num_parallel_calls=2),
        lambda xs, n: [-x for x in xs],
    ),
}
programs = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), counts), max_size=5)


@settings(quick, max_examples=120)
@given(st.integers(0, 9), programs)
def test_any_pipeline_gives_what_lists_give(size, program):
    dataset, values = Dataset.range(size), list(range(size))
    for name, n in program:
        if name == "endless" and not values:
            return  # if only reading can tell that there is nothing, the repeat counts as endless
        step, expected = STEPS[name]
        dataset, values = step(dataset, n), expected(values, n)
        if len(values) > 300:
            return
    assert ints(dataset) == values
    assert ints(dataset) == values  # and once more in the next pass
    if dataset.cardinality() >= 0:
        assert dataset.cardinality() == len(values)
    batch = next(iter(dataset.batch(4)), None)
    np.testing.assert_array_equal([] if batch is None else batch, values[:4])


CHOOSING = {
    "take": lambda d, n: d.take(n),
    "skip": lambda d, n: d.skip(n),
    "shard": lambda d, n: d.shard(n + 1, n // 2),
    "repeat": lambda d, n: d.repeat(1 + n % 3),
    "endless": lambda d, n: d.repeat(),
    "shuffle": lambda d, n: d.shuffle(n + 1, seed=n),
    "fixed": lambda d, n: d.shuffle(n + 1, seed=n, reshuffle_each_iteration=False),
    "cache": lambda d, n: d.cache(),
    "zip": lambda d, n: Dataset.zip(d, d.shuffle(n + 1)).take(n + 9),
}
choices = st.lists(st.tuples(st.sampled_from(sorted(CHOOSING)), counts), max_size=4)


@settings(quick, max_examples=120)
@given(st.integers(1, 20), choices, positive, choices)
def test_rows_of_arrays_are_gathered_in_the_order_in_which_they_are_found_one_by_one(
    size, before, batch_size, after
):
    gathered, one_by_one = Dataset.range(size), Dataset.range(size).map(lambda x: x)
    for name, n in before:
        gathered, one_by_one = (CHOOSING[name](d, n) for d in (gathered, one_by_one))
    gathered, one_by_one = gathered.batch(batch_size), one_by_one.batch(batch_size)
    for name, n in after:
        if name != "zip":
            gathered, one_by_one = (CHOOSING[name](d, n) for d in (gathered, one_by_one))
    for _ in range(2):
        for one, other in zip(gathered.take(9), one_by_one.take(9), strict=True):
            for leaf, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
                assert leaf.dtype == expected.dtype
                assert leaf.tolist() == expected.tolist()
    assert gathered.cardinality() == one_by_one.cardinality()
