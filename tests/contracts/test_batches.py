"""One global batch divided among replicas, and 64-bit values that do not fit."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import local_ids

Pair = collections.namedtuple("Pair", "image label")


def chunks(size, count):
    """Contiguous chunks of ceil(size / count), written another way than the library does."""
    width = (size + count - 1) // count
    return [list(range(size))[i * width : (i + 1) * width] for i in range(count)]


@pytest.mark.parametrize("size", [0, 1, 5, 7, 8, 9, 24])
def test_a_batch_is_divided_into_contiguous_chunks(strategy, size):
    batch = np.arange(size, dtype=np.int32)
    parts = strategy.experimental_local_results(strategy.distribute_batch(batch))
    assert [np.asarray(part).tolist() for part in parts] == chunks(
        size, strategy.num_replicas_in_sync
    )
    assert all(part.dtype == jnp.int32 for part in parts)


@pytest.mark.parametrize("size", [3, 8])
def test_the_other_dims_stay_whole(strategy, size):
    batch = np.arange(size * 6, dtype=np.float32).reshape(size, 2, 3)
    value = strategy.distribute_batch(batch)
    parts = strategy.experimental_local_results(value)
    assert all(part.shape[1:] == (2, 3) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), batch)
    np.testing.assert_array_equal(strategy.gather(value, axis=0), batch)


def test_a_nest_is_divided_leaf_by_leaf(strategy, execute):
    batch = {
        "x": np.arange(5.0, dtype=np.float32),
        "y": Pair(np.ones((5, 2), np.float32), np.arange(5)),
        "none": None,
    }
    value = strategy.distribute_batch(batch)
    assert set(value) == {"x", "y", "none"}
    assert isinstance(value["y"], Pair)
    assert value["none"] is None

    def replica_fn(batch):
        return batch["x"].sum() + batch["y"].label.sum() + batch["y"].image.sum()

    result = execute(strategy, replica_fn, args=(value,))
    assert float(strategy.reduce("SUM", result, axis=None)) == 10.0 + 10.0 + 10.0


def test_with_one_replica_the_arrays_are_bare(strategy):
    value = strategy.distribute_batch(np.ones(4, np.float32))
    bare = strategy.num_replicas_in_sync == 1
    assert isinstance(value, jax.Array if bare else rx.PerReplica)


def test_an_empty_component_keeps_its_other_dims(many):
    value = many.distribute_batch(np.ones((1, 3), np.float32))
    shapes = [part.shape for part in many.experimental_local_results(value)]
    assert shapes == [(1, 3)] + [(0, 3)] * (many.num_replicas_in_sync - 1)


def test_a_batch_may_be_a_jax_array(strategy):
    value = strategy.distribute_batch(jnp.arange(8))
    np.testing.assert_array_equal(strategy.gather(value, axis=0), np.arange(8))


def test_the_users_array_may_change_after_it_was_distributed(strategy):
    batch = np.ones(8, np.float32)
    uneven = np.ones(5, np.float32)
    values = [strategy.distribute_batch(batch), strategy.distribute_batch(uneven)]
    batch[:] = uneven[:] = 7.0
    totals = [float(strategy.reduce("SUM", value, axis=0)) for value in values]
    assert totals == [8.0, 5.0]


def test_strings_stay_on_the_host_and_enter_no_compiled_run(strategy, compiled):
    value = strategy.distribute_batch(np.array(["a", "b", "c"]))
    parts = strategy.experimental_local_results(value)
    assert np.concatenate(parts).tolist() == ["a", "b", "c"]
    assert all(isinstance(part, np.ndarray) for part in parts)
    seen = []
    strategy.run(seen.append, args=(value,))
    ids = local_ids(strategy)
    assert [part.tolist() for part in seen] == [part.tolist() for part in parts][
        slice(ids.start, ids.stop)
    ]
    with pytest.raises(ValueError, match=r"cannot enter a compiled (run|program)"):
        compiled(strategy, lambda v: v, args=(value,))


BAD_BATCHES = {
    "scalar": (1.0, r"leaf \(the batch itself\) of the batch is a scalar"),
    "scalar leaf": ({"x": np.ones(2), "n": 3}, r"leaf \['n'\] of the batch is a scalar"),
    "sizes": ({"x": np.ones(8), "y": np.ones(7)}, r"\['x'\]: 8, \['y'\]: 7"),
    "object": (np.array([object(), object()]), "no array"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_batch_that_cannot_be_divided_is_refused(strategy, case):
    batch, text = BAD_BATCHES[case]
    with pytest.raises(ValueError, match=text):
        strategy.distribute_batch(batch)


def test_a_value_that_is_already_distributed_is_refused(many):
    with pytest.raises(ValueError, match="is PerReplica; expected an array on the host"):
        many.distribute_batch({"x": many.distribute_batch(np.ones(8))})


# -- 64 bits -----------------------------------------------------------------------------------

TOO_LARGE = {
    "int64": np.array([1, 2**40 + 5]),
    "uint64": np.array([2**40], np.uint64),
    "negative int64": np.array([-(2**40)]),
    "float64": np.array([1.0, 1e300]),
    "complex128": np.array([1e300j]),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_batch_that_does_not_fit_32_bits_names_the_leaf_and_the_setting(strategy, case):
    with pytest.raises(ValueError, match=r"\['x'\].*does not fit.*jax_enable_x64"):
        strategy.distribute_batch({"x": TOO_LARGE[case]})


def test_a_batch_that_fits_is_narrowed(strategy):
    value = strategy.distribute_batch({"i": np.arange(8), "f": np.ones(8)})
    for leaf, dtype in (("i", jnp.int32), ("f", jnp.float32)):
        parts = strategy.experimental_local_results(value[leaf])
        assert all(part.dtype == dtype for part in parts)


@pytest.mark.parametrize("case", TOO_LARGE)
def test_an_argument_that_does_not_fit_32_bits_names_the_setting(strategy, execute, case):
    with pytest.raises(ValueError, match=r"\['x'\].*does not fit.*jax_enable_x64"):
        execute(strategy, lambda x: x["x"] + 1, args=({"x": TOO_LARGE[case]},))
    assert float(execute(strategy, lambda x: x, args=(1.0,))) == 1.0


def test_a_lone_argument_that_does_not_fit_32_bits_names_the_setting(strategy, execute):
    with pytest.raises(ValueError, match=r"argument.*\[0\].*does not fit.*jax_enable_x64"):
        execute(strategy, lambda x: x + 1, args=(np.array([2**40]),))


def test_a_component_that_does_not_fit_32_bits_names_the_setting(strategy, execute):
    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: {"x": np.array([2**40])}
    )
    with pytest.raises(ValueError, match=r"argument.*\['x'\].*does not fit.*jax_enable_x64"):
        execute(strategy, lambda v: v["x"] + 1, args=(value,))


def test_a_python_int_that_does_not_fit_is_never_truncated(strategy, execute):
    value = strategy.experimental_distribute_values_from_function(lambda ctx: 2**40 + 5)
    with pytest.raises((ValueError, OverflowError), match=r"does not fit|too large|overflow"):
        execute(strategy, lambda x: jnp.add(x, 1), args=(value,))


def test_an_initial_value_that_does_not_fit_32_bits_names_the_variable(strategy):
    with (
        strategy.scope(),
        pytest.raises(ValueError, match=r"'big'.*does not fit.*jax_enable_x64"),
    ):
        rx.Variable(np.array([2**40]), name="big")


def test_with_64_bit_types_on_nothing_is_narrowed(strategy, execute):
    with jax.enable_x64(True):
        value = strategy.distribute_batch(np.full(8, 2**40))
        result = execute(strategy, lambda x: x + 1, args=(value,))
        parts = strategy.experimental_local_results(result)
        assert {part.dtype for part in parts} == {np.dtype(np.int64)}
        assert {int(v) for part in parts for v in np.asarray(part)} == {2**40 + 1}
