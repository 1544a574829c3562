"""Functions that capture a replica's locals: each replica's own take part, or it is an error."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from tests.contracts.strategies import local_ids, mirrored

SUM = rx.VariableAggregation.SUM


def context():
    return rx.get_replica_context()


def values_of(strategy, result):
    return [float(value) for value in strategy.experimental_local_results(result)]


def own_values(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(2.0 * 10**ctx.replica_id_in_sync_group)
    )


# -- a function in an eager replica ------------------------------------------------------------


def nested(y):
    def loss():
        return y * 2

    return rx.function(lambda: loss() + 1)()


def recursive(y):
    def power(n):
        return 1.0 if n == 0 else y * power(n - 1)

    return rx.function(lambda: power(2) + y)()


def in_containers(y):
    held = {"a": [y, y + 1], "b": (lambda: y * 3,)}
    return rx.function(lambda: held["a"][1] + held["b"][0]())()


def of_another_function(y):
    inner = rx.function(lambda: y * 2)
    return rx.function(lambda: inner() + 1)()


def two_that_share_a_name(y):
    total = y

    def add(x):
        nonlocal total
        total = total + x

    def step():
        add(1.0)
        return total + y

    return rx.function(step)()


CAPTURES = {
    "a name": (lambda y: rx.function(lambda: y + 1)(), lambda y: y + 1),
    "a default": (lambda y: rx.function(lambda y=y: y + 1)(), lambda y: y + 1),
    "a keyword default": (lambda y: rx.function(lambda *, y=y: y + 1)(), lambda y: y + 1),
    "a partial": (
        lambda y: rx.function(functools.partial(lambda a, b: a + b, y, b=y * 2))(),
        lambda y: 3 * y,
    ),
    "another function": (nested, lambda y: 2 * y + 1),
    "a recursive function": (recursive, lambda y: y * y + y),
    "containers": (in_containers, lambda y: 4 * y + 1),
    "another compiled function": (of_another_function, lambda y: 2 * y + 1),
    "functions that share a name": (two_that_share_a_name, lambda y: 2 * y + 1),
    "beside an argument": (lambda y: rx.function(lambda x: x + y)(y), lambda y: 2 * y),
    "a jitted function beside it": (
        lambda y: (lambda g: rx.function(lambda: g(y))())(jax.jit(lambda x: x * 3)),
        lambda y: 3 * y,
    ),
    "a gradient": (
        lambda y: rx.function(lambda: jax.grad(lambda x: x * x * y)(1.0))(),
        lambda y: 2 * y,
    ),
}


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_function_sees_what_each_replica_captured(many, execute, capture):
    replica_fn, expected = CAPTURES[capture]
    result = execute(many, replica_fn, args=(own_values(many),))
    mine = [expected(2.0 * 10**i) for i in range(many.num_replicas_in_sync)]
    assert values_of(many, result) == pytest.approx(mine)


def test_gradients_of_variables_are_of_what_each_replica_captured(many, execute):
    with many.scope():
        w = rx.Variable(3.0)

    def replica_fn(y):
        return rx.function(lambda: rx.value_and_grad(lambda: w * w * y, w))()

    losses, gradients = execute(many, replica_fn, args=(own_values(many),))
    own = [2.0 * 10**i for i in range(many.num_replicas_in_sync)]
    assert values_of(many, losses) == pytest.approx([9 * y for y in own])
    assert values_of(many, gradients) == pytest.approx([6 * y for y in own])


@pytest.mark.parametrize("kind", [int, np.float32])
def test_numbers_and_host_arrays_of_the_replicas_own_take_part_too(many, eager, kind):
    def replica_fn():
        i = kind(context().replica_id_in_sync_group)
        return rx.function(lambda: i * 1.5)()

    result = eager(many, replica_fn)
    assert values_of(many, result) == [i * 1.5 for i in range(many.num_replicas_in_sync)]


def test_a_name_that_replicas_assign_is_seen_as_it_was_when_each_called(two, eager):
    shared = None
    step = rx.function(lambda: shared + 1)

    def replica_fn(y):
        nonlocal shared
        shared = y
        return step()

    for _ in range(3):
        assert values_of(two, eager(two, replica_fn, args=(own_values(two),))) == [3.0, 21.0]
    assert step.trace_count == 1


def test_captured_components_of_different_shape_take_part(two, eager):
    def replica_fn():
        x = jnp.ones(2 + context().replica_id_in_sync_group)
        return rx.function(lambda: x.sum())()

    assert values_of(two, eager(two, replica_fn)) == [2.0, 3.0]


def test_a_captured_random_key_is_the_replicas_own(two, eager):
    def replica_fn():
        key = jax.random.fold_in(jax.random.key(0), context().replica_id_in_sync_group)
        return rx.function(lambda: jax.random.uniform(key))(), jax.random.uniform(key)

    compiled, plain = eager(two, replica_fn)
    assert values_of(two, compiled) == values_of(two, plain)
    assert len(set(values_of(two, plain))) == 2


def test_a_captured_result_of_all_reduce_stays_mirrored(two, eager):
    def replica_fn(y):
        total = context().all_reduce("SUM", y)
        return rx.function(lambda: total)()

    result = eager(two, replica_fn, args=(own_values(two),))
    assert type(result).__name__ == "Mirrored"
    assert float(result) == 22.0


def test_what_all_replicas_captured_is_compiled_once(two, eager):
    factor = jnp.float32(2.0)
    step = rx.function(lambda x: x * factor)
    for _ in range(3):
        assert values_of(two, eager(two, step.__call__, args=(own_values(two),))) == [4.0, 40.0]
    assert step.trace_count == 1


_PIECES = st.sampled_from(["array", "float", "int", "shared"])
_HOLDERS = st.sampled_from(["name", "list", "dict", "function", "default", "partial"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_PIECES, _HOLDERS), min_size=1, max_size=4))
def test_any_captured_values_give_what_plain_python_gives(program):
    strategy = mirrored(2)
    shared = jnp.float32(7.0)

    def piece(kind, replica, place):
        return {
            "array": jnp.float32(replica + place + 0.5),
            "float": float(replica * 2 + place),
            "int": replica * 3 + place,
            "shared": shared,
        }[kind]

    def held(value, holder):
        if holder == "list":
            content = [value]
            return lambda: content[0]
        if holder == "dict":
            content = {"a": (value, None)}
            return lambda: content["a"][0]
        if holder == "function":
            inner = lambda: value  # noqa: E731
            return lambda: inner()
        if holder == "default":
            return lambda value=value: value
        return functools.partial(lambda x: x, value) if holder == "partial" else lambda: value

    def replica_fn(compiled):
        replica = context().replica_id_in_sync_group
        parts = [held(piece(k, replica, i), h) for i, (k, h) in enumerate(program)]

        def total():
            return sum((i + 1) * jnp.asarray(part(), jnp.float32) for i, part in enumerate(parts))

        return rx.function(total)() if compiled else total()

    assert values_of(strategy, strategy.run(replica_fn, args=(True,))) == values_of(
        strategy, strategy.run(replica_fn, args=(False,))
    )


# -- what cannot differ ------------------------------------------------------------------------


def by_replica(*choices):
    """Another choice on replica 0 than on all others."""
    return choices[min(context().replica_id_in_sync_group, len(choices) - 1)]


def with_jitted(y):
    g = jax.jit(lambda x: x * y)
    return rx.function(lambda: g(1.0))()


def with_numbers_of_two_types(y):
    x = by_replica(1, 2.5)
    return rx.function(lambda: x * 2)()


def merge_nonlocal(y):
    total = None

    def merge_fn(strategy, x):
        nonlocal total
        total = strategy.reduce("SUM", x, axis=None)

    context().merge_call(merge_fn, args=(y,))
    return total


def merge_into_list(y):
    out = []
    context().merge_call(lambda s: out.append(1.0))
    return out


def merge_with_id(y):
    own = context()
    return own.merge_call(lambda s: own.replica_id_in_sync_group)


def function_with_id(y):
    own = context()
    return rx.function(lambda: y * own.replica_id_in_sync_group)()


DIFFERENCES = {
    "merge_fn": (
        lambda y: context().merge_call(lambda s: y + 1),
        r"replica 0 and replica 1 called merge_call with different values of 'merge_fn.y': "
        r"Array\(2\., dtype=float32\) and Array\(20\., dtype=float32\).*pass it as an argument",
    ),
    "merge_fn of different code": (
        lambda y: context().merge_call(by_replica(lambda s: 1, lambda s: 2)),
        r"different values of 'merge_fn': the function '.*' at .*py:\d+ and the function",
    ),
    "merge_fn that assigns a captured name": (
        merge_nonlocal,
        r"different values of 'merge_fn.total'.*itself changed it, for the first.*return the value",
    ),
    "merge_fn that fills a captured list": (merge_into_list, r"'merge_fn.out'.*return the value"),
    "merge_fn with the id of a captured context": (
        merge_with_id,
        r"that of replica 0, was asked for in what all replicas call together",
    ),
    "function with the id of a captured context": (
        function_with_id,
        r"that of replica 0, was asked for in what all replicas call together",
    ),
    "function with a string": (
        lambda y: (lambda name: rx.function(lambda: len(name))())(by_replica("a", "b")),
        r"different values of 'name': 'a' and 'b'",
    ),
    "function with numbers of two types": (with_numbers_of_two_types, r"'x': 1 and 2\.5"),
    "function with a jitted one": (with_jitted, r"different values of 'g.y': Array\(2\."),
    "function of different code": (
        lambda y: rx.function(by_replica(lambda: y + 1, lambda: y + 2))(),
        r"called the function .* with different values of '<lambda>': the function",
    ),
    "all_reduce with different ops": (
        lambda y: context().all_reduce(by_replica("SUM", "MEAN"), y),
        r"called all_reduce with different values of 'op': <ReduceOp.SUM.* and <ReduceOp.MEAN",
    ),
    "all_gather along different axes": (
        lambda y: context().all_gather(jnp.ones((2, 2)) * y, axis=by_replica(0, 1)),
        r"called all_gather with different values of 'axis': 0 and 1",
    ),
}


@pytest.mark.one_worker
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_calls_that_differ_between_replicas_are_refused(many, eager, difference):
    replica_fn, message = DIFFERENCES[difference]
    with pytest.raises(RuntimeError, match=message):
        eager(many, replica_fn, args=(own_values(many),))
    assert values_of(many, eager(many, lambda: context().all_reduce("SUM", 1.0)))[0] == len(
        local_ids(many)
    )


@pytest.mark.one_worker
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_nests_that_differ_between_replicas_are_refused(many, eager, collective):
    def replica_fn(y):
        value = {by_replica("a", "b"): y[None]}
        return getattr(context(), collective)(*(("SUM", value), (value, 0))[collective[4] == "g"])

    with pytest.raises(ValueError, match=r"the same structure: .*'a'.*'b'"):
        eager(many, replica_fn, args=(own_values(many),))


@pytest.mark.one_worker
def test_replicas_that_assign_different_variables_of_one_name_are_refused(many, eager):
    with many.scope():
        variables = [rx.Variable(x, name="v", aggregation=SUM) for x in (1.0, 10.0)]

    with pytest.raises(RuntimeError, match=r"assign_add of variable 'v' with .* of 'variable': "):
        eager(many, lambda: by_replica(*variables).assign_add(1.0))
    assert [float(v) for v in variables] == [1.0, 10.0]


@pytest.mark.one_worker
def test_an_update_function_that_captures_a_replicas_local_is_refused(many, eager):
    with many.scope():
        v = rx.Variable(1.0)

    def replica_fn(y):
        many.extended.update(v, lambda v: v.assign(y))

    with pytest.raises(RuntimeError, match=r"extended.update with different values of 'fn.y'"):
        eager(many, replica_fn, args=(own_values(many),))
    assert float(v) == 1.0


@pytest.mark.one_worker
def test_replicas_that_update_different_variables_are_refused(many, eager):
    with many.scope():
        variables = [rx.Variable(x) for x in (1.0, 10.0)]

    def replica_fn():
        many.extended.update(by_replica(*variables), lambda v: v.assign(5.0))

    with pytest.raises(RuntimeError, match=r"extended.update with different values of 'var': "):
        eager(many, replica_fn)
    assert [float(v) for v in variables] == [1.0, 10.0]


# -- what may be captured all the same ---------------------------------------------------------


def test_merge_fn_may_capture_what_is_equal_on_all_replicas(many, eager):
    with many.scope():
        v = rx.Variable(1.0)

    def replica_fn(y):
        own, variables, factor = context(), [v], jnp.float32(2.0) * 3
        total = own.all_reduce("SUM", y)
        settings = {"scale": (factor, "name", ReplicaFree.settings)}

        def merge_fn(strategy):
            variables[0].assign(total * settings["scale"][0] / own.num_replicas_in_sync)

        own.merge_call(merge_fn)

    eager(many, replica_fn, args=(jnp.float32(1.0),))
    assert float(v) == 6.0


class ReplicaFree:
    settings = frozenset({"a"})


def test_merge_fn_may_change_what_all_replicas_share(many, eager):
    calls, count = [], 0

    def replica_fn():
        def merge_fn(strategy):
            nonlocal count
            count += 1
            calls.append(count)

        calls.append("replica")
        context().merge_call(merge_fn)

    eager(many, replica_fn)
    assert calls == ["replica"] * len(local_ids(many)) + [1]
