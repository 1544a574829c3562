"""What two workers do when something is not the same on both; each check prints one line.

``python -m tests.multiprocess.behaviour`` on the workers of a cluster runs all checks, in order:
after each of them both workers must be able to go on together.
"""

import json
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.backend import comparing, workers
from replicax.backend.device_assignment import DeviceAssignment
from replicax.backend.topology import initialize_tpu_system
from tests.summary.event_files import scalars


def error_of(call):
    """The kind and the text of what `call` raises."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def initial_values_come_from_worker_0(strategy, rank):
    with strategy.scope():
        v = rx.Variable(np.full(3, rank, np.float32))
        flag = rx.Variable(rank == 0)
    return [v.numpy().tolist(), bool(flag.numpy())]


def initial_values_in_a_run_come_from_worker_0(strategy, rank):
    made = []

    @rx.function
    def step(x):
        if not made:
            made.append(rx.Variable(x * 2))
        return made[0] + 0

    value = strategy.experimental_distribute_values_from_function(
        lambda ctx: jnp.float32(ctx.replica_id_in_sync_group + 1)
    )
    strategy.run(step, args=(value,))
    return made[0].numpy().tolist()


def another_variable(strategy, rank):
    def create():
        with strategy.scope():
            rx.Variable(np.zeros(2 + rank, np.float32), name="w")

    return error_of(create)


def another_name(strategy, rank):
    def create():
        with strategy.scope():
            rx.Variable(1.0, name=f"w{rank}")

    return error_of(create)


def another_value_assigned(strategy, rank):
    with strategy.scope():
        v = rx.Variable(1.0, name="w")
    error = error_of(lambda: v.assign(float(rank)))
    return [error, float(v.numpy())]


def tpus_of_both_workers(strategy, rank):
    assignment = DeviceAssignment.build(initialize_tpu_system(), [1, 1, 1, 1], num_replicas=2)
    resolver = rx.cluster_resolver.SimpleClusterResolver(rx.cluster_resolver.ClusterSpec({}))
    return error_of(lambda: rx.TPUStrategy(resolver, assignment))


def a_description_names_the_workers(strategy, rank):
    return strategy.describe().splitlines()


def another_program(strategy, rank):
    step = rx.function(lambda x: x * (rank + 1))
    batch = strategy.distribute_batch(np.ones(4, np.float32))
    return error_of(lambda: strategy.run(step, args=(batch,)))


def another_argument(strategy, rank):
    step = rx.function(lambda x, rate: x * rate)
    batch = strategy.distribute_batch(np.ones(4, np.float32))
    return error_of(lambda: strategy.run(step, args=(batch, jnp.float32(rank))))


def another_argument_later(strategy, rank):
    """In one call of many; the array of the host is changed in place after each."""
    step = rx.function(lambda x, rate: x * rate)
    batch = strategy.distribute_batch(np.ones(4, np.float32))
    rate, calls = np.ones(3, np.float32), []

    def train():
        for number in range(1, 500):
            calls.append(number)
            rate[:] = rank if number == comparing.EVERY else number
            strategy.run(step, args=(batch, rate[0]))

    return [error_of(train), len(calls)]


def a_deleted_argument_is_not_compared(strategy, rank):
    step = rx.function(lambda x, rate: x * rate)
    batch = strategy.distribute_batch(np.ones(4, np.float32))
    for _ in range(3 * comparing.EVERY):
        rate = jnp.float32(2)
        strategy.run(step, args=(batch, rate))
        if rank == 0:
            rate.delete()


def an_error_on_one_worker(strategy, rank):
    def replica_fn():
        if rank == 1:
            raise ValueError("only here")
        return rx.get_replica_context().all_reduce("SUM", 1.0)

    return error_of(lambda: strategy.run(replica_fn))


def other_calls_on_one_worker(strategy, rank):
    def replica_fn():
        context = rx.get_replica_context()
        if rank == 0:
            return context.all_reduce("SUM", 1.0)
        return context.merge_call(lambda s: None)

    return error_of(lambda: strategy.run(replica_fn))


def another_order(strategy, rank):
    value = strategy.run(rx.function(lambda: jnp.full((2, 3), 1.0)))
    calls = [
        lambda: strategy.reduce("SUM", value, axis=0),
        lambda: strategy.gather(value, axis=0),
    ]
    return error_of(lambda: [call() for call in (reversed(calls) if rank else calls)])


def local_results_in_a_function(strategy, rank):
    batch = strategy.distribute_batch(np.ones(4, np.float32))

    @rx.function
    def whole(batch):
        return sum(strategy.experimental_local_results(strategy.run(lambda x: x, args=(batch,))))

    return error_of(lambda: whole(batch))


def numbers_that_differ_are_per_replica(strategy, rank):
    same, different = strategy.run(lambda: (3, rank))
    total = strategy.reduce("SUM", different, axis=None)
    return [same, type(different).__name__, float(total)]


def a_variable_read_on_the_chief_only(strategy, rank):
    """Its buffer is then not donated there, so that the next step is another program."""
    with strategy.scope():
        v = rx.Variable(np.zeros(3, np.float32), aggregation=rx.VariableAggregation.SUM)

    @rx.function
    def step(x):
        v.assign_add(x[:3])

    batch = strategy.distribute_batch(np.ones(8, np.float32))
    for number in range(6):
        strategy.run(step, args=(batch,))
        if strategy.is_chief and number % 2 == 0:
            v.numpy()
    return v.numpy().tolist()


def summaries(strategy, rank):
    """Each worker has a folder of its own here, so that it shows who writes."""

    @rx.function
    def step(x):
        rx.summary.scalar("largest", x.max())
        return x

    batch = strategy.distribute_batch(np.arange(4, dtype=np.float32))
    with tempfile.TemporaryDirectory() as folder:
        with rx.summary.create_file_writer(folder).as_default(step=3):
            strategy.run(step, args=(batch,))
            rx.summary.scalar("outside", 2.0)
        written = {tag: scalars(folder, tag) for tag in ("largest", "outside")}
        return [len(list(pathlib.Path(folder).iterdir())), written]


def they_still_work_together(strategy, rank):
    total = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    return float(total) == strategy.num_replicas_in_sync


CHECKS = (
    initial_values_come_from_worker_0,
    initial_values_in_a_run_come_from_worker_0,
    another_variable,
    another_name,
    another_value_assigned,
    another_program,
    another_argument,
    another_argument_later,
    a_deleted_argument_is_not_compared,
    an_error_on_one_worker,
    other_calls_on_one_worker,
    another_order,
    tpus_of_both_workers,
    a_description_names_the_workers,
    local_results_in_a_function,
    numbers_that_differ_are_per_replica,
    a_variable_read_on_the_chief_only,
    summaries,
)


def main():
    """Runs every check, and after each one that the workers still work together."""
    options = rx.experimental.CommunicationOptions(timeout_seconds=60)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    rank = workers.require().rank
    for check in CHECKS:
        found = check(strategy, rank)
        assert they_still_work_together(strategy, rank), check
        print("found " + json.dumps([check.__name__, found]))


if __name__ == "__main__":
    main()
