"""Replicas that span several logical devices: the same values, really partitioned."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import replicax as rx
import replicax.tf as tf
from replicax.core import notices
from replicax.core.names import REPLICA_AXIS
from tests.strategies.collectives import all_gathers_of

# The all-gathers that make the results of a run whole, which no operation of the program asks for.
RESULTS = {""}

LAYOUTS = {"1 replica of 8": (1, 8), "2 replicas of 4": (2, 4), "4 replicas of 2": (4, 2)}


@pytest.fixture(params=LAYOUTS)
def layout(request):
    """A strategy with logical devices, and one with as many replicas of one device."""
    num_replicas, num_logical = LAYOUTS[request.param]
    many = rx.MirroredStrategy(logical_devices=num_logical)
    assert many.num_replicas_in_sync == num_replicas
    return many, rx.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


@pytest.fixture
def pairs():
    """Four replicas of two logical devices."""
    return rx.MirroredStrategy(logical_devices=2)


def pieces(strategy, rank, dims=(1,)):
    """A partition of the first of `dims` into as many pieces as there are logical devices."""
    numbers = [1] * rank
    numbers[dims[0]] = strategy.extended.mesh.num_logical_devices
    return numbers


def images(strategy, size=16):
    shape = (2 * strategy.num_replicas_in_sync, size, size, 4)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


KERNEL = np.random.default_rng(1).normal(size=(3, 3, 4, 8)).astype(np.float32)


def convolution(x):
    return lax.conv_general_dilated(
        x, KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def attention(x):
    q = x.reshape(x.shape[0], x.shape[1], -1)
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, q) / 8.0)
    return jnp.einsum("bqk,bkd->bqd", weights, q)


def in_scan(x):
    return lax.scan(lambda c, _: (jnp.tanh(c) + x, None), x, None, length=3)[0]


COMPUTATIONS = {
    "elementwise": lambda x: jnp.sin(x) * 2.0,
    "convolution": convolution,
    "einsum": lambda x: jnp.einsum("bhwc,hwd->bcd", x, jnp.ones((*x.shape[1:3], 5))),
    "attention": attention,
    "scan": in_scan,
    "gradient of a convolution": jax.grad(lambda x: (convolution(x) ** 2).sum()),
}


def local(strategy, value):
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_a_partitioned_computation_gives_the_values_of_one_device(layout, name):
    many, single = layout

    def run(strategy, split):
        @rx.function
        def step(x):
            if split:
                x = strategy.experimental_split_to_logical_devices(x, pieces(strategy, 4))
            return COMPUTATIONS[name](x)

        return local(
            strategy, strategy.run(step, args=(strategy.distribute_batch(images(single)),))
        )

    for one, other in zip(run(many, True), run(single, False), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_a_split_really_partitions_the_computation(layout):
    many, _ = layout
    count = many.extended.mesh.num_logical_devices

    @rx.function
    def step(x):
        return convolution(many.experimental_split_to_logical_devices(x, pieces(many, 4)))

    compiled = step.lower_run(many, many.distribute_batch(images(many))).compile()
    assert all_gathers_of(compiled) == RESULTS
    program = compiled.as_text()
    convolutions = re.findall(r"= f32\[([\d,]+)\][^=]*convolution\(", program)
    assert convolutions
    for shape in convolutions:
        assert 16 // count in map(int, shape.split(","))
    assert "collective-permute" in program  # the rows at the edges of a piece


def test_a_split_along_two_dims_takes_the_axes_apart():
    strategy = rx.MirroredStrategy(logical_devices=8)

    @rx.function
    def step(x):
        return jnp.cos(strategy.experimental_split_to_logical_devices(x, [1, 2, 4, 1]))

    program = step.lower_run(strategy, images(strategy)).compile()
    assert re.search(r"f32\[2,8,4,4\][^=]*cosine", program.as_text())
    assert all_gathers_of(program) == RESULTS


def test_replicated_values_are_whole_on_every_device(pairs):
    @rx.function
    def step(x):
        x = pairs.experimental_split_to_logical_devices(x, [1, 2, 1, 1])
        x = pairs.experimental_replicate_to_logical_devices(jnp.sin(x))
        return jnp.cos(x)

    batch = pairs.distribute_batch(images(pairs))
    compiled = step.lower_run(pairs, batch).compile()
    (gather,) = all_gathers_of(compiled)
    assert gather in ("sharding_constraint", "sin")  # what asks for it, or what it is of: XLA's say
    program = compiled.as_text()
    assert re.search(r"f32\[2,8,16,4\][^=]*sine", program)
    assert re.search(r"f32\[2,16,16,4\][^=]*cosine", program)
    expected = np.cos(np.sin(images(pairs)))
    result = np.concatenate(local(pairs, pairs.run(step, args=(batch,))))
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_variables_and_reductions_work_as_ever(layout):
    many, single = layout

    def train(strategy):
        with strategy.scope():
            w = rx.Variable(np.full((4, 3), 0.1, np.float32))
            seen = rx.Variable(
                0.0,
                synchronization=rx.VariableSynchronization.ON_READ,
                aggregation=rx.VariableAggregation.SUM,
            )
            optimizer = rx.Optimizer(optax.adam(0.1))

        @rx.function
        def step(x):
            x = strategy.experimental_split_to_logical_devices(x, pieces(strategy, 3))
            seen.assign_add(x.sum())
            loss = lambda: rx.compute_average_loss(((x @ w - 1.0) ** 2).mean((1, 2)))  # noqa: E731
            optimizer.apply_gradients([(rx.grad(loss, w), w)])

        rng = np.random.default_rng(3)
        for _ in range(5):
            batch = rng.normal(size=(12, 8, 4)).astype(np.float32)
            strategy.run(step, args=(strategy.distribute_batch(batch),))
        strategy.run(lambda: seen.assign_add(1.0) and None)  # eager and compiled take turns
        copies = [np.asarray(copy) for copy in strategy.experimental_local_results(w)]
        return w.numpy(), seen.numpy(), copies

    weights, seen, copies = train(many)
    expected, expected_seen, _ = train(single)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_allclose(seen, expected_seen, rtol=1e-4)
    assert len(copies) == many.num_replicas_in_sync
    for copy in copies:
        np.testing.assert_array_equal(copy, weights)


def test_uneven_batches_and_datasets_are_divided_among_replicas(pairs):
    dataset = pairs.distribute_dataset(np.arange(10.0), batch_size=8)
    steps = [local(pairs, batch) for batch in dataset]
    assert [[part.tolist() for part in step] for step in steps] == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[8], [9], [], []],
    ]
    double = rx.function(lambda x: x * 2)
    batch = pairs.distribute_batch(np.arange(7.0))
    assert np.asarray(pairs.gather(pairs.run(double, args=(batch,)), axis=0)).tolist() == [
        2.0 * i for i in range(7)
    ]


# -- errors ------------------------------------------------------------------------------------

WRONG_SPLITS = {
    "rank": ([2, 1, 1], r"for 3 dims; the tensor has shape \(4, 6\).*each of its 2 dims"),
    "product": ([2, 2], r"product is 4; a replica has 2 logical devices"),
    "product of too few": ([1, 1], r"product is 1; a replica has 2 logical devices"),
    "divisibility": (
        [1, 2],
        r"dim 1 of the tensor, which has shape \(4, 5\), is 5, .*divided by 2",
    ),
    "no ints": ([1.0, 2.0], "expected ints of at least 1"),
    "zero": ([0, 2], "expected ints of at least 1"),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", WRONG_SPLITS)
def test_a_split_that_cannot_be_is_refused(pairs, case, compiled):
    numbers, text = WRONG_SPLITS[case]
    shape = (4, 5) if case == "divisibility" else (4, 6)

    def step():
        return pairs.experimental_split_to_logical_devices(jnp.ones(shape), numbers)

    with pytest.raises(ValueError, match=text):
        pairs.run(rx.function(step) if compiled else step)


@pytest.mark.parametrize("device_id", [2, -1, 1.0, True])
def test_a_logical_device_that_is_not_there_is_refused(pairs, device_id):
    with pytest.raises(ValueError, match="has the logical devices 0 to 1 here"):
        pairs.run(lambda: pairs.experimental_assign_to_logical_device(jnp.ones(2), device_id))


REDUCING_COLLECTIVES = {
    "psum": lax.psum,
    "pmean": lax.pmean,
    "pmax": lax.pmax,
    "pmin": lax.pmin,
    "psum_scatter": lambda value, axis: lax.psum_scatter(value, axis, tiled=True),
    "psum in a loop": lambda value, axis: lax.fori_loop(
        0, 2, lambda i, total: lax.psum(total, axis), value
    ),
}


@pytest.mark.parametrize("name", REDUCING_COLLECTIVES)
def test_a_collective_of_the_users_own_in_bfloat16_is_refused(pairs, name):
    """XLA aborts the process when it compiles one for CPU devices."""

    def step(dtype):
        return REDUCING_COLLECTIVES[name](jnp.ones(4, dtype), REPLICA_AXIS)

    with pytest.raises(rx.ReplicaxError, match=r"test_logical_devices.py:\d+ combines bfloat16"):
        pairs.run(rx.function(lambda: step(jnp.bfloat16)))
    pairs.run(rx.function(lambda: step(jnp.float32)))


# -- assigned to one logical device ------------------------------------------------------------

ROWS = np.arange(32, dtype=np.float32).reshape(16, 2)


def conditionals_of(strategy, step):
    """How many branches the compiled step has, and its result."""
    fn, batch = rx.function(step), strategy.distribute_batch(ROWS)
    result = strategy.run(fn, args=(batch,))
    text = fn.lower_run(strategy, batch).compile().as_text()
    results = [local(strategy, leaf) for leaf in jax.tree.leaves(result)]
    return len(re.findall(r" conditional\(", text)), results


def towers(x):
    kernel = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])
    x = lax.scan(lambda c, _: (jnp.tanh(c @ kernel), None), x, None, length=3)[0]
    x = lax.while_loop(lambda s: s[1] < 2, lambda s: (jnp.sin(s[0]), s[1] + 1), (x, 0))[0]
    return jax.nn.relu(x), jax.checkpoint(jnp.cos)(x).astype(jnp.bfloat16), x > 0


def repeated_sine(x, assign):
    return lax.scan(lambda c, _: (assign(jnp.sin(c)), None), x, None, length=2)[0]


def exponential(x, assign):
    return jax.value_and_grad(lambda x: assign(jnp.exp(x)).sum())(x / 8)


# What is assigned by `assign`, and how many branches of one device that makes.
ASSIGNED = {
    "an operation": (lambda x, assign: assign(jnp.sin(x)) * 2, 1),
    "a jitted function": (lambda x, assign: assign(jax.jit(towers)(x)), 1),
    "in a jitted function": (lambda x, assign: jax.jit(lambda x: assign(jnp.sin(x)) * 2)(x), 1),
    "two, each on its own": (lambda x, assign: assign([jnp.sin(x), jnp.cos(x)]), 2),
    "in a loop": (repeated_sine, 1),
    "under a gradient": (exponential, 1),
    "minus zero": (lambda x, assign: assign(-(x * 0)), 1),
    "a complex number": (lambda x, assign: assign(lax.complex(x, -x)), 1),
    "an argument": (lambda x, assign: assign(x), 0),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_what_is_assigned_to_a_logical_device_is_a_branch_that_it_takes(layout, name):
    fn, num_branches = ASSIGNED[name]
    many, single = layout
    last = many.extended.mesh.num_logical_devices - 1

    def assign(value):
        return many.experimental_assign_to_logical_device(value, last)

    found, results = conditionals_of(many, lambda x: fn(x, assign))
    assert found == num_branches
    _, expected = conditionals_of(single, lambda x: fn(x, lambda value: value))
    for got, wanted in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        np.testing.assert_array_equal(np.copysign(1, got.real), np.copysign(1, wanted.real))


def test_an_assigned_operation_is_computed_once_for_each_replica(layout):
    many, _ = layout
    calls = []

    def twice(x):
        calls.append(1)
        return np.asarray(x) * 2

    @rx.function
    def step(x):
        y = jax.jit(lambda x: jax.pure_callback(twice, jax.typeof(x), x))(x)
        return many.experimental_assign_to_logical_device(y, 1)

    result = many.run(step, args=(many.distribute_batch(ROWS),))
    np.testing.assert_array_equal(np.concatenate(local(many, result)), 2 * ROWS)
    assert len(calls) == many.num_replicas_in_sync


def test_a_gradient_through_a_run_passes_what_is_assigned(pairs):
    def loss(w):
        def step(x):
            return pairs.experimental_assign_to_logical_device(jnp.sin(x * w), 1).sum()

        return pairs.reduce("SUM", pairs.run(step, args=(batch,)), axis=None)

    batch = pairs.distribute_batch(ROWS)
    gradient = rx.function(jax.grad(loss))(jnp.float32(0.5))
    np.testing.assert_allclose(gradient, (np.cos(ROWS * 0.5) * ROWS).sum(), rtol=1e-4)


def test_a_sum_over_replicas_is_made_by_all_wherever_it_is_assigned(pairs):
    def step(x):
        total = rx.get_replica_context().all_reduce("SUM", x.sum())
        return pairs.experimental_assign_to_logical_device(total, 1) * 1

    found, (totals,) = conditionals_of(pairs, step)
    assert found == 0
    np.testing.assert_array_equal(totals, [ROWS.sum()] * 4)


def test_in_a_branch_that_some_replicas_take_every_logical_device_computes(pairs):
    def assigned(x):
        return pairs.experimental_assign_to_logical_device(jnp.sin(x), 1)

    def step(x):
        return lax.cond(x.sum() > 100, assigned, lambda x: x, x)

    result = pairs.run(rx.function(step), args=(pairs.distribute_batch(ROWS),))
    wanted = [np.sin(x) if x.sum() > 100 else x for x in np.split(ROWS, 4)]
    np.testing.assert_allclose(np.concatenate(local(pairs, result)), np.concatenate(wanted), 1e-5)


def test_with_one_logical_device_the_annotations_are_the_identity():
    for strategy in (rx.MirroredStrategy(["CPU:0", "CPU:1"]), rx.get_strategy()):
        value = jnp.ones((2, 3))
        assert strategy.experimental_split_to_logical_devices(value, [1, 1]) is value
        assert strategy.experimental_replicate_to_logical_devices(value) is value
        assert strategy.experimental_assign_to_logical_device(value, 0) is value
        with pytest.raises(ValueError, match="product is 2; a replica has 1 logical device here"):
            strategy.experimental_split_to_logical_devices(value, [2, 1])
        with pytest.raises(ValueError, match="a replica has one logical device here, 0"):
            strategy.experimental_assign_to_logical_device(value, 1)


def test_an_eager_run_checks_and_returns_the_value(pairs):
    seen = []

    def step(x):
        seen.append(pairs.experimental_split_to_logical_devices(x, [2]) is x)
        seen.append(pairs.experimental_replicate_to_logical_devices(x) is x)

    pairs.run(step, args=(pairs.distribute_batch(np.ones(8)),))
    assert seen == [True] * 8


@pytest.mark.parametrize("number", [3, 0, -1, 2.0, True, 16])
def test_a_number_of_logical_devices_that_does_not_divide_is_refused(number):
    with pytest.raises(ValueError, match="divides the number of devices, 8"):
        rx.MirroredStrategy(logical_devices=number)


# -- as documented -----------------------------------------------------------------------------


def tpu_strategy(computation_shape, num_replicas):
    notices.forget(("no TPU", ""))
    with pytest.warns(rx.ReplicaxWarning, match="There is no TPU on this machine"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    device_assignment = tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=computation_shape, num_replicas=num_replicas
    )
    strategy = tf.distribute.TPUStrategy(resolver, experimental_device_assignment=device_assignment)
    assert strategy.cluster_resolver is resolver
    return strategy


def model(x):
    return jnp.tanh(convolution(x)).sum(axis=(1, 2))


def test_the_documented_split_over_8_logical_devices():
    strategy = tpu_strategy([1, 2, 2, 2], 1)
    inputs = images(strategy)

    @tf.function()
    def step_fn(inputs):
        inputs = strategy.experimental_split_to_logical_devices(inputs, [1, 2, 4, 1])
        return model(inputs)

    iterator = iter(strategy.experimental_distribute_dataset([inputs]))
    result = strategy.run(step_fn, args=(next(iterator),))
    np.testing.assert_allclose(result, model(inputs), rtol=1e-4, atol=1e-4)


def replicate_example(strategy, *, corrected):
    batch = images(strategy)
    inputs = (batch, np.zeros((len(batch), 8), np.float32))

    @tf.function()
    def step_fn(inputs):
        images, labels = inputs
        chosen = images if corrected else inputs
        images = strategy.experimental_split_to_logical_devices(chosen, [1, 2, 4, 1])
        output = model(images)
        labels = strategy.experimental_replicate_to_logical_devices(labels)
        output = strategy.experimental_replicate_to_logical_devices(output)
        return ((labels - output) ** 2).mean()

    iterator = iter(strategy.experimental_distribute_dataset([inputs]))
    return strategy.run(step_fn, args=(next(iterator),)), (model(batch) ** 2).mean()


def test_the_documented_replication_in_its_corrected_form():
    loss, expected = replicate_example(tpu_strategy([1, 2, 2, 2], 1), corrected=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_documented_replication_as_printed_raises():
    with pytest.raises(ValueError, match="product is 8; a replica has 2 logical devices"):
        replicate_example(tpu_strategy([1, 1, 1, 2], 4), corrected=False)


def test_the_documented_assignment_on_4_replicas_of_2():
    strategy = tpu_strategy([1, 1, 1, 2], 4)

    @tf.function()
    def step_fn(inputs):
        output = tf.add(inputs, inputs)
        return strategy.experimental_assign_to_logical_device(output, 0)

    iterator = iter(strategy.experimental_distribute_dataset([np.arange(8.0)]))
    result = strategy.run(step_fn, args=(next(iterator),))
    assert np.concatenate(local(strategy, result)).tolist() == [2.0 * i for i in range(8)]
    assert strategy.extended.worker_devices == ("CPU:0", "CPU:2", "CPU:4", "CPU:6")
    with tf.device(strategy.extended.worker_devices[1]):
        assert tf.zeros(2).devices() == {jax.devices()[2]}


def test_the_documented_values_placed_on_devices():
    notices.forget(("no TPU", ""))
    with pytest.warns(rx.ReplicaxWarning, match="There is no TPU on this machine"):
        alone = tf.distribute.TPUStrategy()
    for strategy in (alone, tpu_strategy([1, 1, 1, 2], 4)):
        worker_devices = strategy.extended.worker_devices
        multiple_values = []
        for i in range(strategy.num_replicas_in_sync):
            with tf.device(worker_devices[i]):
                multiple_values.append(tf.constant(1.0))

        def value_fn(ctx, values=tuple(multiple_values)):
            return values[ctx.replica_id_in_sync_group]

        distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
        results = strategy.experimental_local_results(distributed_values)
        assert all(one is other for one, other in zip(results, multiple_values, strict=True))
        devices = [device for value in results for device in value.devices()]
        assert devices == list(strategy.extended.mesh.devices)
        total = strategy.reduce("SUM", distributed_values, axis=None)
        assert float(total) == strategy.num_replicas_in_sync


def test_an_assignment_of_another_machine_is_refused():
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[1, 1, 1, 2], device_coordinates=[[[0, 0, 0, 0], [0, 0, 0, 1]]]
    )
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, [1, 1, 1, 2])
    resolver = rx.cluster_resolver.SimpleClusterResolver(rx.cluster_resolver.ClusterSpec({}))
    with pytest.raises(ValueError, match="for 1 tasks with 2 devices each; there are 1 with 8"):
        rx.TPUStrategy(resolver, assignment)
    with pytest.raises(TypeError, match="expected a DeviceAssignment"):
        rx.TPUStrategy(resolver, "all")
