"""W5: one small training program, from its first line to its first loss, as three peers write it.

Nothing is imported that such a program would not import. The process says how long its parts took;
the driver measures the whole of it from outside. Of a program of 4,000 equations, only how long it
takes to trace and lower it is measured, by the process itself.

Usage: python -m benchmarks.starting replicax 2
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

BEGIN = time.perf_counter()
SHAPES = ((64, 128), (128, 128), (128, 10))


def hand_written(replicas: int) -> list[float]:
    """jit and shard_map."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    imported = time.perf_counter()
    jax.config.update("jax_num_cpu_devices", replicas)
    mesh = Mesh(np.asarray(jax.devices()), ("replica",), axis_types=(AxisType.Auto,))
    whole, divided = PartitionSpec(), PartitionSpec("replica")
    params = [
        jax.device_put(np.full(shape, 0.01, np.float32), NamedSharding(mesh, whole))
        for shape in SHAPES
    ]
    x = jax.device_put(np.ones((4 * replicas, 64), np.float32), NamedSharding(mesh, divided))

    def loss_of(params, x):
        for weights in params:
            x = jnp.tanh(x @ weights)
        return jnp.mean(x**2)

    def replica(params, x):
        loss, gradients = jax.value_and_grad(loss_of)(params, x)
        loss, gradients = jax.lax.pmean((loss, gradients), "replica")
        return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)], loss

    mapped = jax.shard_map(
        replica, mesh=mesh, in_specs=(whole, divided), out_specs=(whole, whole), check_vma=False
    )
    step = jax.jit(mapped, donate_argnums=0)
    built = time.perf_counter()
    params, loss = step(params, x)
    float(loss)
    return [imported, built]


def with_replicax(replicas: int) -> list[float]:
    """`function` and `run`."""
    import jax.numpy as jnp
    import numpy as np

    import replicax as rx

    imported = time.perf_counter()
    rx.set_virtual_devices(replicas)
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        params = [rx.Variable(np.full(shape, 0.01, np.float32)) for shape in SHAPES]
    batch = strategy.distribute_batch(np.ones((4 * replicas, 64), np.float32))

    def replica(x):
        def loss_of():
            y = x
            for weights in params:
                y = jnp.tanh(y @ weights)
            return jnp.mean(y**2)

        loss_and_gradients = rx.value_and_grad(loss_of, params)
        return rx.get_replica_context().all_reduce("MEAN", loss_and_gradients)

    @rx.function
    def step(x):
        loss, gradients = strategy.run(replica, args=(x,))
        for weights, gradient in zip(params, gradients, strict=True):
            weights.assign_sub(0.1 * gradient)
        return loss

    built = time.perf_counter()
    float(step(batch))
    return [imported, built]


def with_tensorflow(replicas: int) -> list[float]:
    """A MirroredStrategy and a tf.function."""
    import numpy as np
    import tensorflow as tf

    imported = time.perf_counter()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * replicas
    )
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        params = [tf.Variable(np.full(shape, 0.01, np.float32)) for shape in SHAPES]
    batch = strategy.experimental_distribute_values_from_function(
        lambda _: tf.ones((4, 64), tf.float32)
    )

    def replica(x):
        with tf.GradientTape() as tape:
            y = x
            for weights in params:
                y = tf.tanh(y @ weights)
            loss = tf.reduce_mean(y**2)
        gradients = tape.gradient(loss, params)
        context = tf.distribute.get_replica_context()
        loss, *gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, [loss, *gradients])
        for weights, gradient in zip(params, gradients, strict=True):
            weights.assign_sub(0.1 * gradient)
        return loss

    @tf.function
    def step(x):
        return strategy.run(replica, args=(x,))

    built = time.perf_counter()
    float(strategy.experimental_local_results(step(batch))[0])
    return [imported, built]


def lower_by_hand(replicas: int) -> Callable[[], Any]:
    """A long step of jit and shard_map, ready to be traced."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, PartitionSpec

    jax.config.update("jax_num_cpu_devices", replicas)
    mesh = Mesh(np.asarray(jax.devices()), ("replica",), axis_types=(AxisType.Auto,))
    whole, divided = PartitionSpec(), PartitionSpec("replica")

    def replica(weights, x):
        total = jax.lax.psum(long_chain(weights, x).sum(0), "replica")
        return weights - 0.1 * total, total

    mapped = jax.shard_map(
        replica, mesh=mesh, in_specs=(whole, divided), out_specs=(whole, whole), check_vma=False
    )
    step = jax.jit(mapped, donate_argnums=0)
    return lambda: step.lower(np.ones(8, np.float32), np.ones((replicas, 8), np.float32))


def lower_with_replicax(replicas: int) -> Callable[[], Any]:
    """The same step of `function` and `run`, ready to be traced."""
    import numpy as np

    import replicax as rx

    rx.set_virtual_devices(replicas)
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        weights = rx.Variable(np.ones(8, np.float32))
    batch = strategy.distribute_batch(np.ones((replicas, 8), np.float32))

    def replica(x):
        return rx.get_replica_context().all_reduce("SUM", long_chain(weights.value, x).sum(0))

    @rx.function
    def step(x):
        total = strategy.run(replica, args=(x,))
        weights.assign_sub(0.1 * total)
        return total

    return lambda: step.lower(batch)


def long_chain(weights: Any, x: Any) -> Any:
    """4,000 equations."""
    for _ in range(2000):
        x = x * weights + 1.0
    return x


def import_jax(replicas: int) -> list[float]:
    """No program: what every JAX program imports."""
    del replicas
    import jax
    import jax.numpy
    import numpy

    del jax, numpy
    return [time.perf_counter()] * 2


def import_replicax(replicas: int) -> list[float]:
    """No program: the package, and what it imports."""
    del replicas
    import replicax

    del replicax
    return [time.perf_counter()] * 2


PROGRAMS = {
    "hand-written": hand_written,
    "replicax": with_replicax,
    "tensorflow": with_tensorflow,
    "import jax": import_jax,
    "import replicax": import_replicax,
}


LOWERINGS = {"lower hand-written": lower_by_hand, "lower replicax": lower_with_replicax}


def main() -> None:
    """Runs one of the programs, and prints microseconds: imports, preparation, first step."""
    if sys.argv[1] in LOWERINGS:
        lower = LOWERINGS[sys.argv[1]](int(sys.argv[2]))
        wall, cpu = time.perf_counter(), time.process_time()
        lower()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": 1e6 * wall, "cpu": 1e6 * cpu}), flush=True)
        return
    imported, built = PROGRAMS[sys.argv[1]](int(sys.argv[2]))
    end = time.perf_counter()
    parts = {"import": imported - BEGIN, "build": built - imported, "first": end - built}
    print(json.dumps({key: 1e6 * seconds for key, seconds in parts.items()}), flush=True)


if __name__ == "__main__":
    main()
