"""Every error of the rules on variables, reductions, gradients and keys: type, text, aftermath."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.contracts.strategies import mirrored

SUM = rx.VariableAggregation.SUM
MEAN = rx.VariableAggregation.MEAN
NONE = rx.VariableAggregation.NONE
SYNC = rx.VariableSynchronization


def discard(_):
    """Makes a lambda return None."""


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def variable(strategy, value=1.0, **options):
    with strategy.scope():
        return rx.Variable(value, name="w", **options)


def per_replica(strategy):
    return strategy.run(lambda: replica_id() + 1.0)


def merge(merge_fn, *args):
    return lambda: rx.get_replica_context().merge_call(merge_fn, args=args)


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to go wrong.

    Attributes:
        cause: Called with a strategy of two replicas.
        error: The built-in type that a user would catch.
        match: What the text must say: what was received, and what to do.
    """

    cause: Callable[[Any], Any]
    error: type[Exception]
    match: str


def _uneven(s):
    return s.distribute_batch(np.ones(3, np.float32))


def _local(s, **options):
    return variable(s, synchronization=SYNC.ON_READ, **options)


def _foreign(s):
    other = mirrored(3)
    v = variable(other)
    with s.scope():
        v.read_value()


def _foreign_in_run(s):
    v = variable(mirrored(3))
    s.run(lambda: v + 1)


def _no_strategy_variable(s):
    plain = rx.Variable(1.0, name="w")
    s.run(lambda: discard(plain.assign_add(1.0)))


def _read_in_jit(s):
    v = variable(s)
    jax.jit(lambda x: x * v)(1.0)


def _read_in_scan(s):
    v = variable(s)
    jax.lax.scan(lambda c, _: (c + v.read_value(), None), 0.0, None, length=2)


def _write_in_jit(s):
    v = variable(s)
    jax.jit(lambda x: discard(v.assign(x)))(1.0)


def _write_in_scan_in_eager_run(s):
    v = variable(s, aggregation=SUM)
    body = lambda c, _: (c, discard(v.assign_add(c)))  # noqa: E731
    s.run(lambda: discard(jax.lax.scan(body, 1.0, None, length=2)))


def _write_in_vmap(s):
    v = variable(s, aggregation=SUM)
    s.run(rx.function(lambda: jax.vmap(lambda x: discard(v.assign(x)))(jnp.ones(2))))


def _write_in_checkpoint(s):
    v = variable(s, aggregation=SUM)
    block = jax.checkpoint(lambda x: (v.assign(x), x * x)[1])
    s.run(rx.function(lambda: jax.grad(block)(1.0)))


def _write_under_a_local_predicate(s):
    v = variable(s, aggregation=SUM)

    def step():
        yes = lambda: (v.assign_add(1.0), 0)[1]  # noqa: E731
        return jax.lax.cond(replica_id() == 0, yes, lambda: 0)

    s.run(rx.function(step))


def _one_copy_of_update(s):
    v = variable(s)

    def fn(copy):
        if copy is s.experimental_local_results(v)[0]:
            copy.assign(2.0)

    s.extended.update(v, fn)


ROWS = {
    # creation
    "no initial value": Row(lambda s: rx.Variable(None), ValueError, "needs an initial_value"),
    "synchronization NONE in scope": Row(
        lambda s: variable(s, synchronization=SYNC.NONE),
        ValueError,
        r"'w' has synchronization=NONE.*Use AUTO, ON_WRITE or ON_READ",
    ),
    "MEAN on integers": Row(
        lambda s: variable(s, 1, aggregation=MEAN),
        ValueError,
        r"'w' has aggregation=MEAN and dtype int32.*Use a floating dtype",
    ),
    "MEAN on integers, sync on read": Row(
        lambda s: _local_int_mean(s), ValueError, "aggregation=MEAN and dtype int32"
    ),
    "unknown synchronization": Row(
        lambda s: variable(s, synchronization="ON_READ"),
        ValueError,
        r"synchronization of variable 'w' is 'ON_READ'; expected one of",
    ),
    "unknown aggregation": Row(
        lambda s: variable(s, aggregation="SUM"),
        ValueError,
        r"aggregation of variable 'w' is 'SUM'; expected one of",
    ),
    "strings": Row(lambda s: variable(s, "text"), ValueError, "initial value of variable 'w' has"),
    "a key": Row(
        lambda s: variable(s, jax.random.key(0)), ValueError, r"'w' is a random key.*key_data"
    ),
    "64 bits that do not fit": Row(
        lambda s: variable(s, np.int64(2**40)), ValueError, r"'w' has dtype int64.*jax_enable_x64"
    ),
    "created on every call": Row(
        lambda s: s.run(rx.function(lambda: rx.Variable(1.0, name="w") + 1)),
        ValueError,
        r"creates variables \['w'\] every time.*Create them once",
    ),
    # assignment
    "NONE in a replica": Row(
        lambda s: (lambda v: s.run(lambda: discard(v.assign(1.0))))(variable(s)),
        ValueError,
        r"'w' inside run.*aggregation=NONE.*2 replicas.*VariableAggregation\.SUM",
    ),
    "PerReplica assigned": Row(
        lambda s: variable(s).assign(per_replica(s)), ValueError, r"'w' got a PerReplica.*reduce"
    ),
    "PerReplica in update": Row(
        lambda s: s.extended.update(variable(s), lambda v, x: v.assign(x), (per_replica(s),)),
        ValueError,
        r"update of variable 'w' got a PerReplica.*reduce_to",
    ),
    "another shape": Row(
        lambda s: variable(s).assign([1.0]), ValueError, r"shape \(1,\), but variable 'w' has"
    ),
    "a lossy dtype": Row(
        lambda s: variable(s, 1).assign(jnp.float32(1)), ValueError, r"float32.*'w' of dtype int32"
    ),
    "a lossy number": Row(
        lambda s: variable(s, 1).assign(1.5), ValueError, "1.5, which variable 'w'.*exactly"
    ),
    "one copy": Row(
        lambda s: s.experimental_local_results(variable(s))[1].assign(1.0),
        RuntimeError,
        r"copy 1 of variable 'w'.*Assign to the variable itself",
    ),
    "update of one copy only": Row(
        _one_copy_of_update, ValueError, r"wrote copies \[0\] of variable 'w' out of 2"
    ),
    "a plain variable in run": Row(
        _no_strategy_variable, ValueError, r"'w' inside run on 2 replicas.*strategy\.scope\(\)"
    ),
    # sync on read
    "sync on read, NONE, read": Row(
        lambda s: _local(s).numpy(), ValueError, r"'w'.*aggregation=NONE.*inside run"
    ),
    "sync on read, assign_add": Row(
        lambda s: _local(s, aggregation=SUM).assign_add(1.0),
        ValueError,
        r"assign_add of variable 'w' in cross-replica context.*inside run",
    ),
    "sync on read, assign_sub": Row(
        lambda s: _local(s, aggregation=MEAN).assign_sub(1.0),
        ValueError,
        r"assign_sub of variable 'w' in cross-replica context",
    ),
    # strategies
    "under another strategy": Row(
        _foreign, ValueError, r"'w' was created under .*3 replicas.*used inside.*2 replicas"
    ),
    "in another strategy's run": Row(
        _foreign_in_run, ValueError, r"'w' was created under .*3 replicas.*run\(\) of.*2 replicas"
    ),
    # traces
    "read in jit": Row(_read_in_jit, RuntimeError, r"'w' is read inside.*Pass the variable as an"),
    "read in scan": Row(_read_in_scan, RuntimeError, r"'w' is read inside.*replicax\.function"),
    "write in jit": Row(_write_in_jit, RuntimeError, r"assign of variable 'w'.*replicax\.function"),
    "write in scan, eager": Row(
        _write_in_scan_in_eager_run, RuntimeError, r"'w' was reached inside.*replicax\.function"
    ),
    "write in vmap": Row(_write_in_vmap, ValueError, r"'w' is assigned inside jax\.vmap.*Return"),
    "write in checkpoint": Row(
        _write_in_checkpoint, ValueError, r"assigns a variable inside jax\.checkpoint.*Move"
    ),
    "write under a local predicate": Row(
        _write_under_a_local_predicate, ValueError, r"test_variable_errors\.py:\d+"
    ),
    # reduce and gather
    "unknown reduction": Row(
        lambda s: s.reduce("MAX", 1.0, axis=None), ValueError, r"reduce_op is 'MAX'; expected"
    ),
    "unknown reduction in a replica": Row(
        lambda s: s.run(lambda: rx.get_replica_context().all_reduce("PROD", 1.0)),
        ValueError,
        r"reduce_op is 'PROD'; expected",
    ),
    "uneven without an axis": Row(
        lambda s: s.reduce("SUM", _uneven(s), axis=None),
        ValueError,
        r"different shapes \[\(2,\), \(1,\)\].*axis=0",
    ),
    "axis out of range": Row(
        lambda s: s.reduce("SUM", per_replica(s), axis=0), ValueError, r"axis 0 .*axis=None"
    ),
    "axis of another type": Row(
        lambda s: s.reduce("SUM", per_replica(s), axis="0"), ValueError, "axis is '0'; expected"
    ),
    "gather of scalars": Row(
        lambda s: s.gather(per_replica(s), axis=0), ValueError, r"shape \(\).*jnp\.reshape"
    ),
    "reduce in a replica": Row(
        lambda s: s.run(lambda: s.reduce("SUM", 1.0, axis=None)), RuntimeError, "merge_call"
    ),
    # gradients and keys
    "gradient of an array": Row(
        lambda s: rx.grad(lambda: 1.0, jnp.ones(2)), ValueError, r"got .*jax\.value_and_grad"
    ),
    "gradient of one variable twice": Row(
        lambda s: (lambda v: rx.grad(lambda: v * 1, (v, v)))(variable(s)),
        ValueError,
        r"same variable twice: \['w', 'w'\]",
    ),
    "replica key across replicas": Row(
        lambda s: s.run(merge(lambda s: rx.random.Generator(0).next_replica_key())),
        RuntimeError,
        r"next_replica_key was called inside the merge_fn.*call next_key",
    ),
}


def _local_int_mean(s):
    return variable(s, 1, synchronization=SYNC.ON_READ, aggregation=MEAN)


@pytest.fixture(scope="module")
def shared():
    """One strategy for all rows: each must leave it as it found it."""
    return mirrored(2)


@pytest.mark.parametrize("name", ROWS)
def test_the_error_says_what_to_do_and_the_strategy_works_afterwards(shared, name):
    row = ROWS[name]
    with pytest.raises(row.error, match=f"(?s){row.match}") as caught:
        row.cause(shared)
    assert isinstance(caught.value, rx.ReplicaxError)
    assert not rx.has_strategy()
    v = variable(shared, 1.0, aggregation=SUM)

    def step():
        v.assign_add(1.0)
        return rx.get_replica_context().all_reduce("SUM", v.read_value())

    assert float(shared.run(step)) == 6
    assert float(shared.run(rx.function(step))) == 10
