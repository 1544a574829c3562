"""W5: one small training program, from its first line to its first loss, as three peers write it.

Nothing is imported that such a program would not import. The process says how long its parts took;
the driver measures the whole of it from outside.

Usage: python -m benchmarks.starting replicax 2
"""

import json
import sys
import time

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


def main() -> None:
    """Runs one of the programs, and prints seconds: imports, preparation, first step."""
    imported, built = PROGRAMS[sys.argv[1]](int(sys.argv[2]))
    end = time.perf_counter()
    parts = {"import": imported - BEGIN, "build": built - imported, "first": end - built}
    print(json.dumps({key: 1e6 * seconds for key, seconds in parts.items()}), flush=True)


if __name__ == "__main__":
    main()
