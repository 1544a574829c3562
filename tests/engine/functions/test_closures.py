"""What a function has captured, and copies of functions with other values in its place."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from replicax.engine.functions.closures import captured, constants, shared_inputs, with_inputs


def is_float(value):
    return type(value) is float


def inputs_of(fn):
    found = captured(fn, is_float)
    return {".".join(name): value for name, value in zip(found.names, found.inputs, strict=True)}


def scaled(scale):
    def fn(x, offset=1.0, *, factor=2.0):
        return x * scale * factor + offset

    return fn


class Pair(NamedTuple):
    first: object
    second: object


def test_inputs_are_found_in_cells_defaults_and_keywords():
    assert inputs_of(scaled(3.0)) == {"scale": 3.0, "offset": 1.0, "factor": 2.0}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda fn: lambda x: fn(x),
        lambda fn: functools.partial(fn),
        lambda fn: (lambda fns: lambda x: fns[0](x))((fn,)),
        lambda fn: (lambda pair: lambda x: pair.second(x))(Pair(None, fn)),
        lambda fn: lambda x: functools.partial(fn, x)(),
    ],
    ids=["function", "partial", "tuple", "NamedTuple", "partial inside"],
)
def test_a_copy_has_other_inputs_however_deep_they_are_and_the_original_its_own(wrap):
    fn = wrap(scaled(3.0))
    copy = with_inputs(fn, is_float, [10.0, 20.0, 30.0])
    assert copy(1.0) == 1.0 * 10.0 * 30.0 + 20.0
    assert fn(1.0) == 7.0


def test_the_key_does_not_depend_on_inputs_and_on_everything_else():
    assert captured(scaled(3.0), is_float).key == captured(scaled(4.0), is_float).key
    assert captured(scaled(3), is_float).key != captured(scaled(4), is_float).key
    assert captured(scaled(3.0)).key != captured(scaled(4.0)).key


def test_the_bits_of_a_number_count():
    nan = float("nan")
    assert captured(scaled(0.0)).key != captured(scaled(-0.0)).key
    assert captured(scaled(0j)).key != captured(scaled(complex(0.0, -0.0))).key
    assert captured(scaled(nan)).key == captured(scaled(float("nan"))).key
    assert len({captured(scaled(one)).key for one in (1, 1.0, True, 1 + 0j)}) == 4


def test_functions_that_refer_to_each_other_are_copied_together():
    def make(scale):
        def even(n):
            return scale if n == 0 else odd(n - 1)

        def odd(n):
            return -scale if n == 0 else even(n - 1)

        return even

    fn = make(2.0)
    copy = with_inputs(fn, is_float, [5.0])
    assert [copy(n) for n in range(4)] == [5.0, -5.0, 5.0, -5.0]
    assert fn(1) == -2.0
    assert captured(make(1.0)).key == captured(make(1.0)).key
    assert captured(make(1.0)).key != captured(make(2.0)).key


def test_a_cell_that_a_function_assigns_holds_no_input_and_is_shared():
    count, offset = 0.0, 5.0

    def bump():
        nonlocal count
        count += 1.0

    def fn():
        bump()
        return count + offset

    assert inputs_of(fn) == {"offset": 5.0}
    assert with_inputs(fn, is_float, [50.0])() == 51.0
    assert count == 1.0


def test_cells_and_functions_without_inputs_stay_the_same_objects():
    log, scale = [], 2.0

    def note(x):
        log.append(x)
        return x

    def fn(x):
        return note, note(x) * scale

    assert with_inputs(fn, is_float, [3.0])(1.0) == (note, 3.0)
    assert log == [1.0]


def test_a_copy_is_called_what_the_original_is_called():
    fn = scaled(3.0)
    fn.mark = "kept"
    copy = with_inputs(fn, is_float, [1.0, 1.0, 1.0])
    assert (copy.__name__, copy.__qualname__, copy.__module__, copy.mark) == (
        fn.__name__,
        fn.__qualname__,
        fn.__module__,
        "kept",
    )
    assert not hasattr(copy, "__wrapped__")


def test_what_a_wrapper_has_wrapped_belongs_to_the_key_and_holds_no_inputs():
    scale = 2.0
    jitted = jax.jit(lambda x: x * scale)
    fn = lambda x: jitted(x)  # noqa: E731
    before = captured(fn, is_float)
    assert before.inputs == []
    scale = 3.0
    assert captured(fn, is_float).key != before.key
    scale = 2.0
    assert captured(fn, is_float).key == before.key


def test_what_is_not_an_input_is_known_by_name():
    assert constants(scaled(3.0), is_float) == {}
    (old,), (new,) = (constants(scaled(one), is_float).values() for one in (3, 4))
    assert old != new
    assert list(constants(scaled(3), is_float)) == [("scale",)]


def test_arrays_can_be_inputs_under_a_trace():
    array = jnp.arange(3.0)
    fn = lambda x: x + array  # noqa: E731
    is_array = lambda value: isinstance(value, jax.Array)  # noqa: E731
    traced = jax.jit(lambda value, x: with_inputs(fn, is_array, [value])(x))
    assert traced(jnp.ones(3), 1.0).tolist() == [2.0, 2.0, 2.0]


def test_a_value_that_is_also_inside_a_wrapper_has_its_value_in_the_key():
    def make(scale):
        jitted = jax.jit(lambda x: x * scale)
        return lambda x: jitted(x) + scale

    first, second = make(2.0), make(3.0)
    assert captured(first, is_float).inputs == [2.0]
    assert captured(first, is_float).key != captured(second, is_float).key


def test_a_wrapper_that_has_captured_itself_has_a_key():
    @jax.jit
    def countdown(n):
        return countdown(n - 1) if False else n

    fn = lambda x: countdown(x)  # noqa: E731
    assert captured(fn).key == captured(fn).key


def test_an_input_that_other_functions_have_captured_too_is_found():
    scale, own = 2.0, 3.0
    helpers = [lambda x: x * scale]
    fn = lambda x: helpers[0](x) * scale + own  # noqa: E731
    found = captured(fn, is_float)
    assert [found.names[i] for i in shared_inputs(fn, is_float)] == [("scale",)]
    helpers.clear()
    assert shared_inputs(fn, is_float) == set()


def test_nothing_inside_a_function_that_others_have_captured_is_an_input_for_sure():
    inner, own = scaled(2.0), 3.0
    helpers = [lambda x: inner(x)]
    fn = lambda x: inner(x) + helpers[0](x) + own  # noqa: E731
    assert shared_inputs(fn, is_float) == set(range(len(captured(fn, is_float).inputs)))
