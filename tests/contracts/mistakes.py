"""The table of mistakes in contexts, values, run and collectives, and the error each one is."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import replicax as rx
from tests.contracts.strategies import mirrored

EAGER = ("eager",)
COMPILED = ("compiled", "inside")
ALL = ("eager", "compiled", "inside")


@dataclasses.dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        name: What is done wrong.
        call: Does it, given a strategy of two replicas and an executor.
        error: The built-in type a user would catch.
        text: What the message must say.
        executors: Where the rule holds; the first one only where none is used.
    """

    name: str
    call: Callable[[Any, Any], Any]
    error: type[BaseException]
    text: str
    executors: tuple[str, ...] = EAGER


def ids(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.asarray(ctx.replica_id_in_sync_group, jnp.float32)
    )


def uneven(strategy):
    return strategy.distribute_batch(np.ones(3, np.float32))


def context():
    return rx.get_replica_context()


def in_scope(strategy, call):
    with strategy.scope():
        return call()


def stale(strategy, run):
    kept = []
    run(strategy, lambda: kept.append(context()))
    return kept[0].all_reduce("SUM", 1.0)


def scopes_crossed(strategy, run):
    scope, other = strategy.scope(), mirrored(1).scope()
    with scope, other:
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

RUN = [
    Row("not callable", lambda s, run: s.run(3), TypeError, "needs a callable as fn; got 3"),
    Row(
        "options of another type",
        lambda s, run: run(s, int, options={"a": 1}),
        TypeError,
        "options of Strategy.run is .*expected a RunOptions",
        ALL,
    ),
    Row(
        "different structures",
        lambda s, run: run(s, eager_only_if(lambda i: i == 0, lambda: (1, 2), lambda: [1])),
        ValueError,
        r"same structure: replica 0 returned .*, replica 1 returned",
    ),
    Row(
        "different structures compiled",
        lambda s, run: run(s, lambda x: (x,) if x.shape[0] == 2 else [x], (uneven(s),)),
        ValueError,
        "same structure",
        COMPILED,
    ),
    Row(
        "variables on every call",
        lambda s, run: run(s, lambda: rx.Variable(1.0, name="v").read_value()),
        ValueError,
        r"creates variables \['v.*every time",
        COMPILED,
    ),
    Row(
        "one replica merges, the other returns",
        lambda s, run: run(
            s, eager_only_if(lambda i: i == 0, lambda: context().merge_call(lambda s: None))
        ),
        RuntimeError,
        r"replica 0 called merge_call at .*, but replica 1 returned without",
    ),
    Row(
        "one replica merges, the other reduces",
        lambda s, run: run(
            s,
            eager_only_if(
                lambda i: i == 0,
                lambda: context().merge_call(lambda s: None),
                lambda: context().all_reduce("SUM", 1.0),
            ),
        ),
        RuntimeError,
        r"replica 0 called merge_call at .*, but replica 1 called all_reduce at",
    ),
    Row(
        "one replica merges, the other raises",
        lambda s, run: run(
            s,
            eager_only_if(
                lambda i: i == 0, lambda: context().merge_call(lambda s: None), lambda: 1 // 0
            ),
        ),
        ZeroDivisionError,
        r"raised on replica 1, while another replica waited in merge_call at",
    ),
    Row(
        "interrupted",
        lambda s, run: run(s, lambda: exec("raise KeyboardInterrupt('now')")),
        KeyboardInterrupt,
        "now",
        ALL,
    ),
    Row(
        "collective under varying cond",
        lambda s, run: run(
            s,
            lambda x: lax.cond(x > 0.5, lambda x: context().all_reduce("SUM", x), lambda x: x, x),
            (ids(s),),
        ),
        ValueError,
        r"mistakes\.py:\d+",
        COMPILED,
    ),
    Row(
        "merge_call under varying while",
        lambda s, run: run(
            s,
            lambda x: lax.while_loop(
                lambda c: c < 1,
                lambda c: 1 + context().merge_call(lambda s, v: s.reduce("SUM", v), args=(c,)),
                x,
            ),
            (ids(s),),
        ),
        ValueError,
        r"mistakes\.py:\d+",
        COMPILED,
    ),
    Row(
        "local smuggled into merge_fn",
        lambda s, run: run(s, lambda x: context().merge_call(lambda s: x + 1), (ids(s),)),
        ValueError,
        "pass that through merge_call",
        COMPILED,
    ),
    Row(
        "all_reduce in scan",
        lambda s, run: run(
            s, lambda: lax.scan(lambda c, _: (context().all_reduce("SUM", c), None), 1.0, length=2)
        ),
        RuntimeError,
        r"all_reduce was reached inside .*lax\.scan.*Put replicax\.function around",
    ),
    Row(
        "all_gather in jit",
        lambda s, run: run(
            s, lambda: jax.jit(lambda x: context().all_gather(x, axis=0))(jnp.ones(1))
        ),
        RuntimeError,
        r"all_gather was reached inside jax\.jit.*Put replicax\.function around",
    ),
    Row(
        "merge_call in vmap",
        lambda s, run: run(
            s,
            lambda: jax.vmap(lambda x: context().merge_call(lambda s, v: v, args=(x,)))(
                jnp.ones(2)
            ),
        ),
        RuntimeError,
        r"merge_call was reached inside .*jax\.vmap.*Put replicax\.function around",
    ),
    Row(
        "merge_call under grad",
        lambda s, run: run(
            s,
            lambda: jax.grad(
                lambda x: context().merge_call(lambda s, v: s.reduce("SUM", v), args=(x,))
            )(1.0),
        ),
        RuntimeError,
        r"merge_call was reached inside jax\.grad.*Put replicax\.function around",
    ),
    Row(
        "uneven shapes refused",
        lambda s, run: run(
            s,
            lambda x: x,
            (uneven(s),),
            options=rx.RunOptions(experimental_enable_dynamic_batch_size=False),
        ),
        ValueError,
        r"different shapes \[\(2,\), \(1,\)\].*allow dynamic batch sizes",
        ALL,
    ),
    Row(
        "unknown compiler option",
        lambda s, run: run(
            s,
            lambda x: x + 1,
            (1.0,),
            options=rx.RunOptions(experimental_xla_options={"xla_none": 1}),
        ),
        Exception,
        "No such compile option: 'xla_none'",
        COMPILED,
    ),
]

COLLECTIVES = [
    Row(
        "unknown op",
        lambda s, run: run(s, lambda: context().all_reduce("MAX", 1.0)),
        ValueError,
        r"reduce_op is 'MAX'; expected ReduceOp\.SUM or ReduceOp\.MEAN",
        ALL,
    ),
    Row(
        "all_reduce of different shapes",
        lambda s, run: run(s, lambda x: context().all_reduce("SUM", x), (uneven(s),)),
        ValueError,
        "shape",
        ALL,
    ),
    Row(
        "all_reduce of a string",
        lambda s, run: run(s, lambda: context().all_reduce("SUM", "text")),
        TypeError,
        "text|str",
        ALL,
    ),
    Row(
        "all_gather of scalars",
        lambda s, run: run(s, lambda: context().all_gather(1.0, axis=0)),
        ValueError,
        r"needs components with that dim; got shape \(\)",
        ALL,
    ),
    Row(
        "all_gather of other dims",
        lambda s, run: run(s, lambda x: context().all_gather(x[None], axis=0), (uneven(s),)),
        ValueError,
        r"agree in every other dim; got shapes \[\(1, 2\), \(1, 1\)\]",
        ALL,
    ),
]

STRATEGIES = [
    Row(
        "no devices",
        lambda s, run: rx.MirroredStrategy([]),
        ValueError,
        "devices is an empty list.*this process has",
    ),
    Row(
        "device twice",
        lambda s, run: rx.MirroredStrategy(["CPU:0", "cpu:0"]),
        ValueError,
        r"devices names CPU:0 twice.*this process has",
    ),
    Row(
        "no such device",
        lambda s, run: rx.MirroredStrategy(["CPU:9"]),
        ValueError,
        "There is no device 'CPU:9'. This process has",
    ),
    Row(
        "no such kind",
        lambda s, run: rx.OneDeviceStrategy("GPU:0"),
        ValueError,
        "There is no device 'GPU:0'. This process has",
    ),
    Row(
        "no name at all",
        lambda s, run: rx.OneDeviceStrategy("a b"),
        ValueError,
        "'a b' is not the name of a device",
    ),
    Row("a number", lambda s, run: rx.OneDeviceStrategy(3), ValueError, "got 3 of type int"),
    Row(
        "a string for a list",
        lambda s, run: rx.MirroredStrategy("CPU:0"),
        ValueError,
        "devices must be a list, got",
    ),
    Row(
        "cross-device ops",
        lambda s, run: rx.MirroredStrategy(["CPU:0"], "nccl"),
        TypeError,
        "cross_device_ops is 'nccl'; expected an instance of CrossDeviceOps",
    ),
    Row(
        "too late",
        lambda s, run: rx.set_virtual_devices(4),
        RuntimeError,
        "set_virtual_devices came too late: JAX has started",
    ),
]

ROWS = CONTEXTS + VALUES + RUN + COLLECTIVES + STRATEGIES
