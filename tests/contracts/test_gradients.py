"""value_and_grad and grad: with respect to captured variables, local to the replica."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

SUM = rx.VariableAggregation.SUM
FIRST = rx.VariableAggregation.ONLY_FIRST_REPLICA
MEAN = rx.VariableAggregation.MEAN
ON_READ = rx.VariableSynchronization.ON_READ

Pair = collections.namedtuple("Pair", "kernel bias")


def variable(strategy, value, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def parts(strategy, value):
    return strategy.experimental_local_results(value)


def test_gradients_are_local_to_the_replica(strategy, execute):
    v = variable(strategy, jnp.asarray([1.0, 2.0]))

    def step():
        scale = replica_id() + 1.0
        return rx.value_and_grad(lambda: (v * v).sum() * scale, v)

    for i, (loss, gradient) in enumerate(parts(strategy, execute(strategy, step))):
        np.testing.assert_allclose(loss, 5.0 * (i + 1))
        np.testing.assert_allclose(gradient, np.asarray([2.0, 4.0]) * (i + 1))


NESTS = {
    "a variable": lambda a, b: a,
    "a list": lambda a, b: [a, b],
    "a tuple in a dict": lambda a, b: {"x": (a, [b]), "none": None},
    "a namedtuple": lambda a, b: Pair(kernel=b, bias=a),
    "nothing": lambda a, b: (),
}


@pytest.mark.parametrize("name", NESTS)
def test_gradients_come_in_the_nest_of_the_variables(two, execute, name):
    a, b = variable(two, 3.0), variable(two, jnp.asarray([2.0, 5.0]))
    nest = NESTS[name](a, b)
    gradients = {id(a): 7.0, id(b): [3.0, 3.0]}
    loss = lambda: a * b.sum()  # noqa: E731
    is_variable = lambda leaf: isinstance(leaf, rx.Variable)  # noqa: E731
    result = execute(two, lambda: rx.grad(loss, nest))
    expected = jax.tree.map(lambda v: gradients[id(v)], nest, is_leaf=is_variable)
    for part in parts(two, result) if name != "nothing" else [result]:
        structure = jax.tree.structure(nest, is_leaf=is_variable)
        assert jax.tree.structure(part) == structure
        wanted = structure.flatten_up_to(expected)
        for got, want in zip(structure.flatten_up_to(part), wanted, strict=True):
            np.testing.assert_allclose(got, want)


def test_has_aux_returns_the_rest(strategy, execute):
    v = variable(strategy, 3.0)

    def step():
        loss = lambda: (v * v, {"seen": v + 1, "text": "kept"})  # noqa: E731
        return rx.value_and_grad(loss, [v], has_aux=True), rx.grad(loss, [v], has_aux=True)

    for part in parts(strategy, execute(strategy, step)):
        ((loss, aux), (gradient,)), ((again,), aux_again) = part
        np.testing.assert_allclose([loss, gradient, again], [9, 6, 6])
        for each in (aux, aux_again):
            assert float(each["seen"]) == 4
            assert each["text"] == "kept"


def test_an_unused_variable_gives_zeros(strategy, execute):
    used, unused = variable(strategy, 3.0), variable(strategy, jnp.ones((2, 2)))
    result = execute(strategy, lambda: rx.grad(lambda: used * 2.0, {"a": used, "b": unused}))
    for part in parts(strategy, result):
        np.testing.assert_allclose(part["a"], 2)
        np.testing.assert_array_equal(part["b"], np.zeros((2, 2)))


def test_variables_outside_the_nest_are_constants(strategy, execute):
    a, b = variable(strategy, 3.0), variable(strategy, 4.0)
    result = execute(strategy, lambda: rx.grad(lambda: a * b * b, b))
    for part in parts(strategy, result):
        np.testing.assert_allclose(part, 24)


def test_writes_inside_the_loss_work(strategy, execute):
    w = variable(strategy, 3.0)
    moving = variable(strategy, 0.0, aggregation=MEAN)
    count = variable(strategy, 0, synchronization=ON_READ, aggregation=SUM)

    def step():
        def loss():
            mean = w * (replica_id() + 1.0)
            moving.assign(0.5 * moving + 0.5 * mean)
            count.assign_add(1)
            return mean * moving

        return rx.value_and_grad(loss, w)

    n = strategy.num_replicas_in_sync
    run = execute.prepare(strategy, step)
    expected = 0.0
    for _ in range(2):
        result = run()
        average = 3 * (n + 1) / 2
        expected = 0.5 * expected + 0.5 * average
        np.testing.assert_allclose(moving.numpy(), expected, rtol=1e-6)
        for i, (loss, gradient) in enumerate(parts(strategy, result)):
            np.testing.assert_allclose(loss, 3 * (i + 1) * expected, rtol=1e-6)
            np.testing.assert_allclose(gradient, (i + 1) * expected, rtol=1e-6)
    assert int(count) == 2 * n


def test_the_loss_may_assign_the_variable_itself(strategy, execute):
    v = variable(strategy, 3.0, aggregation=MEAN)

    def step():
        def loss():
            before = v * v
            v.assign(10.0)
            return before + 0 * v

        return rx.value_and_grad(loss, v)

    for loss, gradient in parts(strategy, execute(strategy, step)):
        np.testing.assert_allclose([loss, gradient], [9, 6])
    assert float(v) == 10


def test_the_loss_may_assign_the_variable_itself_inside_jit(strategy, compiled):
    v = variable(strategy, 3.0, aggregation=MEAN)

    def step():
        def loss():
            before = v * v
            jax.jit(lambda: v.assign(10.0).read_value())()
            return before + 0 * v

        return rx.value_and_grad(loss, v)

    for loss, gradient in parts(strategy, compiled(strategy, step)):
        np.testing.assert_allclose([loss, gradient], [9, 6])
    assert float(v) == 10


LOOPS_AND_BRANCHES = {
    "scan": lambda fn: jax.lax.scan(lambda c, _: (c + fn(), None), 0.0, None, length=2)[0],
    "fori_loop": lambda fn: jax.lax.fori_loop(0, 2, lambda i, c: c + fn(), 0.0),
    "cond": lambda fn: jax.lax.cond(jnp.asarray(False), fn, lambda: 0.0),
    "switch": lambda fn: jax.lax.switch(jnp.asarray(1), [fn, lambda: 0.0]),
}


@pytest.mark.parametrize("kind", LOOPS_AND_BRANCHES)
def test_the_loss_does_not_assign_its_variable_in_a_loop_or_a_branch(strategy, compiled, kind):
    # Whether the variable is assigned, and a gradient flows through later reads, is not known.
    v = variable(strategy, 3.0, aggregation=MEAN)

    def read_and_assign():
        value = v.read_value()
        v.assign(value + 1.0)
        return value

    def step():
        return rx.value_and_grad(lambda: LOOPS_AND_BRANCHES[kind](read_and_assign) + v * 2, v)

    with pytest.raises(ValueError, match="is differentiated, and assigned inside a loop or"):
        compiled(strategy, step)
    assert float(v) == 3


KINDS = [{"aggregation": FIRST}, {"aggregation": FIRST, "synchronization": ON_READ}]
ASSIGNMENTS = {
    "assign": lambda strategy, v, other: v.assign(5.0),
    "update": lambda strategy, v, other: strategy.extended.update(
        v, lambda copy: copy.assign(jnp.float32(5.0))
    ),
    "update of another": lambda strategy, v, other: strategy.extended.update(
        other, lambda copy: v.assign(jnp.float32(5.0))
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=["mirrored", "on_read"])
@pytest.mark.filterwarnings("ignore:variable .* is read inside")
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_a_gradient_ends_where_the_loss_assigns_the_variable(strategy, execute, name, kind):
    v, other = variable(strategy, 3.0, **kind), variable(strategy, 0.0, **kind)

    @jax.jit
    def tenfold():
        return v.value * 10.0

    def loss():
        before = v.value * 2.0 + tenfold()
        ASSIGNMENTS[name](strategy, v, other)
        return before + v.value * 100.0 + tenfold()

    for value, gradient in parts(strategy, execute(strategy, lambda: rx.value_and_grad(loss, v))):
        np.testing.assert_allclose([value, gradient], [36.0 + 550.0, 12.0])


def test_a_gradient_ends_where_a_function_in_an_update_assigns(strategy, execute):
    v, other = variable(strategy, 3.0), variable(strategy, 0.0)

    @rx.function
    def set_five():
        v.assign(5.0)

    def loss():
        before = v.value * 2.0
        strategy.extended.update(other, lambda copy: set_five())
        return before + v.value * 100.0

    for _ in range(2):
        v.assign(3.0)
        results = execute(strategy, lambda: rx.value_and_grad(loss, v))
        for value, gradient in parts(strategy, results):
            np.testing.assert_allclose([value, gradient], [506.0, 2.0])


@pytest.mark.parametrize("name", ["update", "update of another"])
def test_a_gradient_across_replicas_ends_where_the_loss_updates_the_variable(two, name):
    v, other = variable(two, 3.0), variable(two, 0.0)

    def loss():
        before = v.value * 2.0
        ASSIGNMENTS[name](two, v, other)
        return before + v.value * 100.0

    for step in (rx.value_and_grad, rx.function(rx.value_and_grad)):
        v.assign(3.0)
        with two.scope():
            np.testing.assert_allclose(step(loss, v), [506.0, 2.0])


def test_all_reduce_of_gradients_gives_the_sum(strategy, execute):
    v = variable(strategy, 2.0, aggregation=MEAN)

    def step():
        gradient = rx.grad(lambda: v * v * (replica_id() + 1.0), v)
        total = rx.get_replica_context().all_reduce("SUM", gradient)
        v.assign_sub(0.1 * total)
        return total

    n = strategy.num_replicas_in_sync
    total = 4 * n * (n + 1) / 2
    for part in parts(strategy, execute(strategy, step)):
        np.testing.assert_allclose(part, total)
    np.testing.assert_allclose(v.numpy(), 2 - 0.1 * total, rtol=1e-6)


def test_all_reduce_inside_the_loss_has_the_all_reduced_gradient(strategy, execute):
    v = variable(strategy, 2.0)

    def step():
        scale = replica_id() + 1.0

        def loss():
            total = rx.get_replica_context().all_reduce("SUM", v * scale)
            return total * scale

        return rx.value_and_grad(loss, v)

    n = strategy.num_replicas_in_sync
    scales = np.arange(1, n + 1)
    for i, (loss, gradient) in enumerate(parts(strategy, execute(strategy, step))):
        np.testing.assert_allclose(loss, 2 * scales.sum() * scales[i])
        np.testing.assert_allclose(gradient, scales.sum() * scales[i])


def test_second_order(strategy, execute):
    v = variable(strategy, 2.0)

    def step():
        return rx.value_and_grad(lambda: rx.grad(lambda: v**3, v), v)

    for first, second in parts(strategy, execute(strategy, step)):
        np.testing.assert_allclose([first, second], [12, 12], rtol=1e-6)


def test_mixed_second_order_with_two_variables(two, execute):
    a, b = variable(two, 2.0), variable(two, 5.0)
    result = execute(two, lambda: rx.grad(lambda: rx.grad(lambda: a * a * b * b, a), [a, b]))
    for part in parts(two, result):
        np.testing.assert_allclose(part, [2 * 25, 4 * 2 * 5])


def test_inside_scan_in_a_compiled_run(strategy, compiled):
    v = variable(strategy, 1.0, aggregation=MEAN)

    def step(xs):
        def body(carry, x):
            loss, gradient = rx.value_and_grad(lambda: 0.5 * (v - x) ** 2, v)
            v.assign_sub(0.5 * gradient)
            return carry + loss, gradient

        return jax.lax.scan(body, jnp.float32(0), xs)

    xs = np.asarray([3.0, 0.0, 1.0], np.float32)
    value, total, gradients = 1.0, 0.0, []
    for x in xs:
        total += 0.5 * (value - x) ** 2
        gradients.append(value - x)
        value -= 0.5 * (value - x)
    for carry, seen in parts(strategy, compiled(strategy, step, (jnp.asarray(xs),))):
        np.testing.assert_allclose(carry, total, rtol=1e-6)
        np.testing.assert_allclose(seen, gradients, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), value, rtol=1e-6)


CELL: list = [None]


@jax.jit
def jitted_square(x):
    return CELL[0] * CELL[0] * x


checkpointed_square = jax.checkpoint(lambda x: CELL[0] * CELL[0] * x)


def scanned_square(x):
    return jax.lax.scan(lambda c, _: (c * CELL[0].read_value(), None), x, None, length=2)[0]


SQUARES = {"jit": jitted_square, "checkpoint": checkpointed_square, "scan": scanned_square}


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.filterwarnings("ignore:variable .* is read inside")
def test_the_loss_may_read_the_variable_inside_jit_checkpoint_and_scan(two, execute, name):
    strategy, fn = two, SQUARES[name]
    CELL[0] = v = variable(strategy, 3.0, aggregation=MEAN)

    def step():
        first = rx.value_and_grad(lambda: fn(jnp.float32(2)), v)
        second = rx.value_and_grad(lambda: fn(jnp.float32(2)) * 10, v)
        v.assign_add(1.0)
        return first, second, rx.value_and_grad(lambda: fn(jnp.float32(2)), v), fn(jnp.float32(2))

    run = execute.prepare(strategy, step)
    for value in (3.0, 4.0):
        for first, second, third, plain in parts(strategy, run()):
            np.testing.assert_allclose(first, (2 * value**2, 4 * value))
            np.testing.assert_allclose(second, (20 * value**2, 40 * value))
            np.testing.assert_allclose(third, (2 * (value + 1) ** 2, 4 * (value + 1)))
            np.testing.assert_allclose(plain, 2 * (value + 1) ** 2)
    CELL[0] = None


def test_an_assignment_after_a_read_inside_jit_is_seen_inside_jit(two, compiled):
    CELL[0] = v = variable(two, 3.0, aggregation=MEAN)

    def loss():
        before = jitted_square(jnp.float32(2))
        v.assign(10.0)
        return before, jitted_square(jnp.float32(2))

    result = compiled(two, lambda: rx.value_and_grad(loss, v, has_aux=True))
    for (before, after), gradient in parts(two, result):
        np.testing.assert_allclose([before, after, gradient], [18, 200, 12])
    CELL[0] = None


@pytest.mark.parametrize("name", SQUARES)
def test_the_same_outside_run(two, name):
    fn = SQUARES[name]
    CELL[0] = v = variable(two, 3.0)
    for value in (3.0, 4.0, 5.0):
        v.assign(value)
        for factor in (1, 10):
            loss = lambda factor=factor: fn(jnp.float32(2)) * factor  # noqa: E731
            np.testing.assert_allclose(
                rx.value_and_grad(loss, v), (2 * value**2 * factor, 4 * value * factor)
            )
    CELL[0] = None


def test_outside_run_and_inside_a_function(strategy):
    v = variable(strategy, 3.0)
    np.testing.assert_allclose(rx.value_and_grad(lambda: v * v, v), (9, 6))
    np.testing.assert_allclose(rx.function(lambda: rx.grad(lambda: v * v, v))(), 6)
    with strategy.scope():
        np.testing.assert_allclose(rx.grad(lambda: v * v, v), 6)


def test_both_executors_give_the_same_gradients(many):
    w = variable(many, np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    batch = many.distribute_batch(np.linspace(0, 1, 4 * 8 * 2, dtype=np.float32).reshape(16, 4))

    def step(x):
        return rx.value_and_grad(lambda: jnp.tanh(x @ w).mean(), w)

    eager = parts(many, many.run(step, (batch,)))
    compiled = parts(many, many.run(rx.function(step), (batch,)))
    for (loss, gradient), (same_loss, same_gradient) in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(loss, same_loss, rtol=1e-5)
        np.testing.assert_allclose(gradient, same_gradient, rtol=1e-5, atol=1e-7)


def test_errors_name_what_was_given(two, execute):
    v, counter = variable(two, 1.0, name="w"), variable(two, 1, name="count")
    with pytest.raises(ValueError, match=r"with respect to variables; got .*jax\.value_and_grad"):
        execute(two, lambda: rx.grad(lambda: v * 1, [v, jnp.ones(2)]))
    with pytest.raises(ValueError, match=r"same variable twice: \['w', 'w'\]"):
        execute(two, lambda: rx.grad(lambda: v * 1, [v, v]))
    with pytest.raises(TypeError, match="real- or complex-valued inputs"):
        execute(two, lambda: rx.grad(lambda: v * 1, counter))
    with pytest.raises(TypeError, match="scalar-output"):
        execute(two, lambda: rx.grad(lambda: v * jnp.ones(2), v))
    for part in parts(two, execute(two, lambda: rx.grad(lambda: v * v, v))):
        np.testing.assert_allclose(part, 2)


def test_an_error_in_the_loss_ends_the_gradient(two, execute):
    v = variable(two, 2.0)

    def broken():
        raise KeyError("in the loss")

    with pytest.raises(KeyError, match="in the loss"):
        execute(two, lambda: rx.grad(broken, v))
    assert float(v + 0) == 2
    for part in parts(two, execute(two, lambda: rx.grad(lambda: v * v, v))):
        np.testing.assert_allclose(part, 4)
