"""The table of mistakes in contexts and values, and the error that each one is."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from tests.contracts.strategies import mirrored

EAGER = ("eager",)
COMPILED = ("compiled", "inside")
ALL = (*EAGER, *COMPILED)


@dataclasses.dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        name: What is done wrong.
        call: Does it, given a strategy of two replicas and an executor.
        error: The built-in type a user would catch.
        text: What the message must say.
        executors: Where the rule holds.
    """

    name: str
    call: Callable[..., Any]
    error: type[BaseException]
    text: str
    executors: tuple[str, ...] = EAGER


def ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def uneven(strategy):
    return strategy.distribute_batch(np.ones(3, np.float32))


context = rx.get_replica_context


def in_scope(strategy, call):
    with strategy.scope():
        return call()


def stale(strategy, run):
    kept = []
    run(strategy, lambda: kept.append(context()))
    return kept[0].all_reduce("SUM", 1.0)


def scopes_crossed(strategy, run):
    with strategy.scope(), mirrored(1).scope():
        pass


def eager_only_if(condition_holds, then, otherwise=lambda: None):
    def replica_fn():
        chosen = condition_holds(context().replica_id_in_sync_group)
        return then() if chosen else otherwise()

    return replica_fn


CONTEXTS = [
    Row(
        "scope in own run",
        lambda s, run: run(s, lambda: in_scope(s, int)),
        RuntimeError,
        r"Strategy\.scope was called inside strategy\.run\(\).*merge_call",
        ALL,
    ),
    Row(
        "run in own run",
        lambda s, run: run(s, lambda: s.run(int)),
        RuntimeError,
        r"Strategy\.run was called inside strategy\.run\(\).*merge_call.*the function itself",
        ALL,
    ),
    Row(
        "reduce in own run",
        lambda s, run: run(s, lambda: s.reduce("SUM", 1.0)),
        RuntimeError,
        r"Strategy\.reduce was called inside strategy\.run\(\).*merge_call",
        ALL,
    ),
    Row(
        "gather in own run",
        lambda s, run: run(s, lambda: s.gather(1.0, 0)),
        RuntimeError,
        r"Strategy\.gather was called inside strategy\.run\(\).*merge_call",
        ALL,
    ),
    Row(
        "values from function in own run",
        lambda s, run: run(s, lambda: s.experimental_distribute_values_from_function(int)),
        RuntimeError,
        r"experimental_distribute_values_from_function was called.*merge_call",
        ALL,
    ),
    Row(
        "run in merge_fn",
        lambda s, run: run(s, lambda: context().merge_call(lambda s: s.run(int))),
        RuntimeError,
        "inside the merge_fn of merge_call",
        ALL,
    ),
    Row(
        "other scope in scope",
        scopes_crossed,
        RuntimeError,
        r"Strategy\.scope of <MirroredStrategy: 1 .*inside strategy\.scope\(\) of .*: 2 replicas",
    ),
    Row(
        "other run in scope",
        lambda s, run: in_scope(s, lambda: mirrored(1).run(int)),
        RuntimeError,
        r"Strategy\.run of <MirroredStrategy: 1 .*scope\(\) of .*: 2 replicas",
    ),
    Row(
        "other run in run",
        lambda s, run: run(s, lambda: mirrored(1).run(int)),
        RuntimeError,
        r"Strategy\.run of <MirroredStrategy: 1 .*run\(\) of .*: 2 replicas",
        ALL,
    ),
    Row(
        "set strategy in scope",
        lambda s, run: in_scope(s, lambda: rx.experimental_set_strategy(s)),
        RuntimeError,
        r"experimental_set_strategy was called inside strategy\.scope\(\)",
    ),
    Row(
        "set strategy in run",
        lambda s, run: run(s, lambda: rx.experimental_set_strategy(s)),
        RuntimeError,
        r"experimental_set_strategy was called inside strategy\.run\(\)",
        ALL,
    ),
    Row("stale replica context", stale, RuntimeError, "used after its run had ended", ALL),
    Row(
        "replica context in merge_fn",
        lambda s, run: run(
            s, lambda: (lambda c: c.merge_call(lambda s: c.all_reduce("SUM", 1.0)))(context())
        ),
        RuntimeError,
        "all_reduce was called inside the merge_fn",
        ALL,
    ),
    Row(
        "run under jit",
        lambda s, run: jax.jit(lambda x: s.run(lambda: x))(1.0),
        RuntimeError,
        r"inside a JAX transformation.*replicax\.function",
    ),
]

VALUES = [
    Row(
        "instantiate",
        lambda s, run: rx.DistributedValues(),
        TypeError,
        "experimental_distribute_values_from_function",
    ),
    Row("add", lambda s, run: ids(s) + 1, TypeError, r"strategy\.reduce.*local_results"),
    Row("float", lambda s, run: float(ids(s)), TypeError, r"float\(\).*local_results"),
    Row("if", lambda s, run: bool(ids(s)), TypeError, r"'if' or bool\(\).*local_results"),
    Row("iterate", lambda s, run: list(ids(s)), TypeError, r"for loop.*local_results"),
    Row("numpy", lambda s, run: np.asarray(ids(s)), TypeError, r"numpy\.asarray.*local_results"),
    Row("jnp", lambda s, run: jnp.asarray(ids(s)), TypeError, r"JAX function.*local_results"),
    Row(
        "value context",
        lambda s, run: rx.experimental.ValueContext(2, 2),
        ValueError,
        r"replica_id_in_sync_group is 2; expected an int in \[0, 2\)",
    ),
    Row(
        "values of different structure",
        lambda s, run: s.experimental_distribute_values_from_function(
            lambda ctx: [1.0] * ctx.replica_id_in_sync_group
        ),
        ValueError,
        "same structure",
    ),
    Row(
        "host object compiled",
        lambda s, run: run(
            s, lambda x: x, (s.experimental_distribute_values_from_function(lambda ctx: object()),)
        ),
        ValueError,
        "replica 0 holds .*array of numbers, and cannot enter a compiled run",
        COMPILED,
    ),
    Row(
        "strings compiled",
        lambda s, run: run(s, lambda x: x, (s.distribute_batch(np.array(["a", "b"])),)),
        ValueError,
        "cannot enter a compiled run",
        COMPILED,
    ),
    Row(
        "64-bit batch",
        lambda s, run: s.distribute_batch({"x": np.array([2**40, 1])}),
        ValueError,
        r"leaf \['x'\] .*1099511627776.*int32.*jax_enable_x64",
    ),
    Row(
        "64-bit argument",
        lambda s, run: run(s, lambda x: x, ({"x": np.array([2**40])},)),
        ValueError,
        r"argument.*\['x'\] .*1099511627776.*int32.*jax_enable_x64",
        ALL,
    ),
    Row(
        "scalar batch",
        lambda s, run: s.distribute_batch(3.0),
        ValueError,
        "is a scalar and cannot be divided among replicas. Batch",
    ),
    Row(
        "ragged batch",
        lambda s, run: s.distribute_batch({"a": np.ones(2), "b": np.ones(3)}),
        ValueError,
        r"\['a'\]: 2, \['b'\]: 3",
    ),
    Row(
        "batch of a batch",
        lambda s, run: s.distribute_batch(ids(s)),
        ValueError,
        "is PerReplica; expected an array on the host",
    ),
]
