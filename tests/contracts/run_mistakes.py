"""The table of mistakes in run, collectives and strategies, and the error that each one is."""

import jax
import jax.numpy as jnp
from jax import lax

import replicax as rx
from tests.contracts.mistakes import ALL, COMPILED, Row, context, eager_only_if, ids, uneven

RUN = [
    Row("not callable", lambda s, run: s.run(3), TypeError, "needs a callable as fn; got 3"),
    *(
        Row(
            f"args that is {name}",
            lambda s, run, args=args: run(s, lambda *args: None, args),
            ValueError,
            r"args of Strategy.run is .*write args=\(value,\)",
            ALL,
        )
        for name, args in {"an array": jnp.ones(2), "a dict": {"x": 1.0}, "a number": 3}.items()
    ),
    *(
        Row(
            f"{name} of one argument",
            lambda s, run, name=name: getattr(rx, name)(lambda p: p),
            TypeError,
            rf"{name} needs the variables: write rx.{name}\(loss_fn, variables\)",
        )
        for name in ("value_and_grad", "grad")
    ),
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
        r"run_mistakes\.py:\d+",
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
        r"run_mistakes\.py:\d+",
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
