"""Workers on a Ray cluster of this machine, which the tests of this file share."""

import json
import os
import pathlib
import signal
import stat
import sys

import pytest
from click.testing import CliRunner

import replicax as rx
from replicax.cli.launch import launch
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.launch.outcome import Ending
from replicax.launch.plan import Job
from replicax.launch.ray_place import RayPlace
from replicax.launch.restart import RestartLimits
from replicax.launch.run import Observer, Run
from replicax.launch.service import CoordinationService
from replicax.ray_cluster.session import Session
from tests.backend.fresh_process import ROOT
from tests.launch.programs import children, is_running, program, wait_until
from tests.multiprocess.clusters import environment
from tests.ray_cluster.clusters import descendants, is_loopback, listeners
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

AT_ONCE = RestartLimits(backoff_seconds=0.0)
NUM_CPUS = 6


@pytest.fixture(scope="module")
def session():
    """A connection of this process, which all places use."""
    before = children()
    with Session(num_cpus=NUM_CPUS) as made:
        yield made
    assert children() <= before


class OnRay:
    """One run, and what was printed, by worker."""

    def __init__(self, command, *, num_workers=2, limits=AT_ONCE, reactions=None, **job):
        self.lines = [[] for _ in range(num_workers)]
        self.pids = []
        self._reactions = reactions or {}
        place = RayPlace(num_workers=num_workers)
        self.summary = Run(
            Job(tuple(command), num_workers=num_workers, **job),
            place=place,
            limits=limits,
            coordination=CoordinationService(place.host),
            observer=Observer(
                on_line=self._on_line,
                on_start=lambda attempt, pids: self.pids.append(dict(pids)),
            ),
        ).execute()
        assert wait_until(lambda: not any(is_running(p) for a in self.pids for p in a.values()))

    def _on_line(self, worker_id, line):
        self.lines[worker_id].append(line)
        reaction = self._reactions.get(line.partition(" ")[0])
        if reaction is not None:
            reaction(self.pids[-1])


# -- the launcher ------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_worker_gets_its_place_and_all_start_again_after_a_failure(session):
    source = """
    print(attempt, config["task"]["index"], *config["cluster"]["worker"])
    if (worker, attempt) == (1, 1): sys.exit(7)
    if attempt == 1: signal.pause()
    """
    run = OnRay(program(source), limits=RestartLimits(max_restarts=1, backoff_seconds=0.0))
    assert run.summary.code == 0
    (failed, done) = run.summary.outcomes
    assert (failed.ending, failed.first.worker_id, failed.code) == (Ending.FAILED, 1, 7)
    assert done.ending is Ending.DONE
    for worker_id, lines in enumerate(run.lines):
        first, second = (line.split() for line in lines)
        assert first[:2] == ["1", str(worker_id)]
        assert second[:2] == ["2", str(worker_id)]
        addresses = first[2:] + second[2:]
        assert len(set(addresses)) == 4
        assert all(address.startswith("127.0.0.1:") for address in addresses)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "actor"])
def test_a_worker_that_is_killed_and_one_whose_actor_is_are_failures(session, victim: str):
    def kill(pids):
        pid = pids[1]
        if victim == "actor":
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            pid = int(status.partition("PPid:")[2].split()[0])
        os.kill(pid, signal.SIGKILL)

    source = "print('ready') if worker == 1 else None\nwhile True: signal.pause()"
    run = OnRay(program(source), reactions={"ready": kill})
    assert run.summary.code == 128 + signal.SIGKILL
    assert run.summary.outcomes[0].first.worker_id == 1
    if victim == "actor":
        assert run.lines[1][-1].startswith("worker 1 is lost: its actor is gone")


@pytest.mark.slow
def test_a_preemption_starts_all_again_and_output_without_end_arrives(session):
    source = r"""
    if attempt == 1: sys.exit(75 if worker == 0 else 0)
    for i in range(3000): print(i)
    sys.stdout.buffer.write(b"\xff end"); sys.stdout.flush()
    """
    run = OnRay(program(source))
    assert [o.ending for o in run.summary.outcomes] == [Ending.PREEMPTED, Ending.DONE]
    assert run.lines[1] == [*map(str, range(3000)), "\ufffd end"]


def test_two_workers_train_as_under_the_launcher_also_when_one_is_killed(session, tmp_path):
    """Bit for bit: variables, slots and the place in the input."""
    variables = environment(1, STEPS="8", SAVE_EVERY="2")
    faults = json.dumps([[1, 1, 5, "SIGKILL"]])

    def command(folder, faults):
        added = [f"{name}={variables[name]}" for name in ("PYTHONPATH", "STEPS", "SAVE_EVERY")]
        training = [sys.executable, "-m", "tests.multiprocess.recovery", str(tmp_path / folder)]
        return ["env", *added, f"FAULTS={faults}", *training]

    lines = []
    limits = RestartLimits(max_restarts=1, backoff_seconds=0.0)
    summary = Run(
        Job(tuple(command("here", "[]")), num_workers=2, devices_per_worker=1),
        coordination=CoordinationService(),
        observer=Observer(on_line=lambda worker_id, line: lines.append(line)),
    ).execute()
    assert summary.code == 0, "\n".join(lines)
    run = OnRay(command("ray", faults), limits=limits, devices_per_worker=1)
    assert run.summary.code == 0, "\n".join(run.lines[0] + run.lines[1])
    assert len(run.summary.outcomes) == 2
    assert run.summary.outcomes[0].first.worker_id == 1
    (expected,) = [line for line in lines if line.startswith("bits ")]
    assert [line for line in run.lines[0] if line.startswith("bits ")] == [expected]


@pytest.mark.slow
def test_too_little_room_is_an_error_that_says_what_there_is(session):
    place = RayPlace(num_workers=1, resources={"CPU": 99}, start_seconds=0.5)
    text = r"has not started 1 of 1 workers, each with CPU=99, .* of CPU=6, "
    try:
        with pytest.raises(ClusterPlatformError, match=text):
            place.reserve(1)
    finally:
        place.close()


@pytest.mark.slow
def test_the_command_starts_workers_on_ray(session, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print('hello', *sys.argv[1:])")
    arguments = ["--ray", "--workers", "2", "--show", "all", str(script), "--epochs", "5"]
    result = CliRunner().invoke(launch, arguments)
    assert result.exit_code == 0, result.output
    expected = ["[worker 0] hello --epochs 5", "[worker 1] hello --epochs 5"]
    assert sorted(result.stdout.splitlines()) == expected


# -- who can connect ---------------------------------------------------------------------------


def test_nothing_listens_but_on_loopback_and_only_this_user_can_read_the_token(session):
    def look(pids):
        ours = descendants(of=os.getpid()) | {os.getpid()}
        found.update(listeners(ours))
        assert set(pids.values()) <= ours
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)

    found: dict[str, int] = {}
    OnRay(
        program("print('ready') if worker == 1 else None\nsignal.pause()"),
        reactions={"ready": look},
    )
    assert len(found) > 5
    assert [address for address in found if not is_loopback(address)] == []
    token = pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700


# -- inside a program of Ray -------------------------------------------------------------------


class Trainer:
    """A user's actor; it knows nothing of this package until it trains."""

    def train(self, resolver=None):
        import numpy as np

        import replicax as rx

        strategy = rx.MultiWorkerMirroredStrategy(resolver)
        with strategy.scope():
            total = rx.Variable(np.float32(0), aggregation=rx.VariableAggregation.SUM)
        place = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id

        @rx.function
        def step(x):
            total.assign_add(x)

        values = strategy.experimental_distribute_values_from_function(
            lambda ctx: np.float32(10**ctx.replica_id_in_sync_group)
        )
        strategy.run(step, args=(values,))
        return place, float(total.numpy())


@pytest.mark.parametrize(
    "is_given", [False, full_only(True)], ids=["TF_CONFIG", "given to the actors"]
)
def test_a_program_of_ray_trains_on_its_own_actors(session, is_given: bool):
    ray = session.ray
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    options = {"num_cpus": 1, "runtime_env": {"env_vars": variables}}
    actors = [ray.remote(Trainer).options(**options).remote() for _ in range(2)]
    try:
        resolver = rx.cluster_resolver.RayClusterResolver({"worker": actors})
        assert (resolver.task_type, resolver.task_id) == (None, None)
        addresses = resolver.cluster_spec().job_tasks("worker")
        assert len(set(addresses)) == 2
        if is_given:
            calls = [actor.train.remote(resolver) for actor in actors]
        else:
            resolver.set_tf_config()
            calls = [actor.train.remote() for actor in actors]
        assert ray.get(calls) == [(("worker", 0), 11.0), (("worker", 1), 11.0)]
    finally:
        for actor in actors:
            ray.kill(actor)


@pytest.mark.slow
def test_a_cluster_of_actors_needs_an_actor_for_each_task(session):
    actor = session.ray.remote(Trainer).options(num_cpus=0).remote()
    try:
        with pytest.raises(ClusterError, match="2 tasks have only 1 actors"):
            rx.cluster_resolver.RayClusterResolver({"worker": [actor, actor]})
        with pytest.raises(ClusterError, match="there is no actor in"):
            rx.cluster_resolver.RayClusterResolver({"worker": []})
    finally:
        session.ray.kill(actor)
    with pytest.raises(ClusterPlatformError, match="is gone or does not answer"):
        rx.cluster_resolver.RayClusterResolver({"worker": [actor]})
