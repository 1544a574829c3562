"""What functions bring along, and the same functions with other values."""

import functools

import jax
import pytest

from replicax.engine.eager.captured import captured_by, with_captured


def listed(fn):
    return {c.path: c.value for c in captured_by(fn) if c.is_replaceable}


def make(n):
    def inner(k=2):
        return n * k

    return lambda x, *, y=5: inner() + x + y


class Holder:
    def __init__(self, n):
        self.n = n

    def method(self, x):
        return self.n + x


def test_names_defaults_and_inner_functions_are_listed_by_path():
    assert listed(make(3)) == {"inner.n": 3, "inner.k": 2, "y": 5}


def test_what_a_method_is_bound_to_and_a_partial_fixes_is_listed():
    holder = Holder(1)
    assert listed(holder.method) == {"self": holder}
    assert listed(functools.partial(max, 1, key=2)) == {"[0][0]": 1, "[1]['key']": 2}


def test_a_copy_has_other_values_and_leaves_the_original_alone():
    fn = make(3)
    copy = with_captured(fn, {"inner.n": 10, "y": 0})
    assert (copy(1), fn(1)) == (21, 12)
    assert copy.__qualname__ == fn.__qualname__
    assert [c.path for c in captured_by(copy)] == [c.path for c in captured_by(fn)]


def test_a_copy_of_methods_and_partials_has_other_values():
    copy = with_captured(Holder(1).method, {"self": Holder(5)})
    assert copy(1) == 6
    copy = with_captured(functools.partial(lambda a, b, c: (a, b, c), 1, c=3), {"[0][0]": 9})
    assert copy(2) == (9, 2, 3)


def test_functions_that_share_a_cell_share_it_in_the_copy():
    count = 0

    def add():
        nonlocal count
        count += 1

    def both():
        add()
        return count

    assert with_captured(both, {"add.count": 10})() == 11
    assert count == 0


def test_functions_that_call_each_other_are_copied_once():
    start = 5

    def even(n):
        return start if n == 0 else odd(n - 1)

    def odd(n):
        return -start if n == 0 else even(n - 1)

    copy = with_captured(even, {"odd.start": 7, "start": 7})
    assert (copy(2), copy(3)) == (7, -7)
    assert (even(2), even(3)) == (5, -5)


def test_what_a_jitted_function_captures_is_listed_and_cannot_be_replaced():
    n = 3
    jitted = jax.jit(lambda x: x * n)
    (found,) = [c for c in captured_by(lambda: jitted(1)) if c.path == "jitted.n"]
    assert (found.value, found.is_replaceable) == (3, False)


def test_a_jitted_function_that_calls_itself_is_listed():
    @jax.jit
    def down(x):
        return x if x.ndim == 0 else down(x[0])

    assert [c.path for c in captured_by(down)] == ["down"]


def test_a_name_without_a_value_and_a_dict_without_an_order_are_listed():
    mixed = {1: "a", "b": 2}

    def fn():
        return later, mixed

    assert listed(fn) == {"mixed": mixed}
    later = 1
    assert listed(fn) == {"mixed": mixed, "later": later}


@pytest.mark.parametrize("values", [{}, {"nothing": 1}])
def test_without_values_for_it_a_function_does_what_it_did(values):
    assert with_captured(make(3), values)(1) == 12
