"""`Optimizer` on any number of replicas trains as plain Optax does on one device."""

import jax
import optax
import pytest

import replicax as rx
from replicax.optimizers import named
from replicax.optimizers.trees import values_of
from tests.optimizers.problem import (
    Training,
    assert_close,
    central,
    initial,
    mirrored,
    train_plain,
)

OPTIMIZERS = {
    "sgd_momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(0.01),
    "adamw": lambda: optax.adamw(0.01, weight_decay=0.01),
    "adafactor": lambda: optax.adafactor(0.01, min_dim_size_to_factor=2),
    "lamb": lambda: optax.lamb(0.01),
}

STRATEGIES = {
    "mirrored_1": lambda: mirrored(1),
    "mirrored_2": lambda: mirrored(2),
    "mirrored_4": lambda: mirrored(4),
    "mirrored_8": lambda: mirrored(8),
    "central_3": lambda: central(3),
}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def reference(request):
    """An optimizer, and the parameters after 100 steps of it on one device."""
    make = OPTIMIZERS[request.param]
    return make, train_plain(make(), 100)


@pytest.mark.quick
@pytest.mark.parametrize("make_strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_100_compiled_steps_equal_plain_optax(reference, make_strategy):
    make, expected = reference
    training = Training(make_strategy(), make())
    assert_close(training.run(100), expected)
    assert int(training.optimizer.iterations) == 100


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager_steps_equal_plain_optax(name):
    make = OPTIMIZERS[name]
    strategy = central(2) if name == "adam" else mirrored(3)
    training = Training(strategy, make(), compiled=False)
    assert_close(training.run(3), train_plain(make(), 3))


def test_eager_and_compiled_steps_may_alternate():
    training = Training(mirrored(2), optax.adam(0.01))
    training.run(3)
    training._step = training.step
    training.run(3)
    training._step = rx.function(training.step)
    plain = optax.adam(0.01)
    # `run` starts at the first batch each time, as three epochs of three steps do.
    assert_close(training.run(3), train_plain(plain, 9))


# -- every way to compose transformations --------------------------------------------------------


def _labels(params):
    return {
        "hidden": {"kernel": "adam", "bias": "frozen"},
        "out": jax.tree.map(lambda _: "sgd", params["out"]),
    }


TRANSFORMATIONS = {
    "chain": lambda: optax.chain(
        optax.clip(0.1), optax.scale_by_adam(), optax.add_decayed_weights(0.01), optax.scale(-0.01)
    ),
    "masked": lambda: optax.chain(
        optax.masked(
            optax.add_decayed_weights(0.1),
            {"hidden": {"kernel": True, "bias": False}, "out": {"kernel": True}},
        ),
        optax.masked(optax.trace(0.9), lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
        optax.scale(-0.02),
    ),
    "multi_transform": lambda: optax.multi_transform(
        {"adam": optax.adam(0.01), "sgd": optax.sgd(0.02, 0.9), "frozen": optax.set_to_zero()},
        _labels,
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.linear_schedule(0.02, 0.001, 5), b1=0.8
    ),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.01), every_k_schedule=3),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.01), max_consecutive_errors=2),
    "schedule": lambda: optax.sgd(optax.cosine_decay_schedule(0.05, 6)),
    "noise": lambda: optax.chain(optax.add_noise(0.01, 0.55, key=3), optax.sgd(0.02)),
    "clip_by_global_norm": lambda: optax.chain(
        optax.clip_by_global_norm(0.2), optax.sgd(0.1, nesterov=True, momentum=0.9)
    ),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.sgd(0.05)),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_composed_transformation_equals_plain_optax(name, compiled):
    make = TRANSFORMATIONS[name]
    training = Training(mirrored(2), make(), compiled=compiled)
    num_steps = 7 if compiled else 4
    assert_close(training.run(num_steps), train_plain(make(), num_steps))


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_lookahead_trains_the_fast_parameters_and_keeps_the_slow_ones(compiled):
    def make():
        return optax.lookahead(optax.adam(0.02), sync_period=3, slow_step_size=0.5)

    start = optax.LookaheadParams.init_synced(initial())
    expected = train_plain(make(), 7, params=start, trained=lambda params: params.fast)
    training = Training(mirrored(2), make(), compiled=compiled, params=start)
    assert_close(training.run(7), expected)
    kernel = training.params.fast["hidden"]["kernel"]
    assert set(training.optimizer.slots_of(kernel)) == {"fast_state/0/mu", "fast_state/0/nu"}


def test_state_that_starts_as_a_copy_of_the_parameters_is_made_in_a_compiled_step():
    def make():
        return optax.contrib.schedule_free_sgd(0.05)

    training = Training(mirrored(2), make())
    assert_close(training.run(6), train_plain(make(), 6))


def test_a_step_that_is_not_finite_is_left_out_on_every_replica():
    strategy = mirrored(2)
    with strategy.scope():
        training = Training(strategy, optax.apply_if_finite(optax.sgd(0.1), 3))
    before = training.run(1)
    gradients = jax.tree.map(lambda value: value * float("nan"), before)
    with strategy.scope():
        training.optimizer.apply_gradients([(gradients, training.params)])
    assert_close(values_of(training.params), before)
    assert int(training.optimizer.state.total_notfinite) == 1


# -- the named ones ------------------------------------------------------------------------------

NAMED = {
    "SGD": (lambda: named.SGD(0.05), lambda: optax.sgd(0.05)),
    "SGD_nesterov": (
        lambda: named.SGD(0.05, momentum=0.9, nesterov=True),
        lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    ),
    "Adam": (lambda: named.Adam(0.01), lambda: optax.adam(0.01, eps=1e-7)),
    "Adam_schedule": (
        lambda: named.Adam(optax.linear_schedule(0.02, 0.0, 9)),
        lambda: optax.adam(optax.linear_schedule(0.02, 0.0, 9), eps=1e-7),
    ),
    "AdamW": (
        lambda: named.AdamW(0.01),
        lambda: optax.adamw(0.01, eps=1e-7, weight_decay=0.004),
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_optimizer_equals_its_optax_namesake(name):
    make, make_plain = NAMED[name]
    strategy = mirrored(2)
    training = Training(strategy, optax.identity())
    with strategy.scope():
        training.optimizer = make()
    assert_close(training.run(6), train_plain(make_plain(), 6))


def test_the_learning_rate_of_a_named_optimizer_is_a_variable_of_the_program():
    strategy = mirrored(2)
    with strategy.scope():
        w = rx.Variable(1.0)
        optimizer = named.SGD(0.5)
    traces = []

    @rx.function
    def step():
        traces.append(1)
        optimizer.apply_gradients([(rx.grad(lambda: w / 2, w), w)])

    strategy.run(step)
    num_traces = len(traces)
    optimizer.learning_rate = 0.25
    strategy.run(step)
    assert float(w) == 0.25
    assert len(traces) == num_traces
    assert optimizer.learning_rate in optimizer.variables
