"""How ``apply_gradients`` combines gradients, in every context, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.optimizers.named import SGD
from replicax.optimizers.optimizer import Optimizer
from tests.contracts.executors import EXECUTORS
from tests.optimizers.problem import Training, assert_close, mirrored, train_plain


@pytest.fixture(params=EXECUTORS)
def execute(request):
    return EXECUTORS[request.param]


@pytest.fixture(params=[1, 2, 3])
def strategy(request):
    return mirrored(request.param)


def made(strategy, value=1.0, transformation=None, **options):
    with strategy.scope():
        w = rx.Variable(value, name="w")
        return w, Optimizer(transformation or optax.sgd(1.0), **options)


def replica_id():
    return jnp.asarray(rx.get_replica_context().replica_id_in_sync_group, jnp.float32)


# -- combining -----------------------------------------------------------------------------------


def test_gradients_of_replicas_are_added(strategy, execute):
    w, optimizer = made(strategy, 0.0)
    execute(strategy, lambda: optimizer.apply_gradients([(replica_id() + 1, w)]))
    assert float(w) == -sum(range(1, strategy.num_replicas_in_sync + 1))


def test_gradients_of_replicas_are_averaged_if_asked(strategy, execute):
    w, optimizer = made(strategy, 0.0, aggregation="MEAN")
    execute(strategy, lambda: optimizer.apply_gradients([(replica_id() + 1, w)]))
    assert float(w) == -(strategy.num_replicas_in_sync + 1) / 2


def test_a_reduced_gradient_is_recognised_and_not_reduced_again(strategy, execute):
    w, optimizer = made(strategy, 0.0)

    def step():
        total = rx.get_replica_context().all_reduce("SUM", jnp.ones(()) + 0 * replica_id())
        optimizer.apply_gradients([(total, w)])

    execute(strategy, step)
    assert float(w) == -strategy.num_replicas_in_sync


@pytest.mark.parametrize("option", ["aggregate", "experimental_aggregate_gradients"])
def test_what_was_computed_from_reduced_gradients_is_applied_as_it_is(strategy, execute, option):
    w, optimizer = made(strategy, 0.0)

    def step():
        total = rx.get_replica_context().all_reduce("SUM", replica_id() + 1)
        optimizer.apply_gradients([(total / 2, w)], **{option: False})

    execute(strategy, step)
    assert float(w) == -sum(range(1, strategy.num_replicas_in_sync + 1)) / 2


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_in_cross_replica_context_per_replica_gradients_are_added_and_others_kept(
    strategy, compiled
):
    w, optimizer = made(strategy, 0.0)
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(ctx.replica_id_in_sync_group + 1)
    )

    def update(gradient):
        optimizer.apply_gradients([(gradient, w)])

    update = rx.function(update) if compiled else update
    with strategy.scope():
        update(per_replica)
    total = sum(range(1, strategy.num_replicas_in_sync + 1))
    assert float(w) == -total
    update(jnp.float32(10.0))  # the scope is not needed
    assert float(w) == -total - 10


def test_gradients_can_be_applied_in_a_merge_fn(strategy, execute):
    w, optimizer = made(strategy, 0.0)

    def merge_fn(strategy, gradient):
        optimizer.apply_gradients([(gradient, w)])

    execute(strategy, lambda: rx.get_replica_context().merge_call(merge_fn, (replica_id() + 1,)))
    assert float(w) == -sum(range(1, strategy.num_replicas_in_sync + 1))


def test_the_norm_is_clipped_after_the_reduction(strategy, execute):
    with strategy.scope():
        v = [rx.Variable(0.0), rx.Variable(0.0)]
        optimizer = Optimizer(optax.sgd(1.0), clip_global_norm=1.0)
    share = 1 / strategy.num_replicas_in_sync  # of a gradient (3, 4), whose norm is 5

    def step():
        gradients = [3 * share + 0 * replica_id(), 4 * share + 0 * replica_id()]
        optimizer.apply_gradients(zip(gradients, v, strict=True))

    execute(strategy, step)
    np.testing.assert_allclose([float(x) for x in v], [-0.6, -0.8], rtol=1e-6)


# -- accumulation --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_accumulation_equals_multi_steps_on_one_device(compiled):
    num_steps = 7
    plain = optax.MultiSteps(optax.adam(0.01), every_k_schedule=3)
    training = Training(mirrored(3), optax.adam(0.01), compiled=compiled, accumulate_steps=3)
    assert_close(training.run(num_steps), train_plain(plain, num_steps))
    assert int(training.optimizer.iterations) == 2
    names = [v.name for v in training.optimizer.variables]
    assert "Optimizer/accumulated_steps" in names
    assert "Optimizer/accumulated/hidden/bias" in names


def test_replicas_accumulate_without_communication(execute):
    strategy = mirrored(2)
    w, optimizer = made(strategy, 0.0, accumulate_steps=2)
    step = execute.prepare(strategy, lambda: optimizer.apply_gradients([(replica_id() + 1, w)]))
    step()
    local = next(v for v in optimizer.variables if v.name == "Optimizer/accumulated/w")
    assert local.synchronization is rx.VariableSynchronization.ON_READ
    assert [float(v) for v in strategy.experimental_local_results(local)] == [1.0, 2.0]
    assert float(w) == 0.0
    step()
    assert float(w) == -3.0
    assert [float(v) for v in strategy.experimental_local_results(local)] == [0.0, 0.0]


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
@pytest.mark.parametrize("aggregate", [True, False])
def test_reduced_gradients_are_accumulated_once(execute, aggregate, aggregation):
    strategy = mirrored(2)
    w, optimizer = made(strategy, 0.0, accumulate_steps=2, aggregation=aggregation)

    def step():
        total = rx.get_replica_context().all_reduce("SUM", replica_id() + 1)
        optimizer.apply_gradients([(total, w)], aggregate)

    step = execute.prepare(strategy, step)
    for _ in range(4):
        step()
    assert float(w) == -6.0


def test_accumulation_in_cross_replica_context():
    strategy = mirrored(2)
    w, optimizer = made(strategy, 0.0, accumulate_steps=2)
    with strategy.scope():
        ids = strategy.run(lambda: replica_id() + 1)
        optimizer.apply_gradients([(ids, w)])
        assert float(w) == 0.0
        optimizer.apply_gradients([(jnp.float32(5.0), w)])
    assert float(w) == -4.0


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
def test_half_float_gradients_are_accumulated_in_32_bits(execute, aggregation):
    strategy = mirrored(2)
    w, optimizer = made(
        strategy, jnp.zeros(3, jnp.float16), accumulate_steps=3, aggregation=aggregation
    )
    gradient = 30_000.0 if aggregation == "SUM" else 60_000.0

    def step():
        optimizer.apply_gradients([(jnp.full(3, gradient, jnp.float16), w)])

    step = execute.prepare(strategy, step)
    for _ in range(3):
        step()
    assert w.dtype == jnp.float16
    assert w.numpy().tolist() == [-60_000.0] * 3


# -- mistakes ------------------------------------------------------------------------------------


def _none(w, b, optimizer):
    optimizer.apply_gradients([(None, w), (jnp.zeros(2), b)])


def _none_in_a_tree(w, b, optimizer):
    optimizer.apply_gradients([({"w": None, "b": jnp.zeros(2)}, {"w": w, "b": b})])


def _shape(w, b, optimizer):
    optimizer.apply_gradients([(jnp.zeros(2), w), (jnp.zeros(()), b)])


def _structure(w, b, optimizer):
    optimizer.apply_gradients([({"w": jnp.zeros(())}, {"w": w, "b": b})])


def _no_array(w, b, optimizer):
    optimizer.apply_gradients([("steep", w)])


def _no_pair(w, b, optimizer):
    optimizer.apply_gradients([w])


def _no_variable(w, b, optimizer):
    optimizer.apply_gradients([(jnp.zeros(()), jnp.zeros(()))])


def _empty(w, b, optimizer):
    optimizer.apply_gradients([])


def _twice(w, b, optimizer):
    optimizer.apply_gradients([(jnp.zeros(()), w), (jnp.zeros(()), w)])


def _unknown(w, b, optimizer):
    optimizer.build([w])
    optimizer.apply_gradients([(jnp.zeros(2), b)])


def _left_out(w, b, optimizer):
    optimizer.build([w, b])
    optimizer.apply_gradients([(jnp.zeros(()), w)])


def _other_strategy(w, b, optimizer):
    with mirrored(2).scope():
        other = rx.Variable(1.0, name="other")
    optimizer.apply_gradients([(jnp.zeros(()), other)])


def _no_strategy(w, b, optimizer):
    optimizer.apply_gradients([(jnp.zeros(()), OUTSIDE)])


def _build_of_arrays(w, b, optimizer):
    optimizer.build({"w": jnp.zeros(())})


OUTSIDE = rx.Variable(1.0, name="outside")

MISTAKES = {
    "none": (_none, r"got None as the gradient of variable 'w'.*leave it out.*or pass zeros"),
    "none_in_a_tree": (_none_in_a_tree, r"got None as the gradient of variable 'w'"),
    "shape": (_shape, r"gradient of variable 'w' has shape \(2,\).*the variable has shape \(\)"),
    "structure": (_structure, r"gradients of variables \['b', 'w'\] have another structure"),
    "no_array": (_no_array, r"gradient of variable 'w' is 'steep', of type str"),
    "no_pair": (_no_pair, r"needs pairs \(gradient, variable\)"),
    "no_variable": (_no_variable, r"needs variables as the second.*variables_from"),
    "empty": (_empty, r"got no gradients"),
    "twice": (_twice, r"got a variable twice: \['w', 'w'\]"),
    "unknown": (_unknown, r"variables \['b'\], which its state was not built for: that is \['w'\]"),
    "left_out": (_left_out, r"no gradient of variables \['b'\].*optax.masked"),
    "other_strategy": (_other_strategy, r"variable 'other', which was created under another one"),
    "no_strategy": (_no_strategy, r"variable 'outside', which was created outside every scope"),
    "build_of_arrays": (_build_of_arrays, r"build of optimizer 'Optimizer' got .* at .*'w'"),
}


PLACES = [
    (name, where)
    for name in MISTAKES
    for where in ("cross_replica", *EXECUTORS)
    if (name, where == "cross_replica") != ("other_strategy", False)  # no scope may be entered
]


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_a_mistake_is_named_with_the_variable_and_the_fix(name, where):
    mistake, message = MISTAKES[name]
    strategy = mirrored(2)
    with strategy.scope():
        w, b = rx.Variable(1.0, name="w"), rx.Variable([1.0, 2.0], name="b")
        optimizer = Optimizer(optax.sgd(1.0))
    with pytest.raises(ValueError, match=message):
        if where == "cross_replica":
            mistake(w, b, optimizer)
        else:
            EXECUTORS[where](strategy, lambda: mistake(w, b, optimizer))
    assert float(w) == 1.0


def test_an_unreduced_gradient_without_aggregation_is_refused_and_named(execute):
    strategy = mirrored(2)
    w, optimizer = made(strategy)
    with pytest.raises(
        ValueError, match=r"variable 'w'.*differs|variable 'w' that is not the same"
    ):
        execute(strategy, lambda: optimizer.apply_gradients([(replica_id(), w)], aggregate=False))
    assert float(w) == 1.0
    # The optimizer works afterwards.
    execute(strategy, lambda: optimizer.apply_gradients([(replica_id(), w)]))
    assert float(w) == 0.0


def test_an_optimizer_of_another_strategy_is_refused():
    w, optimizer = made(mirrored(2))
    other = mirrored(3)
    with pytest.raises(RuntimeError, match=r"apply_gradients of optimizer 'Optimizer'.*Create the"):
        other.run(lambda: optimizer.apply_gradients([(1.0, w)]))


def test_accumulating_in_two_ways_is_refused():
    strategy = mirrored(2)
    w, optimizer = made(strategy, accumulate_steps=2)
    strategy.run(lambda: optimizer.apply_gradients([(1.0, w)]))
    with pytest.raises(ValueError, match=r"accumulates per-replica gradients of \['w'\]"):
        strategy.run(lambda: optimizer.apply_gradients([(1.0, w)], aggregate=False))


BAD_OPTIONS = {
    "no_transformation": (lambda: Optimizer(optax.adam), TypeError, "Call the factory"),
    "aggregation": (lambda: Optimizer(optax.sgd(1.0), aggregation="MAX"), ValueError, "'MAX'"),
    "clip": (lambda: Optimizer(optax.sgd(1.0), clip_global_norm=0.0), ValueError, "is 0.0"),
    "steps": (lambda: Optimizer(optax.sgd(1.0), accumulate_steps=0), ValueError, "1 or more"),
    "steps_type": (lambda: Optimizer(optax.sgd(1.0), accumulate_steps=1.5), TypeError, "an int"),
    "momentum": (lambda: SGD(momentum=2.0), ValueError, "momentum is 2.0"),
    "in_run": (
        lambda: mirrored(2).run(lambda: Optimizer(optax.sgd(1.0))),
        RuntimeError,
        "Create it in `with strategy.scope",
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_refused(name):
    call, kind, message = BAD_OPTIONS[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_learning_rate_that_is_a_schedule_cannot_be_replaced():
    optimizer = SGD(optax.constant_schedule(0.1))
    with pytest.raises(AttributeError, match="is the schedule"):
        optimizer.learning_rate = 0.5


@pytest.mark.parametrize(
    "transformation",
    [
        optax.inject_hyperparams(optax.sgd)(learning_rate=1.0),
        optax.chain(optax.identity(), optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)),
    ],
    ids=["alone", "in a chain"],
)
def test_the_learning_rate_of_a_transformation_can_be_changed(transformation, execute):
    strategy = mirrored(2)
    w, optimizer = made(strategy, 0.0, transformation)
    optimizer.build(w)

    def step():
        optimizer.apply_gradients([(jnp.float32(1.0), w)])

    step = execute.prepare(strategy, step)
    step()
    assert (float(w), float(optimizer.learning_rate)) == (-2.0, 1.0)
    optimizer.learning_rate = 0.25
    step()
    assert float(w) == -2.5


UNCHANGEABLE = {
    "no hyperparameters": (optax.sgd(0.1), "has 0 learning rates"),
    "a schedule": (
        optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.0, 5)),
        "has 0 learning rates .*and not a schedule",
    ),
    "two": (
        optax.chain(*[optax.inject_hyperparams(optax.sgd)(0.1) for _ in range(2)]),
        r"has 2 learning rates that can be changed: \['Optimizer/0/hyperparams/learning_rate', ",
    ),
}


@pytest.mark.parametrize("name", UNCHANGEABLE)
def test_a_learning_rate_that_cannot_be_changed_is_refused(name):
    transformation, message = UNCHANGEABLE[name]
    w, optimizer = made(mirrored(2), 0.0, transformation)
    with pytest.raises(AttributeError, match="has no state yet"):
        optimizer.learning_rate = 0.5
    optimizer.build(w)
    with pytest.raises(AttributeError, match=message):
        optimizer.learning_rate = 0.5


def test_a_transformation_that_changes_the_shape_of_its_state_is_refused():
    def update(updates, state, params=None):
        return updates, jnp.concatenate([state, state])

    transformation = optax.GradientTransformation(lambda params: jnp.zeros(2), update)
    w = rx.Variable(1.0, name="w")
    optimizer = Optimizer(transformation)
    with pytest.raises(ValueError, match=r"changed its state 'Optimizer' from shape \(2,\)"):
        optimizer.apply_gradients([(1.0, w)])
    assert float(w) == 1.0


def test_low_precision_parameters_keep_their_dtype_and_that_of_the_state(execute):
    strategy = mirrored(2)
    w, optimizer = made(
        strategy,
        jnp.ones(3, jnp.bfloat16),
        optax.inject_hyperparams(optax.sgd)(0.1, momentum=0.9),
    )

    def step():
        optimizer.apply_gradients([(rx.grad(lambda: (w * w).sum(), w), w)])

    step = execute.prepare(strategy, step)
    step()
    step()
    assert w.dtype == jnp.bfloat16
    assert float(jnp.max(jnp.asarray(w))) < 1.0
    assert jax.tree.leaves(optimizer.iterations)[0].dtype == jnp.int32
