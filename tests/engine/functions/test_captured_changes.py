"""A captured value that changes is noticed, whatever was called before."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


def times(x, factor=1.0):
    return x * factor


def of_a_partial():
    factor = 1.0
    scaled = functools.partial(lambda x: x * factor)

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: scaled(x), change


def of_the_keywords_of_a_partial():
    scaled = functools.partial(times, factor=1.0)
    return lambda x: scaled(x), lambda value: scaled.keywords.update(factor=value)


def of_a_tuple_of_functions():
    factor = 1.0
    functions = (lambda x: x, lambda x: x * factor)

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: functions[1](functions[0](x)), change


def of_a_bound_method():
    factor = 1.0

    class Model:
        def scaled(self, x):
            return x * factor

    scaled = Model().scaled

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: scaled(x), change


def of_another_object():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        def scaled(self, x):
            return x * self.factor

    models = {value: Model(value) for value in (1.0, 2.0, 5.0)}
    scaled = models[1.0].scaled

    def change(value):
        nonlocal scaled
        scaled = models[value].scaled

    return lambda x: scaled(x), change


def of_the_defaults():
    def scaled(x, factor=1.0):
        return x * factor

    def change(value):
        scaled.__defaults__ = (value,)

    return scaled, change


def of_the_defaults_of_keywords():
    def scaled(x, *, factor=1.0):
        return x * factor

    def change(value):
        scaled.__kwdefaults__["factor"] = value

    return scaled, change


def of_the_defaults_of_a_captured_function():
    def scaled(x, factor=1.0):
        return x * factor

    def change(value):
        scaled.__defaults__ = (value,)

    return lambda x: scaled(x), change


def of_another_compiled_function():
    factor = 1.0
    scaled = rx.function(lambda x: x * factor)

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: scaled(x), change


def of_a_compiled_method():
    factor = 1.0

    class Model:
        @rx.function
        def scaled(self, x):
            return x * factor

    model = Model()
    scaled = model.scaled

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: scaled(x) if model else x, change


def of_a_jitted_function():
    factor = 1.0
    scaled = jax.jit(lambda x: x * factor)

    def change(value):
        nonlocal factor
        factor = value

    return lambda x: scaled(x), change


def of_a_compiled_partial():
    factor = 1.0

    def change(value):
        nonlocal factor
        factor = value

    return functools.partial(lambda x: x * factor), change


def of_the_keywords_of_a_compiled_partial():
    scaled = functools.partial(times, factor=1.0)
    return scaled, lambda value: scaled.keywords.update(factor=value)


def of_functions_made_by_one_factory():
    factor = 1.0

    def wrapped(fn):
        return lambda x: fn(x)

    scaled = wrapped(wrapped(wrapped(lambda x: x * factor)))

    def change(value):
        nonlocal factor
        factor = value

    return scaled, change


def of_the_code():
    def scaled(x):
        return x * 1.0

    def change(value):
        namespace = {}
        exec(f"def scaled(x): return x * {value!r}", namespace)
        scaled.__code__ = namespace["scaled"].__code__

    return scaled, change


CASES = [
    of_a_partial,
    of_the_keywords_of_a_partial,
    of_a_tuple_of_functions,
    of_a_bound_method,
    of_another_object,
    of_the_defaults,
    of_the_defaults_of_keywords,
    of_the_defaults_of_a_captured_function,
    of_another_compiled_function,
    of_a_compiled_method,
    of_a_jitted_function,
    of_a_compiled_partial,
    of_the_keywords_of_a_compiled_partial,
    of_functions_made_by_one_factory,
    of_the_code,
]


@pytest.fixture(params=["called", 1, 2])
def call(request):
    """Calls a compiled function, or runs it on one or two replicas."""
    if request.param == "called":
        return lambda step, x: step(x)
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])

    def run(step, x):
        return strategy.experimental_local_results(strategy.run(step, args=(x,)))[-1]

    return run


@pytest.mark.parametrize("num_calls", [1, 4], ids=["called once", "repeated"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_is_noticed_after_one_call_and_after_many(call, case, num_calls):
    fn, change = case()
    step, x = rx.function(fn), jnp.float32(3.0)
    for factor in (1.0, 2.0, 1.0, 2.0, 5.0):
        change(factor)
        for _ in range(num_calls):
            assert float(call(step, x)) == 3.0 * factor
    assert step.trace_count == 3


@pytest.mark.parametrize("num_calls", [1, 4], ids=["called once", "repeated"])
def test_a_captured_zero_keeps_its_sign(call, num_calls):
    zero = 0.0
    step = rx.function(lambda x: x * 0 + zero if x.ndim else jnp.copysign(x, zero))
    for value in (0.0, -0.0, 0.0):
        zero = value
        for _ in range(num_calls):
            assert float(call(step, jnp.float32(3.0))) == np.copysign(3.0, value)


@pytest.mark.parametrize("values", [(True, 1, 1.0), (1.0, True, 1)])
def test_equal_numbers_of_other_types_are_other_values(call, values):
    captured = None
    step = rx.function(lambda x: x * len(type(captured).__name__))
    for value in values:
        captured = value
        for _ in range(3):
            assert float(call(step, jnp.float32(1.0))) == len(type(value).__name__)


def test_a_captured_nan_is_always_the_same():
    nan = float("nan")
    step = rx.function(lambda x: x * nan)
    for _ in range(3):
        nan = float("nan")
        step(1.0)
    assert step.trace_count == 1


def test_replicas_that_return_zeros_of_different_sign_keep_them():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])

    def fn():
        return 0.0 if rx.get_replica_context().replica_id_in_sync_group else -0.0

    zeros = strategy.experimental_local_results(strategy.run(fn))
    assert [float(np.copysign(1.0, zero)) for zero in zeros] == [-1.0, 1.0]
