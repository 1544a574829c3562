"""`function` as a decorator: what it accepts, how arguments reach the program."""

import dataclasses
import functools
import gc
import inspect
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def strategy():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture
def eagerly():
    rx.run_functions_eagerly(True)
    yield
    rx.run_functions_eagerly(False)


# -- the decorator -----------------------------------------------------------------------------


def test_it_works_as_a_decorator_without_arguments():
    @rx.function
    def double(x):
        """Twice as much."""
        return 2 * x

    assert float(double(3.0)) == 6.0
    assert isinstance(double, rx.Function)
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice as much."
    assert inspect.signature(double) == inspect.signature(double.python_function)


def test_it_works_as_a_decorator_with_arguments():
    @rx.function(donate=False)
    def double(x):
        return 2 * x

    assert float(double(3.0)) == 6.0
    assert double.__name__ == "double"


def test_a_function_of_a_function_is_that_function():
    double = rx.function(lambda x: 2 * x)
    assert rx.function(double) is double


@pytest.mark.parametrize("thing", [3, "step", {}], ids=repr)
def test_what_is_not_callable_is_refused(thing):
    with pytest.raises(TypeError, match=f"function needs a callable; got {thing!r}"):
        rx.function(thing)


def test_generators_and_coroutines_are_refused():
    def batches():
        yield 1

    async def fetch():
        return 1

    with pytest.raises(TypeError, match=r"cannot compile '.*batches', which is a generator or cor"):
        rx.function(batches)
    with pytest.raises(TypeError, match=r"cannot compile '.*fetch', which is a generator or corou"):
        rx.function(fetch)


def test_the_repr_names_the_function():
    def train_step():
        return 1

    assert repr(rx.function(train_step)).startswith("<replicax.function ")
    assert "train_step" in repr(rx.function(train_step))


def test_partials_and_callable_objects_are_compiled_too():
    class Scale:
        def __call__(self, x):
            return 3 * x

    def add(x, y):
        return x + y

    assert float(rx.function(functools.partial(add, y=2.0))(1.0)) == 3.0
    assert float(rx.function(Scale())(2.0)) == 6.0


# -- methods -----------------------------------------------------------------------------------


class Counter:
    def __init__(self, start):
        self.total = rx.Variable(start)
        self.calls = 0

    @rx.function
    def add(self, x, times=1):
        self.calls += 1
        self.total.assign_add(x * times)
        return self.total * 1.0


def test_every_instance_has_its_own_programs():
    first, second = Counter(0.0), Counter(100.0)
    assert float(first.add(1.0)) == 1.0
    assert float(second.add(1.0)) == 101.0
    assert float(first.add(1.0)) == 2.0
    assert (first.calls, second.calls) == (1, 1)
    assert first.add is first.add
    assert first.add.trace_count == 1
    assert Counter.add.trace_count == 0


def test_a_compiled_method_does_not_keep_its_instance_alive():
    counter = Counter(0.0)
    counter.add(1.0)
    gone = weakref.ref(counter)
    total = weakref.ref(counter.total)
    del counter
    gc.collect()
    assert gone() is None
    assert total() is None


def test_a_method_whose_object_is_gone_says_so():
    bound = Counter(0.0).add
    gc.collect()
    with pytest.raises(RuntimeError, match=r"the object of method 'Counter\.add' is gone"):
        bound(1.0)


def test_equal_and_unhashable_instances_still_have_their_own_programs():
    @dataclasses.dataclass
    class Scale:
        width: int

        @rx.function
        def apply(self, x):
            return x * self.width

    one, other = Scale(2), Scale(2)
    assert one == other
    assert float(one.apply(1.0)) == 2.0
    other.width = 3
    assert float(other.apply(1.0)) == 3.0
    assert (one.apply.trace_count, other.apply.trace_count) == (1, 1)
    del one
    gc.collect()
    assert len(Scale.apply._methods) == 1


def test_a_method_of_an_object_that_cannot_be_held_weakly_says_what_to_do():
    class Slotted:
        __slots__ = ()

        @rx.function
        def step(self):
            return 1

    with pytest.raises(TypeError, match="Add '__weakref__' to the __slots__ of the class"):
        Slotted().step()


def test_a_method_runs_on_every_replica(strategy):
    class Model:
        def __init__(self):
            with strategy.scope():
                self.w = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)

        @rx.function
        def step(self, x):
            self.w.assign_add(x)

    model = Model()
    strategy.run(model.step, args=(1.0,))
    strategy.run(model.step, args=(1.0,))
    assert float(model.w) == 5.0
    assert model.step.trace_count == 1


# -- arguments ---------------------------------------------------------------------------------


def test_default_arguments_are_those_of_python():
    @rx.function
    def scale(x, factor=2.0, *, shift=0.5):
        return x * factor + shift

    assert float(scale(1.0)) == 2.5
    assert float(scale(1.0, 3.0)) == 3.5
    assert float(scale(1.0, shift=1.0)) == 3.0


def test_keyword_arguments_are_traced_like_positional_ones():
    calls = []

    @rx.function
    def scale(*, x, factor):
        calls.append(type(x))
        return x * factor

    assert float(scale(x=jnp.ones(()), factor=2.0)) == 2.0
    assert float(scale(factor=5.0, x=jnp.ones(()))) == 5.0
    assert len(calls) == 1


def test_floats_are_traced():
    seen = []

    @rx.function
    def double(x):
        seen.append(x)
        return 2 * x

    assert [float(double(x)) for x in (1.0, 2.0, 3.5)] == [2.0, 4.0, 7.0]
    assert double.trace_count == 1
    assert isinstance(seen[0], jax.core.Tracer)


@dataclasses.dataclass(frozen=True)
class Config:
    width: int


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, 2), (True, False), ("a", "b"), (None, 1), (Config(1), Config(2)), (1, True), (b"a", b"b")],
    ids=repr,
)
def test_static_arguments_are_python_values_and_part_of_the_program(first, second):
    seen = []

    @rx.function
    def show(value):
        seen.append(value)
        return value

    assert show(first) == first
    assert show(second) == second
    assert show(first) == first
    assert [(type(value), value) for value in seen] == [(type(v), v) for v in (first, second)]


def test_hashable_objects_are_compared_by_value():
    step = rx.function(lambda config, x: x * config.width)
    assert float(step(Config(3), 2.0)) == 6.0
    assert float(step(Config(3), 2.0)) == 6.0
    assert step.trace_count == 1


def test_objects_without_a_value_are_compared_by_identity_and_not_kept_alive():
    class Model:
        width = 3

    step = rx.function(lambda model, x: x * model.width)
    one, other = Model(), Model()
    for model in (one, one, other):
        step(model, 1.0)
    assert step.trace_count == 2
    gone = weakref.ref(other)
    del other, model
    gc.collect()
    assert gone() is None


def test_an_unhashable_argument_is_refused_with_its_value():
    step = rx.function(lambda values: len(values))
    with pytest.raises(
        ValueError, match=r"an argument of a compiled function is \{1, 2\} of type set, which is "
    ):
        step({1, 2})
    assert step((1, 2)) == 2


def test_a_host_array_of_strings_is_refused_and_never_taken_for_another():
    step = rx.function(lambda names: str(names[0]))
    with pytest.raises(ValueError, match="host array of dtype <U1, which cannot enter a compiled"):
        step(np.array(["a"]))


def test_structures_are_part_of_the_key():
    step = rx.function(lambda tree: jax.tree.map(lambda x: 2 * x, tree))
    assert step({"a": 1.0, "b": [2.0]}) == {"a": 2.0, "b": [4.0]}
    assert step({"a": 1.0, "c": [2.0]}) == {"a": 2.0, "c": [4.0]}
    assert step((1.0, 2.0)) == (2.0, 4.0)
    assert step.trace_count == 3


def test_a_variable_argument_arrives_as_the_variable():
    first, second = rx.Variable(1.0), rx.Variable(10.0)
    step = rx.function(lambda v: v.assign_add(1.0))
    assert step(first) is first
    assert step(second) is second
    step(first)
    assert (float(first), float(second)) == (3.0, 11.0)
    assert step.trace_count == 2


def test_64_bit_arguments_that_do_not_fit_name_the_argument():
    step = rx.function(lambda x, y: x)
    with pytest.raises(ValueError, match=r"the argument at .*1.* has dtype int64 and holds 50000"):
        step(1.0, np.array([5_000_000_000]))
    assert int(step(np.int64(7), 1.0)) == 7


# -- functions in functions --------------------------------------------------------------------


def test_a_function_inside_a_function_is_part_of_its_program():
    total = rx.Variable(0.0)
    inner_calls = []

    @rx.function
    def inner(x):
        inner_calls.append(1)
        total.assign_add(x)
        return total * 2

    @rx.function
    def outer(x):
        return inner(x) + inner(x)

    assert float(outer(1.0)) == 2.0 + 4.0
    assert float(outer(1.0)) == 6.0 + 8.0
    assert len(inner_calls) == 2
    assert (outer.trace_count, inner.trace_count) == (1, 0)
    assert float(total) == 4.0


def test_a_function_may_call_run(strategy):
    @rx.function
    def step(x):
        result = strategy.run(lambda x: x * 2, args=(x,))
        return strategy.reduce("SUM", result, axis=0)

    batch = strategy.distribute_batch(np.arange(4, dtype=np.float32))
    assert float(step(batch)) == 12.0
    assert float(step(batch)) == 12.0
    assert step.trace_count == 1


def test_a_function_called_in_an_eager_run_is_one_program(strategy):
    seen = []

    @rx.function
    def total(x):
        seen.append(isinstance(x, jax.core.Tracer))
        return rx.get_replica_context().all_reduce("SUM", x)

    def replica_fn():
        return total(rx.get_replica_context().replica_id_in_sync_group + 1.0) * 10

    for _ in range(2):
        results = strategy.experimental_local_results(strategy.run(replica_fn))
        assert [float(x) for x in results] == [30.0, 30.0]
    assert seen == [True]


@pytest.mark.parametrize("caller", [0, 1])
@pytest.mark.filterwarnings("ignore:Python branches on the replica id")
def test_a_function_that_only_one_replica_calls_computes_there(strategy, caller):
    @rx.function
    def add(x):
        counter.assign_add(x)
        return counter * 10

    def replica_fn(x):
        if rx.get_replica_context().replica_id_in_sync_group == caller:
            x = add(x)
        return rx.get_replica_context().all_reduce("SUM", x)  # where they meet again

    def values_by(run):
        counter.assign(0)
        total = strategy.reduce("MEAN", run(3.0), axis=None)
        return float(total), float(counter)

    with strategy.scope():
        counter = rx.Variable(
            0.0,
            synchronization=rx.VariableSynchronization.ON_READ,
            aggregation=rx.VariableAggregation.SUM,
        )
    compiled = rx.function(replica_fn)
    by_executor = [
        values_by(lambda x, fn=fn: strategy.run(fn, (x,))) for fn in (replica_fn, compiled)
    ]
    assert by_executor == [(33.0, 3.0)] * 2
    assert add.trace_count == 0


def test_a_function_that_only_one_eager_replica_calls_cannot_meet_the_others(strategy):
    @rx.function
    def total(x):
        return rx.get_replica_context().all_reduce("SUM", x)

    def replica_fn():
        return total(1.0) if rx.get_replica_context().replica_id_in_sync_group == 0 else 1.0

    with pytest.raises(
        RuntimeError,
        match=r"replica 0 called all_reduce at .*test_function\.py:\d+, but replica 1 returned wit",
    ):
        strategy.run(replica_fn)
    assert strategy.run(lambda: 1) == 1


def test_two_functions_that_eager_replicas_call_at_once_do_not_meet(strategy):
    first, second = rx.function(lambda: 1.0), rx.function(lambda: 2.0)
    first.python_function.__qualname__, second.python_function.__qualname__ = "first", "second"

    def replica_fn():
        chosen = (first, second)[rx.get_replica_context().replica_id_in_sync_group]
        return chosen()

    assert strategy.experimental_local_results(strategy.run(replica_fn)) == (1.0, 2.0)


def test_inside_a_transformation_of_jax_a_function_is_part_of_it():
    @rx.function
    def square(x):
        return x * x

    assert float(jax.grad(square)(3.0)) == 6.0
    assert float(jax.jit(square)(3.0)) == 9.0
    np.testing.assert_array_equal(jax.vmap(square)(jnp.arange(3.0)), [0, 1, 4])
    assert square.trace_count == 0


# -- eagerly -----------------------------------------------------------------------------------


def test_run_functions_eagerly_really_runs_python_every_time(strategy, eagerly):
    seen = []

    @rx.function
    def step(x):
        seen.append(x)
        return x

    assert rx.functions_run_eagerly()
    step(1.0)
    step(1.0)
    assert seen == [1.0, 1.0]
    assert step.trace_count == 0
    strategy.run(step, args=(2.0,))
    assert seen == [1.0, 1.0, 2.0, 2.0]


def test_run_functions_eagerly_still_checks_the_signature(eagerly):
    step = rx.function(lambda x: x, input_signature=[rx.TensorSpec((2,))])
    with pytest.raises(ValueError, match=r"has shape \(3,\) and dtype float32"):
        step(jnp.ones(3))


def test_run_functions_eagerly_can_be_turned_off_again():
    rx.run_functions_eagerly(True)
    rx.run_functions_eagerly(False)
    assert not rx.functions_run_eagerly()
    step = rx.function(lambda x: isinstance(x, jax.core.Tracer))
    assert step(1.0) is True
