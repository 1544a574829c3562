"""State that other libraries change in place is refused in steps, and their pure trees are not."""

import types

import flax.linen
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import replicax as rx

NNX = "is a Flax NNX object of type .*integrations.flax.distribute"
KERAS = "is a Keras object of type .*model.stateless_call"
TORCH = "is a PyTorch object of type .*write the model with JAX"


def torch_class(module, name):
    return types.new_class(name, (), {}, lambda body: body.update(__module__=module))


class TorchNet(torch_class("torch.nn.modules.module", "Module")):
    """Stands for a subclass of a user; torch itself is not needed to recognise it."""


def linear():
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def keras_model():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.build((None, 2))
    return model


STATES = {
    "nnx module": (linear, NNX),
    "nnx optimizer": (lambda: nnx.Optimizer(linear(), optax.sgd(0.1), wrt=nnx.Param), NNX),
    "nnx variable": (lambda: linear().kernel, NNX),
    "nnx rngs": (lambda: nnx.Rngs(0), NNX),
    "nnx metric": (lambda: nnx.metrics.Average(), NNX),
    "keras model": (keras_model, KERAS),
    "keras variable": (lambda: keras.Variable(1.0), KERAS),
    "keras optimizer": (lambda: keras.optimizers.SGD(), KERAS),
    "keras metric": (lambda: keras.metrics.Mean(), KERAS),
    "torch module": (TorchNet, TORCH),
    "torch optimizer": (torch_class("torch.optim.optimizer", "Optimizer"), TORCH),
}


class Trainer:
    """What a user would write: a step that is a method, and state in attributes."""

    def __init__(self, model):
        self.model = model
        self.parts = [model]

    def step(self, x):
        return self.forward(x)

    def forward(self, x):
        return self.model, x

    def step_of_parts(self, x):
        return self.parts, x

    def pure_step(self, x):
        return x * 2


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def batch(strategy):
    return strategy.distribute_batch(np.ones((4, 2), np.float32))


@pytest.fixture(params=["eager", "compiled"])
def run(strategy, request):
    wrap = rx.function if request.param == "compiled" else lambda fn: fn
    return lambda fn, *args: strategy.run(wrap(fn), args=args)


@pytest.mark.parametrize("name", STATES)
def test_state_of_a_library_is_refused_as_an_argument(run, batch, name):
    make, message = STATES[name]
    with pytest.raises(rx.ReplicaxError, match=rf"(?s)the argument at \[0\]\[0\] {message}"):
        run(lambda state, x: x, make(), batch)
    with pytest.raises(TypeError, match=rf"(?s)the argument at \[0\]\[0\]\['a'\]\[0\] {message}"):
        run(lambda state, x: x, {"a": [make()]}, batch)


@pytest.mark.parametrize("name", STATES)
def test_state_of_a_library_is_refused_where_it_is_captured(run, batch, name):
    make, message = STATES[name]
    state = make()
    states = [state]
    with pytest.raises(TypeError, match=rf"(?s)the captured value 'state' {message}"):
        run(lambda x: (state, x), batch)
    with pytest.raises(TypeError, match=rf"(?s)the captured value 'states' {message}"):
        run(lambda x: (states, x), batch)


@pytest.mark.parametrize("name", STATES)
def test_state_of_a_library_is_refused_in_a_function_without_a_strategy(name):
    make, message = STATES[name]
    state = make()
    with pytest.raises(TypeError, match=f"(?s)the argument at .* {message}"):
        rx.function(lambda state, x: x)(state, 1.0)
    with pytest.raises(TypeError, match=f"(?s)the captured value 'state' {message}"):
        rx.function(lambda x: (state, x))(1.0)


@pytest.mark.parametrize("method", ["step", "step_of_parts"])
def test_an_attribute_that_a_step_uses_is_refused(run, batch, method):
    trainer = Trainer(linear())
    with pytest.raises(TypeError, match=r"the captured value 'self\.(model|parts)' is a Flax"):
        run(getattr(trainer, method), batch)
    with pytest.raises(TypeError, match=r"the captured value 'trainer\.model' is a Flax"):
        run(lambda x: (trainer.model, x), batch)


def test_an_attribute_that_a_step_does_not_use_is_not_refused(run, batch):
    assert isinstance(run(Trainer(linear()).pure_step, batch), rx.PerReplica)


_module = linear()


def _helper(x):
    return _module(x)


def test_a_global_that_a_step_uses_is_refused(run, batch):
    with pytest.raises(TypeError, match="the captured value '_module' is a Flax NNX object"):
        run(lambda x: _helper(x), batch)


def test_the_step_itself_may_not_be_such_an_object(run, batch):
    with pytest.raises(TypeError, match="the function is a Flax NNX object of type Linear"):
        run(linear(), batch)
    with pytest.raises(TypeError, match="the object of the method '__call__' is a Flax NNX object"):
        run(linear().__call__, batch)


def test_what_a_wrapped_function_has_captured_is_refused(run, batch):
    module = linear()
    jitted = jax.jit(lambda x: module(x))
    with pytest.raises(TypeError, match=r"'jitted\.module' is a Flax NNX object"):
        run(lambda x: jitted(x), batch)


def test_a_run_inside_a_function_refuses_what_the_function_has_made(strategy, batch):
    graphdef, state = nnx.split(linear())

    @rx.function
    def step(x):
        return strategy.run(lambda module, x: module(x), args=(nnx.merge(graphdef, state), x))

    with pytest.raises(TypeError, match=r"the argument at \[0\]\[0\] is a Flax NNX object"):
        step(batch)


def test_nnx_jit_may_change_what_the_step_has_made(run, strategy, batch):
    graphdef, state = nnx.split(linear())
    forward = nnx.jit(lambda module, x: module(x))
    result = run(lambda state, x: forward(nnx.merge(graphdef, state), x), state, batch)
    wanted = linear()(jnp.ones((4, 2)))
    np.testing.assert_allclose(strategy.gather(result, axis=0), wanted, rtol=1e-6)


def test_a_refused_step_changes_nothing_and_the_strategy_works_afterwards(run, batch):
    module = linear()
    before = np.asarray(module.kernel[...])

    def step(module, x):
        module.kernel[...] += 1.0
        return x

    with pytest.raises(TypeError, match="Flax NNX"):
        run(step, module, batch)
    np.testing.assert_array_equal(module.kernel[...], before)
    assert isinstance(run(lambda x: x * 2, batch), rx.PerReplica)


def test_the_documented_way_of_nnx_works(strategy, run, batch):
    module = linear()
    graphdef, state = nnx.split(module)
    with strategy.scope():
        params = rx.variables_from(state)
    for step in (
        lambda x: nnx.merge(graphdef, rx.values_of(params))(x),
        lambda x: nnx.merge(graphdef, state)(x),
    ):
        result = strategy.gather(run(step, batch), axis=0)
        np.testing.assert_allclose(result, module(jnp.ones((4, 2))), rtol=1e-6)
    result = strategy.gather(run(lambda s, x: nnx.merge(graphdef, s)(x), state, batch), axis=0)
    np.testing.assert_allclose(result, module(jnp.ones((4, 2))), rtol=1e-6)


def test_the_documented_way_of_keras_works(strategy, run, batch):
    model = keras_model()
    apply = model.stateless_call
    with strategy.scope():
        params = rx.variables_from([v.value for v in model.trainable_variables])
    result = strategy.gather(run(lambda x: apply(rx.values_of(params), [], x)[0], batch), axis=0)
    np.testing.assert_allclose(result, model(np.ones((4, 2))), rtol=1e-6)


def test_pure_modules_and_trees_are_allowed(strategy, run, batch):
    module = flax.linen.Dense(3)
    params = module.init(jax.random.key(0), jnp.ones((1, 2)))
    state = TrainState.create(apply_fn=module.apply, params=params, tx=optax.adam(1e-3))
    expected = module.apply(params, jnp.ones((4, 2)))
    for result in (
        run(lambda x: module.apply(params, x), batch),
        run(lambda params, x: module.apply(params, x), params, batch),
        run(lambda state, x: state.apply_fn(state.params, x), state, batch),
    ):
        np.testing.assert_allclose(strategy.gather(result, axis=0), expected, rtol=1e-6)
