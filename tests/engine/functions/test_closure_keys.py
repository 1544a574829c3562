"""Keys that recognise functions and objects without keeping them alive."""

import functools
import gc
import weakref

import pytest

from replicax.engine.functions.closures import ById, function_key, value_key


class Thing:
    def __eq__(self, other):
        return isinstance(other, Thing)

    def __hash__(self):
        return 1

    def method(self, x):
        return x


# -- by identity -------------------------------------------------------------------------------


def test_by_id_is_equal_for_the_same_object_only():
    one, other = Thing(), Thing()
    assert ById(one) == ById(one)
    assert hash(ById(one)) == hash(ById(one))
    assert one == other
    assert ById(one) != ById(other)
    assert ById(one) != one
    assert ById(one).target() is one


def test_by_id_does_not_keep_its_target_alive_and_then_equals_nothing():
    thing = Thing()
    key, same = ById(thing), ById(thing)
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
    assert key.target() is None
    assert key != same
    assert repr(key) == "<object that is gone>"
    hash(key)  # it may still be in a dictionary


def test_by_id_of_an_object_that_takes_the_place_of_a_dead_one_is_another():
    for _ in range(100):
        first = Thing()
        number, key = id(first), ById(first)
        del first
        second = Thing()
        if id(second) == number:
            assert key != ById(second)
            return
        del second


def test_by_id_keeps_alive_what_cannot_be_held_weakly():
    value = [1, 2]
    key = ById(value)
    del value
    assert key.target() == [1, 2]
    assert repr(key) == "<list object>"


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 1.5, True, "text", b"bytes", None, 2j, (1, ("a", None))])
def test_numbers_strings_and_tuples_of_them_go_by_value(value):
    copy = eval(repr(value))
    assert value_key(value) == value_key(copy)
    assert hash(value_key(value)) == hash(value_key(copy))


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (1, True), (0, False), ("1", b"1"), ((1,), (1.0,)), (0.0, 0)]
)
def test_equal_values_of_different_types_differ(one, other):
    assert value_key(one) != value_key(other)


def test_everything_else_goes_by_identity():
    one, other = Thing(), Thing()
    assert value_key(one) == value_key(one)
    assert value_key(one) != value_key(other)
    assert value_key([1]) != value_key([1])
    assert value_key((one,)) == value_key((one,))
    assert value_key((one,)) != value_key((other,))


class Number(int):
    pass


def test_a_subclass_of_a_number_goes_by_identity():
    one, other = Number(1), Number(1)
    assert value_key(one) != value_key(other)
    assert value_key(one) != value_key(1)


def test_functions_among_values_go_by_what_they_do():
    assert value_key(adder(1)) == value_key(adder(1))
    assert value_key(adder(1)) != value_key(adder(2))


# -- functions ---------------------------------------------------------------------------------


def adder(n):
    return lambda x: x + n


def test_the_same_code_with_equal_captured_numbers_is_the_same_function():
    assert function_key(adder(1)) == function_key(adder(1))
    assert hash(function_key(adder(1))) == hash(function_key(adder(1)))
    assert function_key(adder(1)) != function_key(adder(2))
    assert function_key(adder(1)) != function_key(adder(1.0))
    assert function_key(adder(1)) != function_key(adder(True))


def test_captured_objects_go_by_identity():
    thing = Thing()
    assert function_key(adder(thing)) == function_key(adder(thing))
    assert function_key(adder(thing)) != function_key(adder(Thing()))


def test_different_code_is_a_different_function():
    def one(x):
        return x

    def other(x):
        return x + 1

    assert function_key(one) != function_key(other)


def test_captured_functions_are_looked_into():
    def outer(n):
        inner = adder(n)
        return lambda x: inner(x)

    assert function_key(outer(1)) == function_key(outer(1))
    assert function_key(outer(1)) != function_key(outer(2))


def test_a_function_that_captured_itself_has_a_key():
    def make():
        def countdown(n):
            return countdown(n - 1) if n else 0

        return countdown

    one = make()
    assert function_key(one) == function_key(one)


def test_defaults_are_part_of_the_key():
    def make(value, *, keyword):
        def fn(x, y=value, *, z=keyword):
            return x

        return fn

    assert function_key(make(1, keyword=2)) == function_key(make(1, keyword=2))
    assert function_key(make(1, keyword=2)) != function_key(make(3, keyword=2))
    assert function_key(make(1, keyword=2)) != function_key(make(1, keyword=3))


def test_a_bound_method_is_known_by_its_function_and_its_self():
    one, other = Thing(), Thing()
    assert function_key(one.method) == function_key(one.method)
    assert function_key(one.method) != function_key(other.method)


def test_a_partial_is_known_by_its_function_and_its_arguments():
    def fn(x, y, z=0):
        return x

    make = functools.partial
    assert function_key(make(fn, 1, z=2)) == function_key(make(fn, 1, z=2))
    assert function_key(make(fn, 1, z=2)) != function_key(make(fn, 2, z=2))
    assert function_key(make(fn, 1, z=2)) != function_key(make(fn, 1, z=3))
    assert function_key(make(fn, 1)) != function_key(fn)


def test_a_callable_object_goes_by_identity():
    class Call:
        def __call__(self):
            return 1

    one = Call()
    assert function_key(one) == function_key(one)
    assert function_key(one) != function_key(Call())
    assert function_key(len) == function_key(len)


def test_a_cell_that_is_still_empty_has_a_key():
    def make():
        def fn():
            return later

        key = function_key(fn)
        later = 1
        return key, function_key(fn)

    before, after = make()
    assert before != after


def test_the_same_code_in_another_module_is_another_function():
    source = "def fn(x): return x"
    spaces = [{}, {}]
    for space in spaces:
        exec(source, space)
    assert function_key(spaces[0]["fn"]) != function_key(spaces[1]["fn"])


def test_a_key_keeps_neither_function_nor_captured_objects_nor_self_alive():
    thing = Thing()
    fn = adder(thing)
    partial = functools.partial(fn, thing)
    keys = [function_key(fn), function_key(thing.method), function_key(partial)]
    gone = [weakref.ref(thing), weakref.ref(fn)]
    del thing, fn, partial
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert len(keys) == 3
