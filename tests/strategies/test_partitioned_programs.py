"""Compiled programs with partitioned variables: what each device has, and what they exchange."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from tests.strategies.collectives import all_gathers_of, arguments_of, collectives_of

WITHIN_REPLICAS = ("[2,4]<=[8]", "{{0,1,2,3},{4,5,6,7}}")
BETWEEN_REPLICAS = (
    "[4,2]<=[2,4]T(1,0)",
    "{{0,4},{1,5},{2,6},{3,7}}",
    "mesh['replica'=2,'logical_0'=2,'logical_1'=2] {'replica'}",  # with JAX 0.12
)
WIDTH, HIDDEN = 32, 256
RULES = [("mlp/in", [1, 4]), ("mlp/out", [4, 1])]


def random(*shape):
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


class Layers:
    """Two layers, from the width to more units and back, with Adam."""

    def __init__(self, rules, width=WIDTH, hidden=HIDDEN):
        self.strategy = rx.MirroredStrategy(logical_devices=4, partition_rules=rules)
        with self.strategy.scope():
            self.first = rx.Variable(random(width, hidden), name="mlp/in")
            self.second = rx.Variable(random(hidden, width), name="mlp/out")
            self.optimizer = rx.Optimizer(optax.adam(0.01))
        self.x = self.strategy.distribute_batch(random(16, width))

        @rx.function
        def step(x):
            def loss():
                return jnp.mean((jnp.tanh(x @ self.first) @ self.second - 1.0) ** 2)

            variables = [self.first, self.second]
            self.optimizer.apply_gradients(zip(rx.grad(loss, variables), variables, strict=True))

        self.step = step

    def program(self):
        self.strategy.run(self.step, args=(self.x,))
        return self.step.lower_run(self.strategy, self.x).compile()


@pytest.fixture(scope="module")
def cut():
    """The program with weights in pieces."""
    return Layers(RULES).program()


@pytest.fixture(scope="module")
def whole():
    """The program with whole weights."""
    return Layers(None).program()


def test_a_device_gets_its_pieces_of_variables_and_slots(cut, whole):
    arguments = arguments_of(cut)
    assert arguments.count((WIDTH, HIDDEN // 4)) == 3  # the weights and the two slots of Adam
    assert arguments.count((HIDDEN // 4, WIDTH)) == 3
    assert (WIDTH, HIDDEN) not in arguments
    assert arguments_of(whole).count((WIDTH, HIDDEN)) == 3


def test_the_arguments_of_a_device_are_a_quarter(cut, whole):
    state = 3 * 2 * WIDTH * HIDDEN * 4
    batch = 8 * WIDTH * 4
    own, all_of_it = (p.memory_analysis().argument_size_in_bytes for p in (cut, whole))
    assert state // 4 <= own <= state // 4 + batch + 64
    assert state <= all_of_it <= state + batch + 64


def test_the_new_pieces_take_the_place_of_the_old_ones(cut):
    state = 3 * 2 * WIDTH * HIDDEN
    assert cut.memory_analysis().alias_size_in_bytes >= state


def test_pieces_are_never_gathered_and_only_activations_travel_within_a_replica(cut):
    assert all_gathers_of(cut) == set()
    found = collectives_of(cut)
    inside = [c for c in found if c.groups in WITHIN_REPLICAS]
    between = [c for c in found if c.groups in BETWEEN_REPLICAS]
    assert inside and between
    assert len(inside) + len(between) == len(found)
    assert {c.kind for c in found} == {"all-reduce"}
    assert {shape for c in inside for shape in c.shapes} == {(8, WIDTH)}
    reduced = [shape for c in between for shape in c.shapes]
    assert reduced.count((WIDTH, HIDDEN // 4)) + reduced.count((HIDDEN // 4, WIDTH)) >= 2
    assert (WIDTH, HIDDEN) not in reduced


def test_small_gradients_of_pieces_are_not_packed_with_others():
    layers = Layers(RULES, width=8, hidden=16)
    program = layers.program()
    assert all_gathers_of(program) == set()
    between = [c for c in collectives_of(program) if c.groups in BETWEEN_REPLICAS]
    assert sorted(shape for c in between for shape in c.shapes) == [(4, 8), (8, 4)]


def test_matrix_products_are_of_pieces(cut):
    text = cut.as_text()
    assert f"f32[8,{HIDDEN // 4}]" in text
    assert f"f32[8,{HIDDEN}]" not in text


def program_of(variable, pieces, fn, *args):
    strategy = rx.MirroredStrategy(logical_devices=4)
    with strategy.scope():
        v = rx.Variable(variable, partition_dimensions=pieces)
    step = rx.function(lambda *args: fn(v, *args))
    result = strategy.run(step, args=args)
    return step.lower_run(strategy, *args).compile(), strategy.experimental_local_results(result)[0]


def replicated(value):
    return rx.get_strategy().experimental_replicate_to_logical_devices(value)


# Functions of a variable of shape (8, 16) and rows (4, 8), its layout, the kinds of collectives
# that they need, and the all-gathers that they may have, by the operations that ask for them.
EXCHANGES = {
    "columns of a product": (lambda v, x: (x @ v).sum(), [1, 4], {"all-reduce"}, set()),
    "rows of a product": (lambda v, x: (x @ v).sum(), [4, 1], {"all-reduce"}, set()),
    "an elementwise sum": (lambda v, x: jnp.tanh(v).sum(), [2, 2], {"all-reduce"}, set()),
    "rows looked up": (
        lambda v, x: v[jnp.arange(4) * 2].sum(), [4, 1], {"all-reduce"}, set(),
    ),
    # Results leave a program whole, which no operation of the program asks for.
    "the result of a run": (lambda v, x: v * 1.0, [4, 1], {"all-gather"}, {""}),
    "a value replicated on purpose": (
        lambda v, x: jnp.sin(replicated(v * 2.0)).sum(),
        [4, 1], {"all-gather"}, {"sharding_constraint"},
    ),
    "a sort along the cut dim": (
        lambda v, x: (x @ jnp.sort(v * 1.0, axis=0)).sum(), [4, 1], {"all-to-all"}, set(),
    ),
    "a softmax along the cut dim": (
        lambda v, x: jax.nn.softmax(v * 1.0, axis=1)[:, 0].sum(), [1, 4], {"all-reduce"}, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCHANGES)
def test_only_what_must_be_whole_is_gathered(name):
    fn, pieces, kinds, allowed = EXCHANGES[name]
    value, x = random(8, 16), random(4, 8)
    program, result = program_of(value, pieces, fn, x)
    found = collectives_of(program)
    assert kinds <= {c.kind for c in found}
    assert all_gathers_of(program) <= allowed
    np.testing.assert_allclose(result, fn(jnp.asarray(value), x), rtol=1e-5, atol=1e-5)
    assert arguments_of(program)[0] == tuple(
        size // piece for size, piece in zip(value.shape, pieces, strict=True)
    )


def test_a_loop_keeps_the_pieces_it_writes():
    strategy = rx.MirroredStrategy(logical_devices=4)
    with strategy.scope():
        v = rx.Variable(
            random(16, 16), partition_dimensions=[1, 4], aggregation=rx.VariableAggregation.SUM
        )

    @rx.function
    def steps(x):
        def body(carry, _):
            gradient = rx.grad(lambda: ((x @ v) ** 2).sum(), v)
            v.assign_sub(0.01 * gradient)
            return carry, None

        jax.lax.scan(body, 0.0, None, length=5)

    x = strategy.distribute_batch(random(8, 16))
    program = steps.lower_run(strategy, x).compile()
    assert all_gathers_of(program) == set()
    assert arguments_of(program)[0] == (16, 4)
    assert "f32[16,16]" not in program.as_text()


# -- branches that replicas take differently ----------------------------------------------------


def test_a_branch_that_replicas_take_differently_is_computed_whole():
    strategy = rx.MirroredStrategy(logical_devices=2)
    with strategy.scope():
        kernel = rx.Variable(random(3, 3, 4, 8), partition_dimensions=[1, 1, 1, 2])

    def convolved(x, w):
        dims = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
        return jnp.sum(y**2)

    @rx.function
    def step(x):
        x = strategy.experimental_split_to_logical_devices(x, [1, 2, 1, 1])
        use = x[0, 0, 0, 0] > 0
        return jax.lax.cond(use, lambda: convolved(x, kernel.value), lambda: 0.0)

    batch = random(8, 8, 8, 4)
    batch[[0, 4], 0, 0, 0], batch[[2, 6], 0, 0, 0] = 1.0, -1.0
    x = strategy.distribute_batch(batch)
    parts = np.split(batch, 4)
    expected = [convolved(parts[0], kernel.value), 0.0, convolved(parts[2], kernel.value), 0.0]
    with pytest.warns(rx.ReplicaxWarning, match=r"branches of the cond at .*programs\.py:\d+, so"):
        result = strategy.run(step, args=(x,))
    np.testing.assert_allclose(
        strategy.experimental_local_results(result), np.asarray(expected), rtol=1e-4
    )
    program = step.lower_run(strategy, x).compile()
    assert {c.kind for c in collectives_of(program)} <= {"all-gather"}
    assert "f32[2,8,8,8]" in program.as_text()


def test_batches_of_different_sizes_are_computed_whole_and_the_same():
    values = []
    for number in (2, 1):
        strategy = rx.MirroredStrategy(
            [f"CPU:{i}" for i in range(4 * number)], logical_devices=number
        )
        with strategy.scope():
            kernel = rx.Variable(
                random(3, 3, 4, 8),
                partition_dimensions=[1, 1, 1, number],
                aggregation=rx.VariableAggregation.SUM,
            )

        @rx.function
        def step(x, strategy=strategy, kernel=kernel, number=number):
            x = strategy.experimental_split_to_logical_devices(x, [1, number, 1, 1])

            def loss():
                w, dims = kernel.value, ("NHWC", "HWIO", "NHWC")
                y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)
                return jnp.sum(y**2)

            kernel.assign_sub(1e-3 * rx.grad(loss, kernel))

        for size in (7, 8, 5):
            strategy.run(step, args=(strategy.distribute_batch(random(size, 8, 8, 4)),))
        values.append(kernel.numpy())
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5, atol=1e-6)
