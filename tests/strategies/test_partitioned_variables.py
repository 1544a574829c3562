"""Variables in pieces over the logical devices of a replica mean what whole ones mean."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import replicax as rx
import replicax.tf as tf

SUM, ONCE = rx.VariableAggregation.SUM, rx.VariableAggregation.ONLY_FIRST_REPLICA
ON_READ = rx.VariableSynchronization.ON_READ
VALUE = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
BATCH = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)

LAYOUTS = {
    "1 replica, columns": (8, [1, 8]),
    "2 replicas, columns": (4, [1, 4]),
    "2 replicas, rows": (4, [4, 1]),
    "2 replicas, both": (4, [2, 2]),
    "2 replicas, part of the devices": (4, PartitionSpec(None, "logical_1")),
    "4 replicas, rows": (2, [2, 1]),
}


@pytest.fixture(params=LAYOUTS)
def layout(request):
    """A strategy with logical devices, and how to cut variables under it."""
    number, pieces = LAYOUTS[request.param]
    return rx.MirroredStrategy(logical_devices=number), pieces


@pytest.fixture
def fours():
    """Two replicas of four logical devices."""
    return rx.MirroredStrategy(logical_devices=4)


def variable(strategy, pieces, value=VALUE, **options):
    with strategy.scope():
        return rx.Variable(value, name="w", partition_dimensions=pieces, **options)


def piece_shapes(v):
    return {shard.data.shape for shard in v._storage.live_array().addressable_shards}


def local(strategy, value):
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


# -- what a variable is ------------------------------------------------------------------------


def test_each_device_has_its_piece_only(layout):
    strategy, pieces = layout
    v = variable(strategy, pieces)
    numbers = (1, 2) if isinstance(pieces, PartitionSpec) else tuple(pieces)
    assert v.partition_dimensions == numbers
    assert piece_shapes(v) == {(8 // numbers[0], 16 // numbers[1])}
    assert v.shape == VALUE.shape
    assert v.devices() == set(jax.devices())
    np.testing.assert_array_equal(v.numpy(), VALUE)
    for copy in strategy.experimental_local_results(v):
        np.testing.assert_array_equal(copy.value, VALUE)
        assert len(copy.value.devices()) == 1
    rx.testing.check_mirrored(strategy, v)


def test_a_whole_variable_says_so(fours):
    with fours.scope():
        assert rx.Variable(VALUE).partition_dimensions == (1, 1)
        explicit = rx.Variable(VALUE, partition_dimensions=PartitionSpec())
    assert explicit.partition_dimensions == (1, 1)
    assert explicit.devices() == {jax.devices()[0], jax.devices()[4]}
    assert rx.Variable(VALUE, partition_dimensions=[1, 1]).partition_dimensions == (1, 1)
    assert rx.Variable(1.0).partition_dimensions == ()


def test_the_array_that_a_variable_was_made_from_stays_its_owners(fours):
    mine = VALUE.copy()
    array = jnp.asarray(VALUE)
    v, w = variable(fours, [1, 4], mine), variable(fours, [1, 4], array)
    mine[:] = 0.0

    @rx.function
    def double():
        v.assign(v * 2.0)
        w.assign(w * 2.0)

    double()
    double()
    np.testing.assert_array_equal(v.numpy(), 4 * VALUE)
    np.testing.assert_array_equal(w.numpy(), 4 * VALUE)
    np.testing.assert_array_equal(array, VALUE)


def test_a_read_is_a_snapshot_and_does_not_keep_the_next_step_from_donating(fours):
    v = variable(fours, [4, 1], aggregation=SUM)
    step = rx.function(lambda: v.assign_add(jnp.ones_like(VALUE)))
    fours.run(step)
    seen, pieces = v.value, v._storage.live_array()
    fours.run(step)
    assert pieces.is_deleted()
    np.testing.assert_allclose(seen, VALUE + 2.0, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), VALUE + 4.0, rtol=1e-6)


# -- using it ----------------------------------------------------------------------------------


def in_scan(v, x):
    def body(carry, _):
        v.assign_add(jnp.full(VALUE.shape, 0.5))
        return carry + (x @ v).sum(), None

    return lax.scan(body, 0.0, None, length=3)[0]


def in_cond(v, x):
    def add():
        v.assign_add(jnp.ones(VALUE.shape))

    lax.cond(jnp.sum(v) > -1e9, add, lambda: None)
    return x @ v


def in_while(v, x):
    def body(i):
        v.assign_add(jnp.ones(VALUE.shape) * 0.1)
        return i + 1

    lax.while_loop(lambda i: i < 4, body, 0)
    return (x @ v).sum()


def of_gradient(v, x):
    loss, gradient = rx.value_and_grad(lambda: (jnp.tanh(x @ v) ** 2).sum(), v)
    v.assign_sub(0.1 * gradient)
    return loss


def of_updates(v, x):
    def merge(strategy, gradient):
        total = strategy.extended.reduce_to("SUM", gradient, destinations=v)
        strategy.extended.update(v, lambda copy, g: copy.assign_sub(0.1 * g), args=(total,))

    gradient = rx.grad(lambda: (x @ v).sum(), v)
    rx.get_replica_context().merge_call(merge, args=(gradient,))
    return v + 0.0


STEPS = {
    "read": lambda v, x: x @ v,
    "assign": lambda v, x: v.assign(x.mean() * v).value.sum(),
    "assign_add": lambda v, x: v.assign_add(x.T @ jnp.ones((len(x), 16))).value,
    "assign_sub twice": lambda v, x: v.assign_sub(v * 0.1).assign_sub(v * 0.1).value + x.sum(),
    "gradient": of_gradient,
    "update": of_updates,
    "vmap": lambda v, x: jax.vmap(lambda row: row @ v)(x),
    "checkpoint": lambda v, x: rx.grad(
        lambda: jax.checkpoint(lambda x: jnp.sin(x @ v).sum())(x), v
    ),
    "jit inside": lambda v, x: jax.jit(lambda x: x @ v)(x),
}
COMPILED_ONLY = {"scan": in_scan, "cond": in_cond, "while": in_while}


def run_step(strategy, pieces, step, executor, batch=BATCH):
    v = variable(strategy, pieces, aggregation=ONCE if step is STEPS["assign"] else SUM)

    def replica_fn(x):
        return step(v, x)

    x = strategy.distribute_batch(batch)
    for _ in range(2):
        if executor == "eager":
            result = strategy.run(replica_fn, args=(x,))
        elif executor == "compiled run":
            result = strategy.run(rx.function(replica_fn), args=(x,))
        else:
            result = rx.function(lambda x: strategy.run(replica_fn, args=(x,)))(x)
    return v, local(strategy, result), v.numpy()


@pytest.mark.filterwarnings("ignore:variable 'w' is read inside:replicax.ReplicaxWarning")
@pytest.mark.parametrize("executor", ["eager", "compiled run", "function"])
@pytest.mark.parametrize("name", [*STEPS, *COMPILED_ONLY])
def test_a_step_does_to_pieces_what_it_does_to_the_whole(layout, name, executor):
    strategy, pieces = layout
    if executor == "eager" and name in COMPILED_ONLY:
        executor = "compiled run"
    step = {**STEPS, **COMPILED_ONLY}[name]
    _, results, value = run_step(strategy, None, step, executor)
    v, own_results, own_value = run_step(strategy, pieces, step, executor)
    np.testing.assert_allclose(own_value, value, rtol=1e-5, atol=1e-5)
    for own, other in zip(own_results, results, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-4)
    assert piece_shapes(v) == piece_shapes(variable(strategy, pieces))
    rx.testing.check_mirrored(strategy, v)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_code_across_replicas_reads_and_assigns_the_whole(layout, compiled):
    strategy, pieces = layout
    v = variable(strategy, pieces)

    def program():
        before = v * 1.0
        v.assign(v + 1.0)
        v.assign_add(jnp.ones(VALUE.shape))
        v.assign_sub(np.ones(VALUE.shape, np.float32))
        strategy.extended.update(v, lambda copy: copy.assign_add(copy * 0.5))
        return before, v.value

    with strategy.scope():
        before, after = (rx.function(program) if compiled else program)()
    np.testing.assert_allclose(before, VALUE)
    np.testing.assert_allclose(after, 1.5 * (VALUE + 1.0), rtol=1e-5)
    np.testing.assert_allclose(v.numpy(), 1.5 * (VALUE + 1.0), rtol=1e-5)
    assert piece_shapes(v) == piece_shapes(variable(strategy, pieces))


@pytest.mark.parametrize("value", [VALUE, jnp.asarray(VALUE), VALUE.tolist()], ids=type)
def test_values_of_every_kind_can_be_assigned(fours, value):
    v = variable(fours, [2, 2], np.zeros_like(VALUE))
    v.assign(value)
    np.testing.assert_array_equal(v.numpy(), VALUE)
    with pytest.raises(ValueError, match=r"got shape \(2, 16\), but variable 'w' has shape"):
        v.assign(VALUE[:2])


def test_batches_of_other_sizes_on_some_replicas_train_pieces_too():
    strategy = rx.MirroredStrategy(logical_devices=2)
    for size in (7, 5, 2):
        values = [
            run_step(strategy, p, of_gradient, "function", BATCH[:size]) for p in (None, [2, 1])
        ]
        np.testing.assert_allclose(values[1][2], values[0][2], rtol=1e-5, atol=1e-5)


def test_a_variable_created_in_a_run_is_cut_as_its_creation_says(fours):
    holder = []

    def step(x):
        if not holder:
            holder.append(
                rx.Variable(
                    x.sum() * jnp.ones((4, 8)), partition_dimensions=[4, 1], aggregation=SUM
                )
            )
        holder[0].assign_add(jnp.ones((4, 8)))

    x = fours.distribute_batch(np.ones(8, np.float32))
    compiled = rx.function(step)
    fours.run(compiled, args=(x,))
    fours.run(compiled, args=(x,))
    assert piece_shapes(holder[0]) == {(1, 8)}
    np.testing.assert_allclose(holder[0].numpy(), np.full((4, 8), 8.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int8", "bool"])
def test_every_dtype_can_be_cut(fours, dtype):
    value = jnp.asarray(np.arange(32).reshape(4, 8) % 3, dtype)
    v = variable(fours, [2, 2], value, aggregation=ONCE)
    assert v.dtype == dtype
    np.testing.assert_array_equal(np.asarray(v.numpy(), np.float32), np.asarray(value, np.float32))
    fours.run(rx.function(lambda: v.assign(v.value)))
    np.testing.assert_array_equal(np.asarray(v.numpy(), np.float32), np.asarray(value, np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_trains_in_pieces(fours, dtype):
    v = variable(fours, [4, 1], jnp.asarray(VALUE, dtype), aggregation=SUM)

    @rx.function
    def step(x):
        gradient = rx.grad(lambda: (x.astype(dtype) @ v).sum(), v)
        v.assign_sub(gradient * jnp.asarray(0.125, dtype))

    fours.run(step, args=(fours.distribute_batch(BATCH),))
    expected = VALUE - 0.125 * BATCH.sum(0)[:, None]
    np.testing.assert_allclose(np.asarray(v.numpy(), np.float32), expected, atol=0.1)


# -- sync on read ------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_copies_that_live_their_own_lives_can_be_cut(layout, aggregation, compiled):
    strategy, pieces = layout

    def totals(pieces):
        v = variable(
            strategy,
            pieces,
            synchronization=ON_READ,
            aggregation=rx.VariableAggregation[aggregation],
        )

        def step(x):
            v.assign_add(jnp.ones(VALUE.shape) * x.sum())

        run = rx.function(step) if compiled else step
        strategy.run(run, args=(strategy.distribute_batch(BATCH),))
        copies, read = local(strategy, v), v.numpy()
        in_function = rx.function(lambda: v.value)()
        v.assign(VALUE)
        return [*copies, read, in_function, v.numpy()], v

    whole, _ = totals(None)
    own, v = totals(pieces)
    for one, other in zip(own, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(own[-1], VALUE)
    shapes = {shape[1:] for shape in piece_shapes(v)}
    assert shapes == piece_shapes(variable(strategy, pieces))


# -- rules -------------------------------------------------------------------------------------


def named(strategy, *names, shape=(8, 8)):
    with strategy.scope():
        return [rx.Variable(np.zeros(shape, np.float32), name=name) for name in names]


@pytest.mark.parametrize("kind", [list, dict])
def test_the_first_rule_whose_pattern_is_in_the_name_says_how(kind):
    rules = [
        (r"mlp/in/kernel$", [1, 4]),
        (r"norm", None),
        (r"kernel$", [4, 1]),
        (r"mlp", PartitionSpec("logical_0")),
    ]
    strategy = rx.MirroredStrategy(logical_devices=4, partition_rules=kind(rules))
    names = ["a/mlp/in/kernel", "a/mlp/out/kernel", "norm/kernel", "mlp/other", "bias", None]
    found = [v.partition_dimensions for v in named(strategy, *names)]
    assert found == [(1, 4), (4, 1), (1, 1), (2, 1), (1, 1), (1, 1)]


def test_replicas_of_a_device_assignment_have_rules_too():
    topology = tf.tpu.experimental.initialize_tpu_system()
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, [1, 1, 2, 2], num_replicas=2)
    resolver = rx.cluster_resolver.SimpleClusterResolver(rx.cluster_resolver.ClusterSpec({}))
    strategy = tf.distribute.TPUStrategy(resolver, assignment, partition_rules={"w": [1, 4]})
    with strategy.scope():
        w, b = tf.Variable(VALUE, name="w"), tf.Variable(VALUE, name="b")
    assert (w.partition_dimensions, b.partition_dimensions) == ((1, 4), (1, 1))
    x = strategy.distribute_batch(BATCH)
    result = strategy.run(tf.function(lambda x: tf.matmul(x, w)), args=(x,))
    np.testing.assert_allclose(strategy.gather(result, 0), BATCH @ VALUE, rtol=1e-5, atol=1e-5)


def test_what_a_creation_asks_for_goes_before_the_rules():
    rules = [(re.compile("KERNEL", re.IGNORECASE), [1, 4])]
    strategy = rx.MirroredStrategy(logical_devices=4, partition_rules=rules)
    with strategy.scope():
        whole = rx.Variable(np.ones((3, 3)), name="kernel", partition_dimensions=PartitionSpec())
        rows = rx.Variable(np.ones((4, 3)), name="kernel", partition_dimensions=[4, 1])
        by_rule = rx.Variable(np.ones((4, 4)), name="kernel")
    assert whole.partition_dimensions == (1, 1)
    assert rows.partition_dimensions == (4, 1)
    assert by_rule.partition_dimensions == (1, 4)


def test_variables_of_a_run_follow_the_rules_too():
    strategy = rx.MirroredStrategy(logical_devices=4, partition_rules=[("kernel", [1, 4])])
    made = []
    strategy.run(lambda: made.append(rx.Variable(np.ones((2, 8)), name="kernel")) or None)
    assert {v.partition_dimensions for v in made} == {(1, 4)}


def test_creators_see_the_layout_only_where_one_is_asked_for(fours):
    seen = []

    def creator(next_creator, **kwargs):
        seen.append(kwargs.get("partition_dimensions", "none"))
        return next_creator(**kwargs)

    with fours.scope(), rx.variable_creator_scope(creator):
        rx.Variable(VALUE)
        rx.Variable(VALUE, partition_dimensions=[1, 4])
    assert seen == ["none", [1, 4]]


WRONG_RULES = {
    "no pair": (["kernel"], r"a partition rule is 'kernel'; expected a pair of a pattern"),
    "no pattern": ([(3, [1, 4])], r"a partition rule is \(3, \[1, 4\]\); expected a pair"),
    "bad pattern": ([("ker(", [1, 4])], r"the pattern 'ker\(' of a partition rule is no regular"),
    "product": ([("w", [1, 2])], r"names with 'w': .*product is 2; a replica has 4 logical"),
    "no ints": ([("w", [1.0, 4])], r"names with 'w': .*expected ints of at least 1"),
    "no sequence": ([("w", 4)], r"names with 'w': partition_dimensions is 4; expected ints"),
    "axis": ([("w", PartitionSpec("x"))], r"'w': .*the axis 'x'; a replica of 4 logical devices "
             r"has the axes 'logical_0', 'logical_1'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_RULES)
def test_a_rule_that_can_fit_no_variable_is_refused_at_once(case):
    rules, text = WRONG_RULES[case]
    with pytest.raises(ValueError, match=text):
        rx.MirroredStrategy(logical_devices=4, partition_rules=rules)


UNFIT_RULES = {
    "rank": ([1, 4], (8,), r"\[1, 4\], for 2 dims; variable 'w' has shape \(8,\).*its 1 dims"),
    "divisibility": ([1, 4], (8, 6), r"dim 1 of variable 'w', .*\(8, 6\), is 6, .*divided by 4"),
    "rank of a spec": (PartitionSpec(None, "logical_0"), (8,), "is for 2 dims; variable 'w' has"),
}


@pytest.mark.parametrize("case", UNFIT_RULES)
def test_a_rule_that_does_not_fit_its_variable_is_refused(case):
    layout, shape, text = UNFIT_RULES[case]
    strategy = rx.MirroredStrategy(logical_devices=4, partition_rules=[("w", layout)])
    with pytest.raises(ValueError, match=f"the partition rule for names with 'w': .*{text}"):
        named(strategy, "w", shape=shape)


# -- errors ------------------------------------------------------------------------------------

WRONG_LAYOUTS = {
    "rank": ([2, 2, 1], r"for 3 dims; variable 'w' has shape \(8, 16\).*each of its 2 dims"),
    "product": ([2, 1], r"product is 2; a replica has 4 logical devices here"),
    "divisibility": ([4, 1], r"dim 0 of variable 'w', .*\(6, 16\), is 6, .*divided by 4"),
    "no ints": ([True, 4], "expected ints of at least 1"),
    "no sequence": (4, "partition_dimensions is 4; expected ints of at least 1"),
    "replica axis": (PartitionSpec("replica"), "names the axis 'replica'; a replica of 4"),
    "axis twice": (PartitionSpec("logical_0", "logical_0"), "names an axis twice"),
}


@pytest.mark.parametrize("case", WRONG_LAYOUTS)
def test_a_layout_that_cannot_be_is_refused(fours, case):
    pieces, text = WRONG_LAYOUTS[case]
    with pytest.raises(ValueError, match=text):
        variable(fours, pieces, VALUE[:6] if case == "divisibility" else VALUE)


def test_with_one_logical_device_only_a_layout_of_ones_is_possible():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    assert variable(strategy, [1, 1]).partition_dimensions == (1, 1)
    with pytest.raises(ValueError, match="product is 2; a replica has 1 logical device here"):
        variable(strategy, [1, 2])
    with pytest.raises(ValueError, match="a replica of 1 logical device has no axes"):
        variable(strategy, PartitionSpec("logical_0"))


def test_a_single_copy_cannot_be_cut(fours):
    with pytest.raises(ValueError, match=r"'w' is created under no strategy .* \[1, 4\]"):
        rx.Variable(VALUE, name="w", partition_dimensions=[1, 4])
    with pytest.raises(ValueError, match=r"'w' is created under no strategy .* 4\. Create it"):
        rx.Variable(VALUE, name="w", partition_dimensions=4)
    with pytest.raises(ValueError, match=r"for 1 dims; variable 'w' has shape \(8, 16\)"):
        rx.Variable(VALUE, name="w", partition_dimensions=[1])
    one_device = fours.extended.colocate_vars_with("CPU:0")
    with (
        fours.scope(),
        one_device,
        pytest.raises(ValueError, match=r"on one device, CPU:0, and cannot have"),
    ):
        rx.Variable(VALUE, name="w", partition_dimensions=[1, 4])
