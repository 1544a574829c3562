"""A training that saves itself every few steps, and in which workers have accidents.

``FAULTS`` is a JSON list of ``[attempt, worker, step, accident]``: the worker has the accident when
it has launched that step of that attempt, counted from the attempt's first one, or, with ``"in a
save"`` for the step, when a checkpoint is half written. An accident is a signal that the worker
sends itself, ``exit``, ``raise``, or ``late``: it then joins the others later. Each worker prints
a line for each step, and the chief the bits of all state at the end. ``STEPS``, ``SAVE_EVERY``,
``PAUSE`` and ``PATIENCE``, in seconds, change the training. ``LEAK`` leaks a ``thread`` or a
``descriptor`` at the step ``LEAK_AT`` of the attempt.
"""

import json
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx
from tests.checkpoint.mid_save import half_written

NUM_STEPS = int(os.environ.get("STEPS", "30"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "3"))
GLOBAL_BATCH = 8
LATE_SECONDS = 4.0


def bits_of(arrays):
    return [np.asarray(array).tobytes().hex() for array in arrays]


def have_accident(kind, where):
    """What happens to this worker."""
    print("accident at", where, flush=True)
    if kind == "exit":
        sys.exit(0)
    if kind == "raise":
        raise ValueError("a mistake of the user")
    if kind == "late":
        time.sleep(LATE_SECONDS)
        return
    os.kill(os.getpid(), getattr(signal, kind))


def have_accident_in_mid_save(kind, folder):
    """In a thread of its own, because a save keeps the main one."""
    while not half_written(folder):
        pass
    have_accident(kind, "a save")


def leak(what):
    """Starts a thread, or opens a file, that stays."""
    if what == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif what == "descriptor":
        os.dup(0)


def main(folder):
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    attempt = int(os.environ["REPLICAX_ATTEMPT"])
    faults = {
        step: kind
        for of_attempt, of_worker, step, kind in json.loads(os.environ["FAULTS"])
        if (of_attempt, of_worker) == (attempt, worker)
    }
    if "late" in faults.values():
        have_accident("late", "the start")
        faults = {}
    # Only a stopped worker is waited for so long; a busy machine delays others that are alive.
    patience = float(os.environ.get("PATIENCE", "60"))
    options = rx.experimental.CommunicationOptions(timeout_seconds=patience)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    rng = np.random.default_rng(0)
    examples = rng.normal(size=(45, 4)).astype(np.float32)
    with strategy.scope():
        w = rx.Variable(rng.normal(size=(4, 4)).astype(np.float32), name="w")
        seen = rx.Variable(np.uint32(0), aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)
        optimizer = rx.Optimizer(optax.adam(0.05))
        generator = rx.random.Generator(3)
    shuffled = rx.data.Dataset.from_tensor_slices(examples).shuffle(45, seed=1).repeat()
    iterator = iter(strategy.distribute_dataset(shuffled.batch(GLOBAL_BATCH)))

    @rx.function
    def step(x):
        context = rx.get_replica_context()

        def loss_fn():
            noisy = x @ w + 0.1 * jax.random.normal(generator.next_key(), (4,))
            return rx.compute_average_loss(jnp.mean((jnp.tanh(noisy) - x) ** 2, axis=1))

        gradient = rx.grad(loss_fn, w)
        optimizer.apply_gradients([(gradient, w)])
        # What was read, in its order: another order gives another number.
        digest = context.all_reduce("SUM", jnp.sum(jnp.abs(x)))
        seen.assign(seen * np.uint32(31) + digest.view(jnp.uint32))

    checkpoint = rx.Checkpoint(
        w=w, seen=seen, optimizer=optimizer, generator=generator, iterator=iterator
    )
    backup = rx.BackupAndRestore(
        checkpoint,
        folder,
        every=SAVE_EVERY,
        termination_config=rx.experimental.TerminationConfig(),  # SIGTERM: save and leave
    )
    pause = float(os.environ.get("PAUSE", "0"))
    for count, number in enumerate(backup.steps(NUM_STEPS)):
        time.sleep(pause)
        strategy.run(step, args=(next(iterator),))
        if count == int(os.environ.get("LEAK_AT", "-1")):
            leak(os.environ.get("LEAK"))
        if count in faults:
            have_accident(faults[count], number)
        if "in a save" in faults and count == SAVE_EVERY:
            accident = faults["in a save"], folder
            threading.Thread(target=have_accident_in_mid_save, args=accident, daemon=True).start()
        print("step", number, flush=True)
    state = [w.numpy(), seen.numpy(), *(v.numpy() for v in optimizer.variables)]
    if strategy.is_chief:
        print("bits " + json.dumps([*bits_of(state), iterator.get_state()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
