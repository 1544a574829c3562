"""A function that iterates host data runs as Python, with its runs compiled."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.engine.protocols import HostIterable
from replicax.engine.trace.host_loop import enter_host_code

SUM = rx.VariableAggregation.SUM


class Batches(HostIterable):
    """Stands for a distributed dataset."""

    def __init__(self, strategy, sizes=(4, 4, 3)):
        self._strategy = strategy
        self._sizes = sizes

    def __iter__(self):
        enter_host_code("a test dataset")
        for size in self._sizes:
            yield self._strategy.distribute_batch(np.ones(size, np.float32))


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


def variable_in(strategy, value=0.0):
    with strategy.scope():
        return rx.Variable(value, aggregation=SUM)


@pytest.mark.parametrize("how", ["argument", "keyword", "closure"])
def test_every_run_in_the_loop_is_compiled(strategy, how):
    total = variable_in(strategy)
    dataset = Batches(strategy)
    seen = []

    def replica_fn(x):
        seen.append((isinstance(x, jax.core.Tracer), x.shape))
        total.assign_add(x.sum())
        return x.sum()

    def loop(batches):
        results = []
        for batch in batches:
            results.append(strategy.run(replica_fn, args=(batch,)))
        return results

    if how == "closure":
        epoch = rx.function(lambda: loop(dataset))
        call = epoch
    else:
        epoch = rx.function(loop)
        call = (lambda: epoch(dataset)) if how == "argument" else (lambda: epoch(batches=dataset))
    for number in (1, 2, 3):
        results = call()
        sums = [[float(x) for x in strategy.experimental_local_results(r)] for r in results]
        assert sums == [[2.0, 2.0], [2.0, 2.0], [2.0, 1.0]]
        assert float(total) == 11.0 * number
        # one trace of the full batch, one for each shape of the last
        assert seen == [(True, (2,)), (True, (2,)), (True, (1,))]


def test_the_results_are_those_of_the_eager_loop(strategy):
    def train(total):
        losses = []
        for batch in Batches(strategy):
            per_replica = strategy.run(lambda x: (x * total.value).sum(), args=(batch,))
            losses.append(strategy.reduce("SUM", per_replica, axis=None))
            total.assign_add(losses[-1])
        return losses, "done", total

    eager, compiled = variable_in(strategy, 1.0), variable_in(strategy, 1.0)
    expected = train(eager)
    result = rx.function(lambda: train(compiled))()
    assert [float(x) for x in result[0]] == [float(x) for x in expected[0]]
    assert result[1] == "done"
    assert result[2] is compiled
    assert float(compiled) == float(eager)


def test_met_by_closure_the_trace_is_dropped_once_and_the_function_marked(strategy):
    dataset = Batches(strategy, sizes=(4,))
    calls = []

    @rx.function
    def epoch(x):
        calls.append(isinstance(x, jax.core.Tracer))
        for batch in dataset:
            strategy.run(lambda b: b, args=(batch,))
        return x

    assert epoch(1.0) == 1.0
    assert epoch(2.0) == 2.0
    assert calls == [True, False, False]
    assert epoch.trace_count == 0


def test_writes_of_the_dropped_trace_never_happened(strategy):
    total = variable_in(strategy)
    dataset = Batches(strategy, sizes=(4,))

    @rx.function
    def epoch():
        total.assign_add(1.0)
        for _ in dataset:
            pass

    epoch()
    assert float(total) == 1.0
    epoch()
    assert float(total) == 2.0


def test_what_the_dropped_trace_created_is_discarded(strategy):
    dataset = Batches(strategy, sizes=(4,))
    created = []

    @rx.function
    def epoch():
        v = rx.Variable(5.0)
        created.append(weakref.ref(v))
        for _ in dataset:
            v.assign_add(1.0)
        return v.numpy()

    assert epoch() == 6.0
    gc.collect()
    assert len(created) == 2
    assert [ref() for ref in created] == [None, None]


def test_a_variable_that_the_user_kept_from_the_dropped_trace_has_its_value(strategy):
    dataset = Batches(strategy, sizes=(4,))
    kept = {}

    @rx.function
    def epoch(start):
        if not kept:
            kept["constant"] = rx.Variable(5.0)
            kept["computed"] = rx.Variable(jnp.zeros(3) + start)
        for _ in dataset:
            kept["computed"].assign_add(jnp.ones(3))
            kept["constant"].assign_add(1.0)

    epoch(2.0)
    epoch(2.0)
    assert float(kept["constant"]) == 7.0
    np.testing.assert_array_equal(kept["computed"].numpy(), [4.0, 4.0, 4.0])


def test_an_except_of_the_user_does_not_swallow_the_start_over(strategy):
    dataset = Batches(strategy)

    @rx.function
    def count():
        n = 0
        try:
            for _ in dataset:
                n += 1
        except Exception:
            n = -1
        return n

    assert count() == 3


def test_iterating_inside_a_compiled_run_says_what_to_do(strategy):
    dataset = Batches(strategy)

    def replica_fn():
        return [batch for batch in dataset]

    for call in (
        lambda: strategy.run(rx.function(replica_fn)),
        rx.function(lambda: strategy.run(replica_fn)),
    ):
        with pytest.raises(
            RuntimeError,
            match=r"a test dataset was iterated inside a compiled run\. Iterate outside, and pas",
        ):
            call()


def test_a_function_in_a_host_loop_is_compiled_by_itself(strategy):
    total = variable_in(strategy)
    calls = []

    @rx.function
    def step(batch):
        calls.append(1)
        total.assign_add(strategy.reduce("SUM", strategy.run(jnp.sum, args=(batch,)), axis=None))

    @rx.function
    def epoch(dataset):
        for batch in dataset:
            step(batch)

    epoch(Batches(strategy, sizes=(4, 4, 4)))
    assert len(calls) == 1
    assert float(total) == 12.0


def test_a_run_of_a_function_in_a_host_loop_is_compiled_once(strategy):
    calls = []

    @rx.function
    def replica_fn(x):
        calls.append(1)
        return x.sum()

    @rx.function
    def epoch(dataset):
        return [strategy.run(replica_fn, args=(batch,)) for batch in dataset]

    for _ in range(2):
        epoch(Batches(strategy, sizes=(4, 4, 4)))
    assert len(calls) == 1


def test_a_host_loop_called_by_a_function_makes_that_a_host_loop_too(strategy):
    dataset = Batches(strategy, sizes=(4, 4))
    seen = []

    @rx.function
    def inner():
        return sum(
            float(strategy.reduce("SUM", strategy.run(replica_fn, args=(b,)), axis=None))
            for b in dataset
        )

    def replica_fn(x):
        seen.append(isinstance(x, jax.core.Tracer))
        return x.sum()

    outer = rx.function(lambda: inner() * 10)
    assert outer() == 80.0
    assert outer() == 80.0
    assert set(seen) == {True}


def test_run_functions_eagerly_runs_the_loop_as_python(strategy):
    seen = []
    epoch = rx.function(
        lambda dataset: [
            strategy.run(lambda x: seen.append(isinstance(x, jax.core.Tracer)), args=(batch,))
            for batch in dataset
        ]
    )
    rx.run_functions_eagerly(True)
    try:
        epoch(Batches(strategy, sizes=(4,)))
    finally:
        rx.run_functions_eagerly(False)
    assert seen == [False, False]


def test_after_the_loop_runs_are_eager_again(strategy):
    seen = []
    epoch = rx.function(lambda dataset: list(dataset))
    epoch(Batches(strategy))
    strategy.run(lambda: seen.append(1))
    strategy.run(lambda: seen.append(1))
    assert len(seen) == 4


# -- the key of a replica function -------------------------------------------------------------


def test_a_replica_function_redefined_in_every_epoch_is_compiled_once(strategy):
    total = variable_in(strategy)
    scale = 2.0
    calls = []

    @rx.function
    def epoch(dataset):
        def replica_fn(x, power=1):
            calls.append(1)
            total.assign_add((x * scale).sum() ** power)

        for batch in dataset:
            strategy.run(replica_fn, args=(batch,))

    for _ in range(3):
        epoch(Batches(strategy, sizes=(4, 4)))
    assert len(calls) == 1
    assert float(total) == 3 * 2 * 8.0


def test_a_different_captured_number_is_compiled_anew(strategy):
    calls = []

    @rx.function
    def epoch(dataset, scales):
        results = []
        for batch in dataset:
            for scale in scales:
                results.append(
                    strategy.run(lambda x, s=scale: calls.append(s) or x.sum() * s, args=(batch,))
                )
        return [float(strategy.reduce("SUM", r, axis=None)) for r in results]

    def scaled(scale):
        return lambda x: calls.append(scale) or x.sum() * scale

    @rx.function
    def closures(dataset):
        results = [strategy.run(scaled(s), args=(b,)) for b in dataset for s in (1, 2, 1)]
        return [float(strategy.reduce("SUM", r, axis=None)) for r in results]

    dataset = Batches(strategy, sizes=(4,))
    assert epoch(dataset, (1, 2, 1)) == [4.0, 8.0, 4.0]
    assert calls == [1, 2]
    calls.clear()
    assert closures(dataset) == [4.0, 8.0, 4.0]
    assert calls == [1, 2]


def test_another_captured_variable_is_compiled_anew(strategy):
    variables = [variable_in(strategy) for _ in range(2)]

    @rx.function
    def epoch(dataset):
        for batch in dataset:
            for v in variables:
                strategy.run(lambda x, v=v: len([v.assign_add(x.sum())]), args=(batch,))
            for v in variables:

                def replica_fn(x):
                    v.assign_add(x.sum())  # noqa: B023

                strategy.run(replica_fn, args=(batch,))

    epoch(Batches(strategy, sizes=(4,)))
    assert [float(v) for v in variables] == [8.0, 8.0]


def test_programs_of_a_host_loop_keep_neither_functions_nor_what_they_captured_alive(strategy):
    class Big:
        pass

    gone = []

    @rx.function
    def epoch(dataset):
        big = Big()
        gone.append(weakref.ref(big))

        def replica_fn(x):
            return x.sum() if big else x

        for batch in dataset:
            strategy.run(replica_fn, args=(batch,))
        gone.append(weakref.ref(replica_fn))

    epoch(Batches(strategy))
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_a_variable_that_dies_between_epochs_leads_to_a_new_program(strategy):
    model = {}

    @rx.function
    def epoch(dataset):
        def replica_fn(x):
            model["w"].assign_add(x.sum())

        for batch in dataset:
            strategy.run(replica_fn, args=(batch,))

    for _ in range(3):
        model["w"] = variable_in(strategy)
        gc.collect()
        epoch(Batches(strategy, sizes=(4, 4)))
        assert float(model["w"]) == 8.0
