"""Large components of the CPU's devices are added where they are."""

import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.backend import host_memory
from replicax.backend.runahead import RUN_AHEAD
from tests.backend.fresh_process import run_fresh

LARGE = host_memory.MIN_BYTES // 4


def per_replica(strategy, rows, dtype=np.float32):
    """A component of `LARGE` numbers for each replica: its number, over and over."""
    parts = [np.full(rows, 1 + i, dtype) for i in range(strategy.num_replicas_in_sync)]
    return strategy.distribute_batch(np.concatenate(parts))


@pytest.fixture
def four():
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(4)])


def test_aligned_memory_is_adopted_by_the_device():
    host = host_memory.aligned((LARGE,), np.dtype(np.float32))
    assert jax.device_put(host).unsafe_buffer_pointer() == host.ctypes.data


@pytest.mark.parametrize(("op", "expected"), [("SUM", 10.0), ("MEAN", 2.5)])
@pytest.mark.parametrize("rows", [LARGE, LARGE + 7])
def test_a_large_value_is_reduced_without_a_program(four, op, expected, rows):
    value = per_replica(four, rows)
    with jax.no_tracing():
        result = four.reduce(op, value, axis=None)
    np.testing.assert_array_equal(result, np.full(rows, expected, np.float32))


def test_the_result_is_an_uncommitted_array_on_the_first_device(four):
    result = four.reduce("SUM", per_replica(four, LARGE), axis=None)
    assert not result.committed
    assert result.devices() == {jax.devices()[0]}
    assert result.dtype == jnp.float32


def test_the_bits_are_those_of_a_sum_in_the_order_of_the_replicas(four):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=LARGE).astype(np.float32) for _ in range(4)]
    value = four.distribute_batch(np.concatenate(parts))
    in_order = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    np.testing.assert_array_equal(four.reduce("SUM", value, axis=None), in_order)


def test_components_keep_their_values_and_the_result_shares_none_of_their_memory(four):
    value = per_replica(four, LARGE)
    first = four.reduce("SUM", value, axis=None)
    second = four.reduce("SUM", value, axis=None)
    assert first.unsafe_buffer_pointer() != second.unsafe_buffer_pointer()
    for i, part in enumerate(four.experimental_local_results(value)):
        assert part[0] == 1 + i
        assert part.unsafe_buffer_pointer() != first.unsafe_buffer_pointer()


def test_a_nest_of_small_and_large_values_keeps_its_order(four):
    value = {
        "a": per_replica(four, LARGE),
        "b": per_replica(four, 3),
        "c": per_replica(four, LARGE),
    }
    result = four.reduce("SUM", value, axis=None)
    assert {key: array.shape for key, array in result.items()} == {
        "a": (LARGE,),
        "b": (3,),
        "c": (LARGE,),
    }
    assert all(np.all(np.asarray(array) == 10) for array in result.values())


def test_a_mean_of_integers_is_a_float_for_large_values_too(four):
    result = four.reduce("MEAN", per_replica(four, LARGE, np.int32), axis=None)
    assert result.dtype == jnp.float32
    assert result[0] == 2.5


def test_an_overflow_is_an_infinity_and_no_warning(four):
    value = four.distribute_batch(np.full(4 * LARGE, 3e38, np.float32))
    assert np.isinf(four.reduce("SUM", value, axis=None)[0])


def test_narrow_types_are_left_to_the_devices(four):
    value = four.distribute_batch(np.ones(8 * LARGE, jnp.bfloat16))
    assert four.reduce("SUM", value, axis=None).dtype == jnp.bfloat16


def test_an_own_way_of_reducing_is_used_for_large_values_too():
    added = []

    def add(values):
        added.append(len(values))
        return sum(values[1:], start=values[0])

    strategy = rx.MirroredStrategy(
        ["CPU:0", "CPU:1"],
        cross_device_ops=rx.ReductionToOneDevice(accumulation_fn=add),
    )
    value = strategy.distribute_batch(np.ones(2 * LARGE, np.float32))
    assert strategy.reduce("SUM", value, axis=None)[0] == 2
    assert added


def ready(strategy, values):
    value = strategy.distribute_batch(values)
    jax.block_until_ready(value._as_packed())
    return value


@pytest.mark.parametrize(("op", "expected"), [("SUM", 10.0), ("MEAN", 2.5)])
def test_small_values_that_are_there_are_reduced_without_a_program(four, op, expected):
    value = ready(four, np.float32([1, 2, 3, 4]))
    losses = four.run(rx.function(lambda x: x.sum()), args=(value,))
    jax.block_until_ready(losses._as_packed())
    RUN_AHEAD.wait()
    result = four.reduce(op, {"loss": losses, "row": value}, axis=None)
    assert RUN_AHEAD.num_in_flight == 0
    assert (result["loss"].shape, result["row"].shape) == ((), (1,))
    assert result["loss"] == result["row"][0] == expected
    assert not result["loss"].committed
    assert result["loss"].devices() == {jax.devices()[0]}


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("num_replicas", [2, 3, 7, 8])
def test_whether_a_value_is_there_changes_no_bit(monkeypatch, op, num_replicas):
    strategy = rx.MirroredStrategy(jax.devices()[:num_replicas])
    rng = np.random.default_rng(num_replicas)
    shape = (num_replicas * 50,)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-40, 1e-44])
    rows = [
        rng.normal(size=shape),
        rng.normal(size=shape) * 10.0 ** rng.integers(-20, 20, size=shape),
        rng.normal(size=shape) * 1e-38,
        np.where(rng.random(shape) < 0.1, -rng.random(shape), -0.0),
        rng.choice(special, size=shape),
        rng.integers(-(2**31), 2**31, size=shape),
    ]
    for row in rows:
        dtype = np.int32 if row.dtype.kind == "i" else np.float32
        value = ready(strategy, row.astype(dtype))
        soon = np.asarray(strategy.reduce(op, value, axis=None))
        with monkeypatch.context() as patch:
            patch.setattr(host_memory, "MAX_READY_BYTES", -1)
            late = np.asarray(strategy.reduce(op, value, axis=None))
        assert soon.dtype == late.dtype
        assert soon.tobytes() == late.tobytes()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give memory back themselves")
def test_memory_that_was_freed_in_pieces_is_given_back():
    run_fresh(
        """
        import pathlib
        import numpy as np
        from replicax.backend import host_memory

        def in_use():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

        pieces = [np.ones(30_000, np.uint8) for _ in range(5_000)]
        pieces = pieces[::100]  # what stays keeps the rest from being given back at once
        before = in_use()
        host_memory.give_back_free()
        assert before - in_use() > 100e6
        """
    )
