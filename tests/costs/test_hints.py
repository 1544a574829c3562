"""Each hint where it appears, with its figures, and where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.costs import hints
from replicax.costs.hints import hints_for
from replicax.costs.program import inspect_step
from tests.contracts.strategies import mirrored

N = 4
LARGE = 300_000


def all_reduce(value):
    return rx.get_replica_context().all_reduce("SUM", value)


def told_of(step, *args, strategy=None, compiles=False, **kwargs):
    """The hints for a step, by topic."""
    found = inspect_step(step, args, kwargs, strategy=strategy, compiles=compiles)
    return {hint.topic: hint for hint in hints_for(found)}


def trained(transformation, size, strategy, num_variables=1):
    """A training step and its batch."""
    with strategy.scope():
        params = [
            rx.Variable(np.ones(size, np.float32), name=f"v{i}") for i in range(num_variables)
        ]
        optimizer = rx.Optimizer(transformation)
    optimizer.build(params)

    def step(x):
        gradients = rx.grad(lambda: sum((p.sum() * x.sum()) ** 2 for p in params), params)
        optimizer.apply_gradients([(gradients, params)])

    return step, strategy.distribute_batch(np.ones((2 * N, 3), np.float32))


def hints_of_training(transformation, size=1000, stage=None, num_replicas=N, num_variables=1):
    sharding = None if stage is None else rx.experimental.Sharding(stage=stage)
    strategy = mirrored(num_replicas, sharding=sharding)
    step, batch = trained(transformation, size, strategy, num_variables)
    return told_of(step, batch, strategy=strategy)


# -- memory ------------------------------------------------------------------------------------


def test_optimizer_state_that_is_the_same_everywhere_can_be_split():
    hint = hints_of_training(optax.adam(0.1))["optimizer state"]
    assert hint.saves_bytes == 2 * 4 * (1000 - 250)
    assert (
        "% of the memory of a device is optimizer state, the same on all 4 replicas: " in hint.text
    )
    assert hint.text.endswith("Sharding(stage=1) saves 6.0 kB per device.")


def test_optimizer_state_that_is_split_absent_or_alone_has_no_hint():
    assert "optimizer state" not in hints_of_training(optax.adam(0.1), stage=1)
    assert "optimizer state" not in hints_of_training(optax.sgd(0.1))
    assert "optimizer state" not in hints_of_training(optax.adam(0.1), num_replicas=1)


def test_what_the_hint_promises_is_what_the_stage_saves():
    whole = inspect(stage=None)
    for stage, topic in ((1, "optimizer state"), (3, "weights")):
        hint = next(hint for hint in hints_for(whole) if hint.topic == topic)
        kind = "slots" if stage == 1 else "variables"
        split = inspect(stage=stage)
        saved = getattr(whole.memory, kind) - getattr(split.memory, kind)
        assert hint.saves_bytes == saved


def inspect(stage):
    sharding = None if stage is None else rx.experimental.Sharding(stage=stage)
    strategy = mirrored(N, sharding=sharding)
    step, batch = trained(optax.adam(0.1), 1001, strategy)
    return inspect_step(step, (batch,), strategy=strategy, compiles=False)


def test_weights_that_are_the_same_everywhere_can_be_split():
    hint = hints_of_training(optax.sgd(0.1), stage=1)["weights"]
    assert hint.saves_bytes == 4 * 750
    assert "Sharding(stage=3) saves 3.0 kB per device, and gathers each weight" in hint.text


def test_weights_that_are_split_or_a_small_share_have_no_hint():
    assert "weights" not in hints_of_training(optax.sgd(0.1), stage=3)
    strategy = mirrored(N)
    with strategy.scope():
        w = rx.Variable(np.ones(3, np.float32))
    batch = strategy.distribute_batch(np.ones((2 * N, 1000), np.float32))
    assert "weights" not in told_of(lambda x: w.sum() * x.sum(), batch, strategy=strategy)


def test_values_that_are_kept_twice_could_be_donated():
    v = rx.Variable(np.ones(1000, np.float32))
    kept = rx.function(lambda: v.assign_add(jnp.ones(1000)), donate=False)
    assert told_of(kept)["donation"].saves_bytes == 4000
    assert "donation" not in told_of(rx.function(lambda: v.assign_add(jnp.ones(1000))))
    assert "donation" not in told_of(rx.function(lambda: v * 1, donate=False))


def test_a_whole_array_on_every_replica_could_be_a_batch():
    rows = np.ones((8, 1000), np.float32)
    strategy = mirrored(N)
    hint = told_of(lambda x: x.sum(), rows, strategy=strategy)["whole argument"]
    assert hint.saves_bytes == 32_000 * 3 / 4
    assert hint.text.startswith(
        "argument 'x' is a whole array of 32.0 kB on each of 4 replicas, sent there in each step: "
    )
    on_device = told_of(lambda x: x.sum(), jnp.asarray(rows), strategy=strategy)["whole argument"]
    assert "sent there" not in on_device.text


def test_a_batch_a_small_array_and_one_replica_get_their_arguments_whole_without_a_hint():
    rows, strategy = np.ones((8, 1000), np.float32), mirrored(N)
    batch = strategy.distribute_batch(rows)
    assert "whole argument" not in told_of(lambda x: x.sum(), batch, strategy=strategy)
    assert "whole argument" not in told_of(lambda x: x.sum(), rows[:2], strategy=strategy)
    assert "whole argument" not in told_of(lambda x: x.sum(), rows, strategy=mirrored(1))


def test_large_captured_arrays_could_be_arguments():
    large, small = jnp.ones(LARGE), jnp.ones(10)
    hint = told_of(lambda i: large[i], jnp.int32(0))["captured arrays"]
    assert hint.text.startswith("the function has captured arrays of 1.2 MB, which are constants")
    assert "captured arrays" not in told_of(lambda i: small[i], jnp.int32(0))
    assert "captured arrays" not in told_of(lambda large, i: large[i], large, jnp.int32(0))


def layers(checkpoint):
    ws = [rx.Variable(np.eye(8, dtype=np.float32)) for _ in range(12)]

    def layer(w, x):
        return jnp.sin(jnp.sin(jnp.sin(x @ w)))

    def step(x):
        def loss(values):
            y = x
            for w in values:
                y = (jax.checkpoint(layer) if checkpoint else layer)(w, y)
            return y.sum()

        return [g.sum() for g in jax.grad(loss)([w.value for w in ws])]

    return step


def test_activations_that_fill_the_memory_could_be_computed_again():
    x = jnp.ones((10_000, 8))
    hint = told_of(layers(checkpoint=False), x, compiles=True)["activations"]
    assert "are kept from the forward pass for the backward pass: jax.checkpoint" in hint.text
    assert "activations" not in told_of(lambda x: jnp.sin(jnp.sin(x)).sum(), x, compiles=True)
    assert "activations" not in told_of(layers(checkpoint=False), x[:10], compiles=True)


def test_large_results_could_be_smaller():
    x = jnp.ones(LARGE)
    assert "each step returns 1.2 MB per device" in told_of(lambda x: x * 2, x)["results"].text
    assert "results" not in told_of(lambda x: (x * 2).sum(), x)


def test_new_values_of_variables_that_are_not_donated_are_no_results():
    v = rx.Variable(np.ones(LARGE, np.float32))
    told = told_of(rx.function(lambda: v.assign_add(jnp.ones(LARGE)), donate=False))
    assert "results" not in told
    assert told["donation"].saves_bytes == 4 * LARGE


# -- what is sent ------------------------------------------------------------------------------


def test_gradients_whose_slots_are_split_could_be_split_too():
    hint = hints_of_training(optax.adam(0.1), stage=1)["gradients"]
    assert hint.sends_less == 4000 * 3 / 4
    assert "Sharding(stage=2) sends 3.0 kB less per device and step" in hint.text
    whole, split = (inspect(stage=stage).ring_bytes for stage in (1, 2))
    less = {h.topic: h for h in hints_for(inspect(stage=1))}["gradients"].sends_less
    assert whole - split == pytest.approx(less, abs=16)  # 1001 is no multiple of 4


@pytest.mark.parametrize("stage", [None, 2, 3])
def test_gradients_that_are_split_or_wanted_whole_have_no_hint(stage):
    assert "gradients" not in hints_of_training(optax.adam(0.1), stage=stage)


def test_many_small_all_reduces_could_be_one():
    strategy = mirrored(N)
    batch = strategy.distribute_batch(np.ones((2 * N, 12), np.float32))

    def one_by_one(x):
        return [all_reduce(x[:, i].sum()) for i in range(12)]

    def together(x):
        return all_reduce([x[:, i].sum() for i in range(12)])

    hint = told_of(one_by_one, batch, strategy=strategy)["small all-reduces"]
    assert hint.text.startswith("12 small all-reduces send 48 B in all, most of them at ")
    assert f"saves {11 * 6} messages one after the other" in hint.text
    assert "small all-reduces" not in told_of(together, batch, strategy=strategy)


def test_small_variables_could_stay_whole():
    many = hints_of_training(optax.sgd(0.1), size=8, stage=3, num_variables=10)
    assert many["small parts"].text.startswith(
        "10 of the all-gathers are for variables of 320 B in all: "
    )
    assert "MinSizePartitioner(65536, max_shards=4)" in many["small parts"].text
    assert "small parts" not in hints_of_training(optax.sgd(0.1), size=8, stage=3)
    large = hints_of_training(optax.sgd(0.1), size=70_000, stage=3, num_variables=10)
    assert "small parts" not in large


def test_a_sum_in_a_loop_could_be_made_after_it():
    strategy = mirrored(N)
    batch = strategy.distribute_batch(np.ones((N * 5, 3), np.float32))

    def inside(x):
        return lax.scan(lambda total, row: (total + all_reduce(row), None), jnp.zeros(3), x)[0]

    def outside(x):
        return all_reduce(lax.scan(lambda total, row: (total + row, None), jnp.zeros(3), x)[0])

    def needed(x):
        return lax.scan(lambda carry, row: (all_reduce(carry + row), None), jnp.zeros(3), x)[0]

    hint = told_of(inside, batch, strategy=strategy)["collective in a loop"]
    assert hint.sends_less == 4 * 12 * 2 * 3 / 4
    assert "is executed 5 times by a loop, and could be once, after the loop: " in hint.text
    for step in (outside, needed):
        assert "collective in a loop" not in told_of(step, batch, strategy=strategy)


def logical(rules):
    strategy = rx.MirroredStrategy(
        [f"CPU:{i}" for i in range(4)], logical_devices=2, partition_rules=rules
    )
    with strategy.scope():
        w = rx.Variable(np.ones((256, 256), np.float32), name="w")
    batch = strategy.distribute_batch(np.ones((512, 256), np.float32))
    return told_of(lambda x: (x @ w).sum(), batch, strategy=strategy, compiles=True)


def test_what_the_partitioner_sends_is_told():
    hint = logical([("w", PartitionSpec("logical_0"))])["partitioner"]
    assert hint.text.startswith("XLA's partitioner adds ")
    assert "test_hints.py:" in hint.text
    assert "partitioner" not in logical([])


def test_a_value_that_crosses_to_the_host_is_told_with_its_line():
    def step(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), np.float32), x)

    hint = told_of(step, jnp.ones(4))["host callback"]
    line = step.__code__.co_firstlineno + 1
    assert hint.text == (
        f"32 B cross to the host and back each step, in the pure_callback at test_hints.py:{line}, "
        "and the device waits for Python."
    )
    assert "host callback" not in told_of(jnp.sin, jnp.ones(4))


def test_a_callback_in_a_loop_says_how_often():
    def looped(x):
        def body(carry, _):
            jax.debug.callback(lambda value: None, carry)
            return carry, None

        return lax.scan(body, x, length=7)[0]

    assert "7 times each step" in told_of(looped, 1.0)["host callback"].text


def test_a_large_host_array_could_stay_on_the_device():
    host = np.ones(LARGE, np.float32)
    hint = told_of(lambda x: x.sum(), host)["host argument"]
    assert "a host array of 1.2 MB, is sent to the device in each step" in hint.text
    assert "host argument" not in told_of(lambda x: x.sum(), jnp.asarray(host))
    assert "host argument" not in told_of(lambda x: x.sum(), host[:10])


def test_a_function_that_is_traced_again_and_again_says_why():
    step = rx.function(lambda x: x.sum())
    for size in (2, 3):
        step(jnp.ones(size))
    assert "retraces" not in told_of(step, jnp.ones(2))
    hint = told_of(step, jnp.ones(4))["retraces"]
    assert "has had 3 programs so far, the last because argument 'x' changed" in hint.text


def test_every_hint_is_looked_for():
    looked = {look.__name__ for look in hints._HINTS}
    given = {
        name
        for name, value in vars(hints).items()
        if callable(value)
        and getattr(value, "__module__", "") == hints.__name__
        and not name.startswith("_")
    }
    assert given - looked == {"Hint", "hints_for", "short"}
