"""Variables that are split over the replicas: what travels, what is seen, what is refused."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.core.errors import ContextError, TraceError
from replicax.variables.sharded import ShardedVariable
from tests.contracts.strategies import mirrored

SUM = rx.VariableAggregation.SUM
NUM_REPLICAS = [1, 2, 3, 8]
SHAPES = [(8,), (7,), (3, 5), (2, 1, 3)]


def zero(num_replicas, stage=3):
    return mirrored(num_replicas, sharding=rx.experimental.Sharding(stage=stage))


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, name="w", **options)


def numbers(shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def collectives(strategy, fn, *args):
    text = rx.function(fn).lower_run(strategy, *args).compile().as_text()
    kinds = "all-gather|reduce-scatter|all-reduce"
    return collections.Counter(re.findall(rf"= \S+ ({kinds})(?:-start)?\(", text))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_replicas", NUM_REPLICAS)
def test_a_split_variable_reads_and_assigns_as_a_mirrored_one(num_replicas, shape):
    strategy = zero(num_replicas)
    v = variable(strategy, numbers(shape), aggregation=SUM)
    assert isinstance(v, ShardedVariable) == (1 < num_replicas <= v.size)
    np.testing.assert_array_equal(v.numpy(), numbers(shape))

    @rx.function
    def step(x):
        before = v * 1.0
        v.assign_add(x * jnp.ones(shape))
        return before, v * 1.0

    x = np.arange(1.0, num_replicas + 1.0, dtype=np.float32)
    batch = strategy.distribute_batch(x)
    results = strategy.run(step, args=(batch,))
    expected = numbers(shape), numbers(shape) + x.sum()
    for result, value in zip(results, expected, strict=True):
        for copy in strategy.experimental_local_results(result):
            np.testing.assert_allclose(copy, value)
    v.assign(2.0 * numbers(shape))
    v.assign_sub(numbers(shape))
    np.testing.assert_array_equal(v.numpy(), numbers(shape))
    for copy in strategy.experimental_local_results(v):
        np.testing.assert_array_equal(copy, numbers(shape))


@pytest.mark.parametrize("num_replicas", [2, 3, 8])
def test_every_replica_stores_its_part(num_replicas):
    v = variable(zero(num_replicas), numbers((3, 5)))
    np.testing.assert_array_equal(np.concatenate(v._parts), numbers((15,)))
    stored = v._storage.array
    assert {shard.data.shape for shard in stored.addressable_shards} == {
        (1, -(-15 // num_replicas))
    }
    assert len({shard.device for shard in stored.addressable_shards}) == num_replicas


def test_a_variable_is_gathered_once_and_freed_where_it_is_not_read():
    strategy = zero(4)
    v, unused = variable(strategy, numbers((4, 6))), variable(strategy, numbers((4, 6)))

    def step(x):
        return (x * v).sum() + (v * v).sum(), unused.shape[0] * x

    batch = strategy.distribute_batch(np.ones((4, 6), np.float32))
    assert collectives(strategy, step, batch) == {"all-gather": 1}


def test_a_reduction_to_a_split_variable_is_a_reduce_scatter():
    strategy = zero(4)
    v = variable(strategy, np.zeros((3, 5), np.float32))

    @rx.experimental.elementwise
    def descend(v, gradient, rate):
        assert v.shape == gradient.shape == (4,)
        return v.assign_sub(rate * gradient)

    def merge_fn(strategy, gradient):
        total = strategy.extended.reduce_to("MEAN", gradient, destinations=v)
        strategy.extended.update(v, descend, args=(total,), kwargs={"rate": 0.5})

    def step(x):
        rx.get_replica_context().merge_call(merge_fn, args=(x.sum() * numbers((3, 5)),))

    batch = strategy.distribute_batch(np.float32([1, 2, 3, 4]))
    assert collectives(strategy, step, batch) == {"reduce-scatter": 1}
    strategy.run(rx.function(step), args=(batch,))
    np.testing.assert_allclose(v.numpy(), -0.5 * 2.5 * numbers((3, 5)))


def test_an_update_that_is_not_declared_elementwise_sees_the_whole():
    strategy = zero(4)
    v = variable(strategy, np.zeros((3, 5), np.float32))
    seen = []

    def normalise(v, gradient):
        seen.append((v.shape, gradient.shape))
        v.assign_sub(gradient / jnp.linalg.norm(gradient))

    def merge_fn(strategy, gradient):
        total = strategy.extended.reduce_to("SUM", gradient, destinations=v)
        strategy.extended.update(v, normalise, args=(total,))

    def step(x):
        rx.get_replica_context().merge_call(merge_fn, args=(x.sum() * numbers((3, 5)),))

    batch = strategy.distribute_batch(np.float32([1, 2, 3, 4]))
    for run in (rx.function(step), step):
        v.assign(np.zeros((3, 5), np.float32))
        strategy.run(run, args=(batch,))
        expected = -numbers((3, 5)) / np.linalg.norm(numbers((3, 5)))
        np.testing.assert_allclose(v.numpy(), expected, rtol=1e-5)
    assert set(seen) == {((3, 5), (3, 5))}


def test_a_declared_update_gets_the_parts_of_slots_and_of_whole_values():
    strategy = zero(3)
    v = variable(strategy, np.zeros(5, np.float32))
    with strategy.scope(), strategy.extended.colocate_vars_with(v):
        slot = rx.Variable(np.zeros(5, np.float32), trainable=False, name="slot")
    assert isinstance(slot, ShardedVariable)

    @rx.experimental.elementwise
    def update(v, slot, total):
        assert v.shape == slot.shape == total.shape == (2,)
        slot.assign(0.5 * slot + total)
        v.assign_add(slot.value)

    def merge_fn(strategy, total):
        strategy.extended.update(v, update, args=(slot, total))

    @rx.function
    def step():
        context = rx.get_replica_context()
        context.merge_call(merge_fn, args=(context.all_reduce("SUM", numbers((5,))),))

    for _ in range(2):
        strategy.run(step)
    np.testing.assert_allclose(slot.numpy(), 1.5 * 3 * numbers((5,)))
    np.testing.assert_allclose(v.numpy(), 2.5 * 3 * numbers((5,)))


def test_a_value_that_differs_between_replicas_is_refused():
    strategy = zero(2)
    v = variable(strategy, np.zeros(4, np.float32))

    def drifting(x):
        def merge_fn(strategy):
            v.assign(x)  # a local of the replica function

        rx.get_replica_context().merge_call(merge_fn)

    batch = strategy.distribute_batch(numbers((8,)))
    with pytest.raises(TraceError, match="value assigned to variable 'w' differs between replicas"):
        strategy.run(rx.function(drifting), args=(batch,))
    uneven = strategy.distribute_batch(numbers((7,)))

    def of_its_shape(x):
        def merge_fn(strategy):
            v.assign(jnp.full(4, float(len(x))))

        rx.get_replica_context().merge_call(merge_fn)

    with pytest.raises(TraceError, match="value assigned to variable 'w' differs between replicas"):
        strategy.run(rx.function(of_its_shape), args=(uneven,))


def test_reads_and_writes_in_scan_cond_and_cross_replica_code():
    strategy = zero(3)
    v = variable(strategy, numbers((5,)), aggregation=SUM)

    @rx.function
    def step():
        def body(total, _):
            v.assign_add(jnp.ones(5))
            return total + v.value, None

        total, _ = jax.lax.scan(body, jnp.zeros(5), None, length=2)
        return jax.lax.cond(total[0] > 0, lambda: v * 2.0, lambda: v * 0.0)

    @rx.function
    def program():
        v.assign(v + 1.0)
        doubled = strategy.run(step)
        v.assign_sub(numbers((5,)))
        return strategy.reduce("MEAN", doubled, axis=None), v * 1.0

    doubled, rest = program()
    np.testing.assert_allclose(doubled, 2 * (numbers((5,)) + 7))
    np.testing.assert_allclose(rest, np.full(5, 7.0))
    np.testing.assert_allclose(v.numpy(), np.full(5, 7.0))


def test_a_variable_created_in_a_compiled_run_is_split_too():
    strategy = zero(3)
    made = []

    @rx.function
    def step(x):
        if not made:
            made.append(rx.Variable(x.sum() * jnp.arange(5.0), name="made"))
        return made[0] * 1.0

    batch = strategy.distribute_batch(np.float32([2, 3, 4]))
    result = strategy.run(step, args=(batch,))
    assert isinstance(made[0], ShardedVariable)
    for copy in (*strategy.experimental_local_results(result), made[0].numpy()):
        np.testing.assert_allclose(copy, 2 * np.arange(5.0))


def test_where_the_parts_are_and_how_a_variable_looks():
    strategy = zero(2)
    v = variable(strategy, numbers((3,)))
    assert repr(v) == (
        "ShardedVariable in 2 parts: <rx.Variable 'w' shape=(3,) dtype=float32, numpy=[1., 2., 3.]>"
    )
    drawing = repr(rx.visualize_value(v))
    assert "[0:2] on CPU:0" in drawing and "[2:3] on CPU:1" in drawing
    title = strategy.describe().splitlines()[0]
    assert title == "MirroredStrategy, 2 replicas, slots, gradients and parameters split over them"
    assert zero(2, stage=1).describe().splitlines()[0].endswith("slots split over them")
    assert rx.testing.check_mirrored(strategy).names == ("w",)


def test_parts_exist_in_compiled_replicas_only():
    v = variable(zero(2), numbers((4,)))
    with pytest.raises(ContextError, match="read_part of variable 'w' outside of a compiled"):
        v._read_part()


@pytest.mark.filterwarnings("ignore:There is no TPU")
@pytest.mark.parametrize("make", [rx.TPUStrategy, rx.MultiWorkerMirroredStrategy])
def test_other_strategies_split_too(make):
    strategy = make(sharding=rx.experimental.Sharding(stage=3))
    w = variable(strategy, numbers((9,)), aggregation=SUM)
    assert [part.size for part in w._parts] == [2, 2, 2, 2, 1, 0, 0, 0]
    strategy.run(rx.function(lambda: w.assign(w * 2.0 / 8)))
    np.testing.assert_array_equal(w.numpy(), 2 * numbers((9,)))


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match=r"sharding is 3; expected an experimental\.Sharding"):
        mirrored(2, sharding=3)


@pytest.mark.quick
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_replicas_of_several_logical_devices_share_what_is_not_cut_over_these(stage):
    def train(strategy):
        with strategy.scope():
            cut = rx.Variable(numbers((4, 8)) / 32, name="cut", partition_dimensions=cuts)
            whole = rx.Variable(numbers((8, 2)) / 16, name="whole")
            optimizer = rx.Optimizer(optax.adam(0.1))

        @rx.function
        def step(x):
            def loss_fn():
                return rx.compute_average_loss(jnp.sum(jnp.tanh(x @ cut) @ whole, axis=1) ** 2)

            loss, gradients = rx.value_and_grad(loss_fn, [cut, whole])
            optimizer.apply_gradients(zip(gradients, [cut, whole], strict=True))
            return loss

        batch = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
        for size in (6, 4, 5):
            strategy.run(step, args=(strategy.distribute_batch(batch[:size]),))
        return cut, whole, optimizer

    cuts = None
    expected = [v.numpy() for v in train(mirrored(2))[:2]]
    cuts = [1, 2]
    sharding = rx.experimental.Sharding(stage=stage)
    cut, whole, optimizer = train(mirrored(4, logical_devices=2, sharding=sharding))

    np.testing.assert_allclose(cut.numpy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(whole.numpy(), expected[1], rtol=1e-5)
    slot, cut_slot = (optimizer.slots_of(v)["0/mu"] for v in (whole, cut))

    def held(v):  # by each of the four devices
        return [shard.data.size for shard in v._storage.array.addressable_shards]

    assert held(slot) == [8] * 4  # a half on each replica
    assert held(whole) == [8 if stage == 3 else 16] * 4
    assert held(cut) == held(cut_slot) == [16] * 4  # a half on each logical device
