"""Wrong uses of `StrategyExtended`, each with the error that names the fix."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import pytest

import replicax as rx
from tests.contracts.strategies import central, mirrored

SUM = rx.ReduceOp.SUM


class World:
    """Two replicas with a variable and a per-replica value, and another strategy with its own."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.extended = strategy.extended
        self.value = strategy.run(lambda: jnp.float32(1) + 0)
        self.uneven = strategy.distribute_batch([1.0, 2.0, 3.0])
        with strategy.scope():
            self.v = rx.Variable(1.0, name="mine")
        self.other = rx.MirroredStrategy(["CPU:4", "CPU:5"])
        with self.other.scope():
            self.theirs = rx.Variable(1.0, name="theirs")
        with strategy.scope(), strategy.extended.colocate_vars_with("CPU:6"):
            self.single = rx.Variable(1.0, name="single")
        on_read = rx.VariableSynchronization.ON_READ
        with strategy.scope():
            self.local = rx.Variable(1.0, name="local", synchronization=on_read)

        self.plain = rx.Variable(1.0, name="plain")

    def run(self, call):
        self.strategy.run(lambda: call() and None)

    def colocate_with(self, variable):
        with self.strategy.scope(), self.extended.colocate_vars_with(variable):
            pass

    def under_other(self, call):
        with self.other.scope():
            call()


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong call, the built-in type a user would catch, and what the message says."""

    call: Callable[[World], object]
    error: type[Exception]
    says: str


def assign(v, x=0.0):
    return v.assign(x)


MISTAKES = {
    "colocation with a variable of another strategy": Mistake(
        lambda w: w.colocate_with(w.theirs),
        ValueError,
        r"colocate_vars_with of .* got variable 'theirs', which was created under <Mirrored",
    ),
    "colocation with a variable of no strategy": Mistake(
        lambda w: w.colocate_with(w.plain),
        ValueError,
        r"colocate_vars_with of .* got variable 'plain', which was created outside every scope",
    ),
    "a per-replica argument of update": Mistake(
        lambda w: w.extended.update(w.v, assign, args=(w.value,)),
        ValueError,
        r"extended\.update of variable 'mine' got a PerReplica value at \[0\]\[0\]. Reduce it "
        r"first: extended\.reduce_to",
    ),
    "a per-replica keyword of update": Mistake(
        lambda w: w.extended.update(w.v, assign, kwargs={"x": [w.value]}),
        ValueError,
        r"'mine' got a PerReplica value at \[1\]\['x'\]\[0\]. Reduce it first",
    ),
    "a per-replica argument of update in merge_call": Mistake(
        lambda w: w.strategy.run(
            lambda: rx.get_replica_context().merge_call(
                lambda s, x: s.extended.update(w.v, assign, args=(x,)), args=(jnp.ones(()),)
            )
        ),
        ValueError,
        r"'mine' got a PerReplica value.*reduce_to",
    ),
    "a per-replica argument of update_non_slot": Mistake(
        lambda w: w.extended.update_non_slot(w.extended.parameter_devices, assign, (w.v, w.value)),
        ValueError,
        r"extended\.update_non_slot got a PerReplica value at \[0\]\[1\]. Reduce it first",
    ),
    "update of another strategy's variable": Mistake(
        lambda w: w.extended.update(w.theirs, assign),
        ValueError,
        r"extended\.update of <.*2 replicas on .*> got variable 'theirs', which was created under "
        r"<MirroredStrategy: 2 replicas on CPU:4, CPU:5>",
    ),
    "update under another strategy": Mistake(
        lambda w: w.under_other(lambda: w.extended.update(w.v, assign)),
        RuntimeError,
        r"extended\.update of .* was called inside strategy\.scope\(\) of <MirroredStrategy: 2 "
        r"replicas on CPU:4",
    ),
    "reduce_to another strategy's variable": Mistake(
        lambda w: w.extended.reduce_to(SUM, w.value, w.theirs),
        ValueError,
        "got variable 'theirs', which was created under <MirroredStrategy: 2 replicas on CPU:4",
    ),
    "read_var of another strategy's variable": Mistake(
        lambda w: w.extended.read_var(w.theirs),
        ValueError,
        r"extended\.read_var of .* got variable 'theirs', which was created under",
    ),
    "read_var of no variable": Mistake(
        lambda w: w.extended.read_var(3),
        ValueError,
        r"extended\.read_var needs a variable; got 3",
    ),
    "broadcast of a per-replica value": Mistake(
        lambda w: w.extended.broadcast_to(w.value, w.v),
        ValueError,
        r"broadcast_to got a PerReplica value.*Combine it first with extended\.reduce_to",
    ),
    "reduce_to of uneven components": Mistake(
        lambda w: w.extended.reduce_to(SUM, w.uneven, w.v),
        ValueError,
        r"components have different shapes \[\(2,\), \(1,\)\]",
    ),
    "an unknown reduction": Mistake(
        lambda w: w.extended.reduce_to("MAX", w.value, w.v),
        ValueError,
        "MAX",
    ),
    "an unknown device": Mistake(
        lambda w: w.extended.reduce_to(SUM, w.value, "CPU:99"),
        ValueError,
        "CPU:99",
    ),
    "reduce_to in replica context": Mistake(
        lambda w: w.run(lambda: w.extended.reduce_to(SUM, 1.0, w.v)),
        RuntimeError,
        r"extended\.batch_reduce_to was called inside strategy\.run\(\).*merge_call",
    ),
    "broadcast_to in replica context": Mistake(
        lambda w: w.run(lambda: w.extended.broadcast_to(1.0, w.v)),
        RuntimeError,
        r"extended\.broadcast_to was called inside strategy\.run\(\).*merge_call",
    ),
    "update_non_slot in replica context": Mistake(
        lambda w: w.run(lambda: w.extended.update_non_slot(["CPU:0"], lambda: None)),
        RuntimeError,
        r"extended\.update_non_slot was called inside strategy\.run\(\).*merge_call",
    ),
    "call_for_each_replica in replica context": Mistake(
        lambda w: w.run(lambda: w.extended.call_for_each_replica(lambda: None)),
        RuntimeError,
        r"extended\.call_for_each_replica was called inside strategy\.run\(\)",
    ),
    "run in merge_call": Mistake(
        lambda w: w.strategy.run(
            lambda: rx.get_replica_context().merge_call(
                lambda s: s.extended.call_for_each_replica(lambda: None)
            )
        ),
        RuntimeError,
        r"inside the merge_fn of merge_call.*while the replicas wait",
    ),
    "run in update": Mistake(
        lambda w: w.extended.update(w.v, lambda v: w.strategy.run(lambda: None)),
        RuntimeError,
        r"inside the function passed to extended\.update\(\).*while the replicas wait",
    ),
    "reduce_to under another strategy": Mistake(
        lambda w: w.under_other(lambda: w.extended.reduce_to(SUM, w.value, w.v)),
        RuntimeError,
        "One strategy is in force at a time",
    ),
    "an update that writes some copies of a variable": Mistake(
        lambda w: w.extended.update(w.local, _only_first()),
        ValueError,
        r"wrote copies \[0\] of variable 'local' out of 2. Write every copy, or none",
    ),
    "an update that assigns a variable with fewer copies": Mistake(
        lambda w: w.extended.update(w.local, lambda _: w.single.assign(1.0)),
        ValueError,
        r"assign of variable 'single' in an extended\.update of a variable with 2 copies: it has "
        r"1. Create it with colocate_vars_with",
    ),
    "a copy assigned outside of update": Mistake(
        lambda w: w.strategy.experimental_local_results(w.v)[0].assign(1.0),
        RuntimeError,
        r"copy 0 of variable 'mine'.*extended\.update",
    ),
}


def _only_first():
    calls = []

    def fn(copy):
        calls.append(copy)
        if len(calls) == 1:
            copy.assign(2.0)

    return fn


@pytest.mark.parametrize("make", [mirrored, central], ids=["mirrored", "central"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_with_the_fix(make, name):
    world, mistake = World(make(2)), MISTAKES[name]
    with pytest.raises(mistake.error, match=mistake.says) as raised:
        mistake.call(world)
    assert isinstance(raised.value, rx.ReplicaxError)
    assert float(world.v) == 1.0
    assert float(world.theirs) == 1.0
    assert world.strategy.num_replicas_in_sync == 2
    world.strategy.run(lambda: None)  # still works


@pytest.mark.parametrize(
    "name", [name for name in MISTAKES if "in replica context" in name or "in merge_call" in name]
)
def test_a_mistake_in_a_compiled_run_is_refused_too(name):
    strategy = mirrored(2)
    world, mistake = World(strategy), MISTAKES[name]
    run = strategy.run

    class Compiled:
        def __getattr__(self, name):
            return getattr(strategy, name)

        def run(self, fn):
            return run(rx.function(fn))

    world.strategy = Compiled()
    with pytest.raises(mistake.error, match=mistake.says):
        mistake.call(world)
