"""Programs for workers that show what `CommunicationOptions` do.

``python -m tests.multiprocess.options bits`` prints the bits of parameters after training;
``... timeout SECONDS`` has worker 0 wait for a worker that is alive, but does not come.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx

Options = rx.experimental.CommunicationOptions
NUM_STEPS = 10


def bits():
    """Ten steps on four replicas; the global batches are the same for every layout."""
    options = Options(timeout_seconds=60, deterministic=True)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    assert strategy.num_replicas_in_sync == 4
    rng = np.random.default_rng(0)
    with strategy.scope():
        w = rx.Variable(rng.normal(size=(16, 16)).astype(np.float32))
        b = rx.Variable(rng.normal(size=16).astype(np.float32))
        optimizer = rx.Optimizer(optax.adam(0.1))
        mean = rx.metrics.Mean()

    @rx.function
    def step(x):
        def loss_fn():
            each = jnp.mean((jnp.tanh(x @ w + b) - jnp.sin(x)) ** 2, axis=1)
            return rx.compute_average_loss(each), each

        (_, each), gradients = rx.value_and_grad(loss_fn, [w, b], has_aux=True)
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
        mean.update_state(each)

    for _ in range(NUM_STEPS):
        strategy.run(step, args=(strategy.distribute_batch(rng.normal(size=(30, 16))),))
    result = np.concatenate([w.numpy().ravel(), b.numpy(), [np.float32(mean.result())]])
    print("bits", result.astype(np.float32).tobytes().hex())


def timeout(seconds):
    """Worker 1 sleeps where worker 0 waits for it in a collective."""
    options = Options(timeout_seconds=seconds)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    step = rx.function(lambda x: rx.get_replica_context().all_reduce("SUM", x))
    value = strategy.distribute_batch(np.arange(4.0))
    jax.block_until_ready(strategy.run(step, args=(value,)).read_value())
    started = time.monotonic()
    if not strategy.is_chief:
        time.sleep(60)
        return
    try:
        jax.block_until_ready(strategy.run(step, args=(value,)).read_value())
    except Exception as error:
        print("raised", type(error).__name__, f"{time.monotonic() - started:.1f}", error)
        raise


if __name__ == "__main__":
    if sys.argv[1] == "bits":
        bits()
    else:
        timeout(float(sys.argv[2]))
