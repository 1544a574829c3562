"""Starts workers for the tests of checkpoints, and is the program that they run.

``start("round_trip", folder, num_workers=2, num_devices=2)`` starts the function of that name
below on every worker. What it returns on each is read back by `Cluster.results`.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import warnings

import numpy as np

from tests.multiprocess.clusters import environment, places

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 120.0


# -- starting ----------------------------------------------------------------------------------


class Cluster:
    """The processes of one run; none is left when the ``with`` ends."""

    def __init__(self, processes, folder):
        self.processes = processes
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def output(self):
        return "\n".join(
            f"--- worker {rank}\n{(self.folder / f'output-{rank}').read_text()[-4000:]}"
            for rank in range(len(self.processes))
        )

    def wait(self, seconds=SECONDS):
        """The exit codes, by rank."""
        end = time.monotonic() + seconds
        try:
            return [p.wait(max(end - time.monotonic(), 0.01)) for p in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s\n{self.output()}") from None

    def results(self):
        """What the program returned on each worker, after all have ended well."""
        codes = self.wait()
        assert codes == [0] * len(codes), f"{codes}\n{self.output()}"
        return [json.loads((self.folder / f"result-{r}").read_text()) for r in range(len(codes))]

    def wait_for(self, name, seconds=SECONDS):
        """Waits for a file of the folder, and gives its text."""
        file = self.folder / name
        end = time.monotonic() + seconds
        while not file.exists():
            ended = [p.poll() for p in self.processes]
            assert time.monotonic() < end and not any(ended), f"{ended}\n{self.output()}"
            time.sleep(0.01)
        return file.read_text()


_numbers = itertools.count()


def start(name, folder, *arguments, num_workers=2, num_devices=1, file=__file__):
    """Starts the program `name` of `file`; `folder` is what all workers share."""
    own = pathlib.Path(folder) / f"{name}-{next(_numbers)}"
    own.mkdir(parents=True)
    processes = []
    for rank, place in enumerate(places(num_workers) if num_workers > 1 else [{}]):
        with (own / f"output-{rank}").open("w") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, file, name, str(own), str(rank), str(folder), *arguments],
                    env=environment(num_devices, **place),
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    return Cluster(processes, own)


# -- what is saved -----------------------------------------------------------------------------


class Chance:
    """An object with a state of its own, which may be another one on every worker."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.refuses = False

    def state_dict(self):
        state = self.random.bit_generator.state
        return {
            "state": str(state["state"]["state"]),
            "seen": np.arange(3) + self.random.integers(1),
        }

    def load_state_dict(self, saved):
        if self.refuses:
            raise ValueError("not today")
        state = self.random.bit_generator.state
        state["state"]["state"] = int(saved["state"])
        self.random.bit_generator.state = state


class Model:
    """A variable of every kind, and a step that changes all of them."""

    def __init__(self, strategy, *, with_none=True):
        import replicax as rx

        aggregation = rx.VariableAggregation
        on_read = {"synchronization": rx.VariableSynchronization.ON_READ}
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.zeros((3, 2), np.float32), aggregation=aggregation.MEAN)
            self.total = rx.Variable(0.0, aggregation=aggregation.SUM, **on_read)
            self.mean = rx.Variable(
                np.zeros(2, np.float32), aggregation=aggregation.MEAN, **on_read
            )
            self.first = rx.Variable(0, aggregation=aggregation.ONLY_FIRST_REPLICA, **on_read)
            self.empty = rx.Variable(np.zeros((0, 2), np.float32))
            self.loss = rx.metrics.Mean("loss")
            if with_none:
                self.own = rx.Variable(0.0, aggregation=aggregation.NONE, **on_read)
        self.with_none = with_none

        def step():
            me = rx.get_replica_context().replica_id_in_sync_group
            self.w.assign_add(np.ones((3, 2), np.float32) * (me + 1.5))
            self.total.assign_add(me + 0.1)
            self.mean.assign_add(me * np.float32([1, 0.3]))
            self.first.assign_add(me + 1)
            self.loss.update_state(me + 2.5)
            if with_none:
                self.own.assign_add(me + 0.25)

        compiled = rx.function(step)
        self.step = lambda: strategy.run(compiled)

    def checkpoint(self, **others):
        import replicax as rx

        own = {"own": self.own} if self.with_none else {}
        return rx.Checkpoint(
            w=self.w,
            total=self.total,
            mean=self.mean,
            first=self.first,
            empty=self.empty,
            loss=self.loss,
            **own,
            **others,
        )

    def values(self):
        """What reads across replicas give: the same on every worker, for any layout."""
        read = [self.w, self.total, self.mean, self.first, self.loss.result()]
        return [np.asarray(value).tolist() for value in read]

    def copies(self):
        """The copies of this worker."""
        variables = [self.total, self.mean, self.first, *([self.own] if self.with_none else [])]
        local = self.strategy.experimental_local_results
        return [[np.asarray(part).tolist() for part in local(v)] for v in variables]


def caught(call):
    """The error of a call as text, with its class in front."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# -- programs ----------------------------------------------------------------------------------


def make_strategy(seconds=20):
    import replicax as rx

    options = rx.experimental.CommunicationOptions(timeout_seconds=seconds)
    return rx.MultiWorkerMirroredStrategy(communication_options=options)


def round_trip(rank, folder):
    """Everything that two healthy workers can meet."""
    import replicax as rx
    from replicax.backend import workers
    from replicax.checkpoint import files, saving
    from replicax.checkpoint.latest import latest_checkpoint

    results = {}
    strategy = make_strategy()
    model = Model(strategy)
    chance = Chance(rank)
    checkpoint = model.checkpoint(chance=chance, epoch=7)
    model.step()

    results["path"] = path = checkpoint.save(folder / "run/ckpt")
    results["seen at once"] = latest_checkpoint(folder / "run") == path
    model.values()
    results["saved"] = saved = [model.values(), model.copies(), chance.state_dict()["state"]]
    model.step()
    chance.random.integers(1)
    checkpoint.epoch = 8
    assert saved != [model.values(), model.copies(), chance.state_dict()["state"]]
    checkpoint.restore(path).assert_consumed()
    results["restored"] = [model.values(), model.copies(), chance.state_dict()["state"]]
    results["epoch"] = checkpoint.epoch

    # In the background, with steps that go on at once; two of them under way.
    other = rx.Checkpoint(w=model.w)
    asynchronous = checkpoint.save_async(folder / "async/ckpt")
    second = other.save_async(folder / "async/other")
    for _ in range(5):
        model.step()
    other.sync()
    checkpoint.sync()
    checkpoint.restore(asynchronous).assert_consumed()
    results["restored from background"] = [model.values(), model.copies()]
    other.read(second).expect_partial()
    results["second in background"] = np.asarray(model.w).tolist()

    # Objects that come after restore.
    late = rx.Checkpoint()
    status = late.read(path)
    late.w = rx.Variable(np.zeros((3, 2), np.float32))
    results["deferred"] = late.w.numpy().tolist()
    status.expect_partial()

    # What one worker finds wrong, all raise.
    before = model.values()
    shape = (3, 2) if rank == 0 else (4, 2)
    misfit = rx.Checkpoint(w=rx.Variable(np.full(shape, 5, np.float32)), epoch=0)
    results["mismatch"] = caught(lambda: misfit.read(path))
    results["mismatch changed nothing"] = bool((misfit.w.numpy() == 5).all() and misfit.epoch == 0)
    results["different objects"] = caught(lambda: misfit.write(folder / "different"))
    chance.refuses = rank == 1
    chance.random.integers(1)
    state = chance.state_dict()["state"]
    results["refused"] = caught(lambda: checkpoint.restore(path))
    results["refusal changed nothing"] = (
        model.values() == before and chance.state_dict()["state"] == state
    )
    chance.refuses = False
    results["path differs"] = caught(lambda: checkpoint.write(folder / f"elsewhere-{rank}"))
    results["path of restore differs"] = caught(
        lambda: checkpoint.restore(path if rank == 0 else None)
    )
    results["cannot be saved"] = caught(lambda: Failing(rank).checkpoint.write(folder / "failing"))
    (folder / f"home-{rank}").mkdir()
    os.chdir(folder / f"home-{rank}")
    private = "/proc/self/cwd/private/ckpt"  # the same name, and a folder of each worker's own
    results["not shared"] = caught(lambda: checkpoint.write(private))
    if rank == 0:
        shutil.copytree(path, private)
    results["only one has it"] = caught(lambda: checkpoint.restore(private))
    os.chdir(ROOT)

    (folder / "blocked/checkpoint").mkdir(parents=True, exist_ok=True)  # where a file should be
    blocked = folder / "blocked/ckpt"
    counted = int(checkpoint.save_counter)
    results["cannot be written"] = caught(lambda: checkpoint.save(blocked))
    results["not counted"] = int(checkpoint.save_counter) == counted
    checkpoint.save_async(blocked)
    results["cannot be written in the background"] = caught(checkpoint.sync)
    checkpoint.save_counter.assign(counted)

    # A manager, whose latest gets damaged.
    saving.TELL_SECONDS = 0.0001  # as if writing took very long
    manager = rx.CheckpointManager(checkpoint, folder / "managed", 2)
    results["nothing there"] = manager.restore_or_initialize()
    manager.save()
    kept = model.values()
    model.step()
    manager.save()
    model.step()
    latest = manager.save()
    results["kept"] = [pathlib.Path(p).name for p in manager.checkpoints]
    if rank == 0:
        file = max(
            pathlib.Path(latest).glob("data-*/arrays/**/d/*"), key=lambda f: f.stat().st_size
        )
        file.write_bytes(file.read_bytes()[:-1])
    workers.require().exchange("the damage", None)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        results["instead of the damaged"] = manager.restore_or_initialize()
    results["warned"] = [str(w.message) for w in shown if "passed over" in str(w.message)]
    results["at the one before"] = kept != model.values()

    # What a process without a cluster has written.
    plain = Model(strategy, with_none=False)
    plain.checkpoint(epoch=0).restore(folder / "one_process/ckpt-1").assert_consumed()
    results["from one process"] = plain.values()
    plain.checkpoint(epoch=11).save(folder / "two_by_two/ckpt")
    results["two by two"] = plain.values()
    assert files.is_complete(folder / "two_by_two/ckpt-1")
    return results


class Failing:
    """An object that gives no state on one worker."""

    def __init__(self, rank):
        import replicax as rx

        self.rank = rank
        self.checkpoint = rx.Checkpoint(failing=self)

    def state_dict(self):
        if self.rank == 1:
            raise OSError("no room for it")
        return {}

    def load_state_dict(self, state):
        pass


def other_layout(rank, folder):
    """Three workers restore what others have written, and fail where they must."""
    del rank
    strategy = make_strategy()
    model = Model(strategy, with_none=False)
    checkpoint = model.checkpoint(epoch=0)
    results = {}
    for name in ("one_process", "two_by_two"):
        checkpoint.restore(folder / name / "ckpt-1").assert_consumed()
        results[name] = [model.values(), checkpoint.epoch]
    whole = Model(strategy).checkpoint(chance=Chance(0), epoch=0)
    results["misfit"] = caught(lambda: whole.restore(folder / "run/ckpt-1"))
    model.step()
    results["saved"] = [checkpoint.save(folder / "three/ckpt"), model.values()]
    return results


def save_for_ever(rank, folder, how):
    """Saves until it is killed."""
    import replicax as rx
    from replicax.core.errors import WorkerLostError

    strategy = make_strategy(5)
    with strategy.scope():
        variables = [rx.Variable(np.zeros((256, 256), np.float32)) for _ in range(6)]
    checkpoint = rx.Checkpoint(variables=variables, n=0)
    manager = rx.CheckpointManager(checkpoint, folder / "saves", 2)
    manager.restore_or_initialize()
    options = rx.CheckpointOptions(enable_async=how == "async")
    own = pathlib.Path(sys.argv[2])
    try:
        while True:
            checkpoint.n += 1
            for variable in variables:
                variable.assign(np.full((256, 256), checkpoint.n, np.float32))
            manager.save(options=options)
            (own / f"saved-{rank}-{checkpoint.n}").touch()
    except WorkerLostError as error:
        (own / f"lost-{rank}").write_text(str(error))
        raise


def main(*programs):
    """Runs the program that `start` has named, and writes what it returns."""
    name, own, rank, folder, *arguments = sys.argv[1:]
    by_name = {program.__name__: program for program in programs}
    result = by_name[name](int(rank), pathlib.Path(folder), *arguments)
    (pathlib.Path(own) / f"result-{rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    main(round_trip, other_layout, save_for_ever)
