"""`reduce_to`, `batch_reduce_to` and `broadcast_to`: what is combined, and where it goes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored, num_copies

SUM, MEAN = rx.ReduceOp.SUM, rx.ReduceOp.MEAN
Options = rx.experimental.CommunicationOptions
Hints = rx.experimental.CollectiveHints


def counting(strategy, scale=1.0):
    """1, 2, 3, ... on the replicas."""
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray([1.0, 10.0]) * scale * (ctx.replica_id_in_sync_group + 1)
    )


def variable(strategy, value=0.0, **options):
    with strategy.scope():
        return rx.Variable(value, **options)


def triangle(strategy):
    n = strategy.num_replicas_in_sync
    return n * (n + 1) / 2


@pytest.mark.parametrize("op", [SUM, "mean", rx.VariableAggregation.SUM])
def test_a_value_reduced_to_a_variable_is_on_its_devices(strategy, across, op):
    v = variable(strategy, [0.0, 0.0])
    result = across(lambda x: strategy.extended.reduce_to(op, x, v), counting(strategy))
    total = triangle(strategy)
    total = total / strategy.num_replicas_in_sync if op == "mean" else total
    np.testing.assert_allclose(result, [total, 10 * total])
    assert isinstance(result, rx.Mirrored) == (num_copies(strategy) > 1)
    assert len(strategy.experimental_local_results(result)) == num_copies(strategy)


def test_an_all_reduction_passes_the_value_as_its_destination(many, across):
    result = across(lambda x: many.extended.reduce_to(SUM, x, x), counting(many))
    assert isinstance(result, rx.Mirrored)
    copies = many.experimental_local_results(result)
    assert len(copies) == many.num_replicas_in_sync
    for copy, name in zip(copies, many.extended.worker_devices, strict=True):
        np.testing.assert_allclose(copy, [triangle(many), 10 * triangle(many)])
        assert [f"CPU:{d.id}" for d in copy.devices()] == [name]


@pytest.mark.parametrize("as_list", [False, True])
def test_a_value_reduced_to_one_device_is_bare_and_there(strategy, as_list):
    destination = ["CPU:5"] if as_list else "CPU:5"
    result = strategy.extended.reduce_to(SUM, counting(strategy), destination)
    assert not isinstance(result, rx.DistributedValues)
    assert [d.id for d in result.devices()] == [5]
    np.testing.assert_allclose(result, [triangle(strategy), 10 * triangle(strategy)])


def test_a_value_reduced_to_one_device_in_a_program_is_bare(strategy):
    fn = rx.function(lambda x: strategy.extended.reduce_to(SUM, x, "CPU:0"))
    result = fn(counting(strategy))
    assert not isinstance(result, rx.DistributedValues)
    np.testing.assert_allclose(result, [triangle(strategy), 10 * triangle(strategy)])


def test_a_list_of_all_worker_devices_gives_a_mirrored_value(many, across):
    names = list(many.extended.worker_devices)
    result = across(lambda x: many.extended.reduce_to(SUM, x, names), counting(many))
    assert isinstance(result, rx.Mirrored)
    np.testing.assert_allclose(result, [triangle(many), 10 * triangle(many)])


def test_a_list_of_other_devices_is_refused(two):
    expected = r"one device or on all of \['CPU:0', 'CPU:1'\]; asked for \['CPU:1', 'CPU:2'\]"
    with pytest.raises(ValueError, match=expected):
        two.extended.reduce_to(SUM, counting(two), ["CPU:1", "CPU:2"])
    with pytest.raises(ValueError, match=expected):
        two.extended.broadcast_to(1.0, ["CPU:1", "CPU:2"])


def test_in_merge_call_the_replicas_get_the_reduced_value(strategy, execute):
    v = variable(strategy, [0.0, 0.0])

    def merge_fn(strategy, x):
        return strategy.extended.reduce_to(SUM, x, v)

    def fn(x):
        return rx.get_replica_context().merge_call(merge_fn, args=(x,)) + 1

    result = execute(strategy, fn, args=(counting(strategy),))
    for value in strategy.experimental_local_results(result):
        np.testing.assert_allclose(value, [triangle(strategy) + 1, 10 * triangle(strategy) + 1])


def test_a_value_that_is_the_same_everywhere_counts_once_per_replica(strategy, across):
    v = variable(strategy)
    extended = strategy.extended
    assert float(across(lambda: extended.reduce_to(SUM, 2.0, v))) == 2.0 * (
        strategy.num_replicas_in_sync
    )
    assert float(across(lambda: extended.reduce_to(MEAN, 2.0, v))) == 2.0


def test_a_batch_keeps_the_order_of_its_pairs(strategy, across):
    a, b = variable(strategy, [0.0, 0.0]), variable(strategy, [0.0, 0.0])
    big = counting(strategy, 100.0)

    def reduce(x, y):
        return strategy.extended.batch_reduce_to(SUM, [(x, a), (3.0, b), (y, "CPU:0"), (x, b)])

    results = across(reduce, counting(strategy), big)
    assert isinstance(results, list)
    total, n = triangle(strategy), strategy.num_replicas_in_sync
    expected = [[total, 10 * total], 3.0 * n, [100 * total, 1000 * total], [total, 10 * total]]
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=1e-6)


def test_a_batch_in_merge_call_keeps_shapes_and_dtypes(strategy, execute):
    with strategy.scope():
        variables = [
            rx.Variable(jnp.zeros((2, 3))),
            rx.Variable(jnp.zeros((), jnp.int32)),
            rx.Variable(jnp.zeros(5, jnp.bfloat16)),
        ]

    def merge_fn(strategy, values):
        pairs = list(zip(values, variables, strict=True))
        return tuple(strategy.extended.batch_reduce_to(SUM, pairs))

    def fn():
        values = [jnp.ones(v.shape, v.dtype) for v in variables]
        return rx.get_replica_context().merge_call(merge_fn, args=(values,))

    results = execute(strategy, fn)
    for result, v in zip(results, variables, strict=True):
        value = strategy.experimental_local_results(result)[0]
        assert (value.shape, value.dtype) == (v.shape, v.dtype)
        np.testing.assert_array_equal(
            np.asarray(value, np.float32), np.full(v.shape, strategy.num_replicas_in_sync)
        )


def test_an_empty_batch_gives_an_empty_list(strategy):
    assert strategy.extended.batch_reduce_to(SUM, []) == []


def operands_of_all_reduces(program):
    """How many arrays the all-reduces of a compiled program take together."""
    calls = re.findall(r" all-reduce(?:-start)?\((.*?)\), channel_id", program)
    return sum(call.count("%") for call in calls)


PACKING = {
    "nothing": (None, 1),
    "options that leave it open": (Options(), 1),
    "a pack for each value": (Options(bytes_per_pack=400), 10),
    "packs of two and a half values": (Options(bytes_per_pack=1000), 5),
    "large packs": (Options(bytes_per_pack=1 << 20), 1),
    "hints, a pack for each value": (Hints(bytes_per_pack=400), 10),
    "hints, large packs": (Hints(1 << 20), 1),
}


@pytest.mark.parametrize("keyword", ["options", "experimental_hints"])
@pytest.mark.parametrize("case", PACKING)
def test_bytes_per_pack_decides_the_operands_of_a_batch(two, case, keyword):
    options, expected = PACKING[case]
    with two.scope():
        variables = [rx.Variable(jnp.zeros(100)) for _ in range(10)]

    def merge_fn(strategy, values):
        pairs = list(zip(values, variables, strict=True))
        return strategy.extended.batch_reduce_to(SUM, pairs, **{keyword: options})

    def fn(x):
        values = [x * i for i in range(1, 11)]
        return rx.get_replica_context().merge_call(merge_fn, args=(values,))

    batch = two.distribute_batch(np.ones(200, np.float32))
    program = rx.function(fn).lower_run(two, batch).compile().as_text()
    assert operands_of_all_reduces(program) == expected
    for number, total in enumerate(two.run(rx.function(fn), args=(batch,)), 1):
        np.testing.assert_array_equal(total, np.full(100, 2.0 * number))


@pytest.mark.parametrize("case", PACKING)
def test_bytes_per_pack_decides_the_operands_of_an_all_reduce(two, case):
    options, expected = PACKING[case]

    def fn(x):
        values = [x * i for i in range(1, 11)]
        return rx.get_replica_context().all_reduce(SUM, values, options=options)

    batch = two.distribute_batch(np.ones(200, np.float32))
    program = rx.function(fn).lower_run(two, batch).compile().as_text()
    assert operands_of_all_reduces(program) == expected
    for run in (fn, rx.function(fn)):
        for number, total in enumerate(two.run(run, args=(batch,)), 1):
            np.testing.assert_array_equal(total, np.full(100, 2.0 * number))


def test_options_of_a_reduction_across_replicas_change_nothing_but_the_packing(many, across):
    v = variable(many, [0.0, 0.0])
    for options in (Options(bytes_per_pack=8), Hints(bytes_per_pack=1 << 20)):
        total = across(
            lambda x, options=options: many.extended.reduce_to(SUM, x, v, options), counting(many)
        )
        np.testing.assert_allclose(total, [triangle(many), 10 * triangle(many)])


def test_what_is_no_options_is_refused_by_every_executor(strategy, execute):
    expected = "options is 'large'; expected CommunicationOptions or None"
    v = variable(strategy)
    for keyword in ("options", "experimental_hints"):
        with pytest.raises(TypeError, match=expected):
            strategy.extended.reduce_to(SUM, 1.0, v, **{keyword: "large"})
    for call in (
        lambda: rx.get_replica_context().all_reduce(SUM, 1.0, options="large"),
        lambda: rx.get_replica_context().all_gather(jnp.ones(1), 0, options="large"),
    ):
        with pytest.raises(TypeError, match=expected):
            execute(strategy, call)


def test_hints_are_options_by_their_older_name():
    hints = Hints(bytes_per_pack=50, timeout_seconds=2.0)
    assert isinstance(hints, Options)
    assert (hints.bytes_per_pack, hints.timeout_seconds) == (50, 2.0)
    assert hints.implementation is rx.experimental.CommunicationImplementation.AUTO
    assert Hints() == Hints(0, None)
    with pytest.raises(ValueError, match="bytes_per_pack is -1; expected 0 or more"):
        Hints(-1)
    assert rx.experimental.CollectiveCommunication is rx.experimental.CommunicationImplementation


def test_broadcast_to_a_variable_or_a_value_is_mirrored(many, across):
    v = variable(many, [0.0, 0.0])
    x = counting(many)
    value = jnp.asarray([3.0, 4.0])
    for destination, count in ((v, num_copies(many)), (x, many.num_replicas_in_sync)):
        result = across(lambda y, d=destination: many.extended.broadcast_to(y, d), value)
        assert isinstance(result, rx.Mirrored) == (count > 1)
        copies = many.experimental_local_results(result)
        assert len(copies) == count
        for copy in copies:
            np.testing.assert_array_equal(copy, [3, 4])


def test_broadcast_of_a_number_known_while_tracing_is_mirrored_all_the_same(many, across):
    result = across(lambda: many.extended.broadcast_to(2.0, many.extended.worker_devices))
    assert isinstance(result, rx.Mirrored)
    assert [float(c) for c in many.experimental_local_results(result)] == [2.0] * (
        many.num_replicas_in_sync
    )
    assert float(across(lambda: many.extended.broadcast_to(2.0, "CPU:0"))) == 2.0


def test_broadcast_to_one_device_is_bare_and_there(strategy):
    result = strategy.extended.broadcast_to(jnp.ones(2), "CPU:6")
    assert not isinstance(result, rx.DistributedValues)
    assert [d.id for d in result.devices()] == [6]


def test_broadcast_in_merge_call_reaches_every_replica(strategy, execute):
    v = variable(strategy)

    def fn():
        ctx = rx.get_replica_context()
        return ctx.merge_call(lambda s: s.extended.broadcast_to(5.0, v)) + 1

    result = execute(strategy, fn)
    seen = [float(x) for x in strategy.experimental_local_results(result)]
    assert seen == [6.0] * strategy.num_replicas_in_sync


def test_central_storage_brings_a_reduced_value_to_the_parameter_device():
    strategy = central(2)
    v = variable(strategy, [0.0, 0.0])
    total = strategy.extended.reduce_to(SUM, counting(strategy), v)
    assert [d.id for d in total.devices()] == [0]


def test_a_mirrored_value_is_read_across_replicas_without_reducing(two):
    v = variable(two)
    mirrored_value = two.extended.reduce_to(SUM, two.run(lambda: jnp.float32(1.5)), v)
    assert float(mirrored_value + 1) == 4.0
    assert mirrored(2).num_replicas_in_sync == 2
