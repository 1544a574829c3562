"""A run on one machine: what workers get, who is stopped when, what is tried again."""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import tempfile
import time

import pytest

from replicax.launch.exit_codes import PREEMPTED
from replicax.launch.interruption import Interruption
from replicax.launch.outcome import Ending
from replicax.launch.plan import Job
from replicax.launch.restart import RestartLimits
from replicax.launch.run import Observer, Run
from replicax.launch.summary import Summary
from tests.launch.programs import children, descriptors, is_running, program, wait_until

AT_ONCE = RestartLimits(backoff_seconds=0.0)


class Recorder:
    """Keeps what a run says; `reactions` are called when a line is printed."""

    def __init__(self, **reactions) -> None:
        self.lines: list[tuple[int, str]] = []
        self.pids: list[dict[int, int]] = []
        self.decisions = []
        self._reactions = reactions
        self.observer = Observer(
            on_line=self._on_line,
            on_start=lambda attempt, pids: self.pids.append(dict(pids)),
            on_end=lambda attempt, decision, lines: self.decisions.append((attempt, decision)),
        )

    def _on_line(self, worker_id: int, line: str) -> None:
        self.lines.append((worker_id, line))
        reaction = self._reactions.get(line.partition(" ")[0])
        if reaction is not None:
            reaction()

    def of(self, worker_id: int) -> list[str]:
        return [line for worker, line in self.lines if worker == worker_id]

    @property
    def all_pids(self) -> list[int]:
        return [pid for attempt in self.pids for pid in attempt.values()]


def execute(
    source: str,
    recorder: Recorder | None = None,
    *,
    workers: int = 2,
    limits: RestartLimits = AT_ONCE,
    interruption: Interruption | None = None,
    coordination=None,
    **job,
) -> Summary:
    recorder = recorder or Recorder()
    before = children()
    run = Run(
        Job(program(source), num_workers=workers, **job),
        limits=limits,
        interruption=interruption,
        coordination=coordination,
        observer=recorder.observer,
    )
    try:
        return run.execute()
    finally:
        assert children() <= before  # no worker, no guard, no process that waits to be forgotten


def fifo(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "fifo"
    os.mkfifo(path)
    return path


# -- what workers get --------------------------------------------------------------------------


def test_each_worker_gets_the_same_cluster_and_its_own_index():
    recorder = Recorder()
    summary = execute("print(json.dumps(config))", recorder, workers=3)
    configs = [json.loads(*recorder.of(worker)) for worker in range(3)]
    assert summary.code == 0
    assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(3)]
    assert configs[0]["cluster"] == configs[1]["cluster"] == configs[2]["cluster"]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_a_worker_can_listen_at_its_address():
    source = """
    host, port = address.split(":")
    with socket.socket() as listener:
        listener.bind((host, int(port)))
    """
    assert execute(source, workers=3).code == 0


def test_a_worker_with_virtual_devices_has_them_in_jax():
    recorder = Recorder()
    source = "import os, jax; print(len(jax.devices()), jax.default_backend(), os.environ['NPROC'])"
    job = Job((program("")[0], "-c", source), num_workers=1, devices_per_worker=3)
    Run(job, observer=recorder.observer).execute()
    count, platform, threads = recorder.of(0)[-1].split()
    assert (count, platform) == ("3", "cpu")
    assert int(threads) >= 12


def test_a_program_that_is_not_there_is_named():
    recorder = Recorder()
    summary = Run(Job(("no-such-program",), num_workers=1), observer=recorder.observer).execute()
    assert summary.code == 127
    assert "no-such-program cannot be run" in recorder.of(0)[0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"command": ()}, "command is empty"),
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"devices_per_worker": 0}, "devices_per_worker must be at least 1, got 0"),
        ({"grace_seconds": -1.0}, "grace_seconds must be 0 or more, got -1.0"),
        ({"grace_seconds": float("nan")}, "grace_seconds must be 0 or more, got nan"),
        ({"grace_seconds": float("inf")}, "got inf; expected a finite number"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(fields: dict, text: str):
    with pytest.raises(ValueError, match=text):
        dataclasses.replace(Job(("true",), num_workers=1), **fields)


# -- output ------------------------------------------------------------------------------------


def test_output_is_kept_in_one_file_a_worker_with_a_line_for_each_attempt(tmp_path: pathlib.Path):
    folder = tmp_path / "made" / "by the launcher"
    source = "print('out', attempt); print('err', file=sys.stderr); sys.exit(attempt == 1)"
    limits = dataclasses.replace(AT_ONCE, max_restarts=1)
    summary = execute(source, workers=2, log_dir=folder, limits=limits)
    assert summary.code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["worker-0.log", "worker-1.log"]
    texts = [(folder / f"worker-{i}.log").read_text() for i in range(2)]
    assert all(f"--- attempt {n}, " in text for text in texts for n in (1, 2))
    assert all("out 2\nerr\n" in text for text in texts)
    assert str(folder) in summary.text()


def test_much_output_and_a_line_without_end_all_arrive():
    recorder = Recorder()
    source = r"""
    for i in range(20000): print(i)
    sys.stdout.buffer.write(b"\xff end"); sys.stdout.flush()
    """
    assert execute(source, recorder, workers=1).code == 0
    assert recorder.of(0) == [*map(str, range(20000)), "\ufffd end"]


def test_a_worker_that_closes_its_output_is_still_waited_for(tmp_path: pathlib.Path):
    path = tmp_path / "done"
    source = f"os.close(1); os.close(2); open({str(path)!r}, 'w').close(); os._exit(4)"
    assert execute(source, workers=1).code == 4
    assert path.exists()


def test_no_worker_stays_when_the_output_cannot_be_shown():
    def fail() -> None:
        raise BrokenPipeError("the reader is gone")

    recorder = Recorder(ready=fail)
    with pytest.raises(BrokenPipeError, match="the reader is gone"):
        execute("print('ready'); signal.pause()", recorder)
    assert not any(map(is_running, recorder.all_pids))


# -- failures ----------------------------------------------------------------------------------


def test_the_worker_that_failed_first_is_named_with_its_last_lines():
    source = """
    if worker == 2:
        for i in range(100): print("line", i)
        sys.exit(7)
    signal.pause()
    """
    summary = execute(source, workers=4)
    assert summary.code == 7
    (outcome,) = summary.outcomes
    assert (outcome.ending, outcome.first.worker_id) == (Ending.FAILED, 2)
    text = summary.text()
    assert "The run failed with exit code 7" in text
    assert "worker 2 failed first: exit code 7. Its last lines:" in text
    assert text.splitlines()[-1].strip() == "line 99"


@pytest.mark.timing
def test_the_rest_is_stopped_within_a_second_also_if_it_ignores_sigterm(tmp_path: pathlib.Path):
    path = fifo(tmp_path)
    died: list[float] = []
    ended: list[float] = []

    def let_it_die() -> None:
        died.append(time.monotonic())
        path.write_text("die")

    recorder = Recorder(deaf=let_it_die)
    observer = dataclasses.replace(
        recorder.observer, on_end=lambda *args: ended.append(time.monotonic())
    )
    source = f"""
    if worker == 1:
        open({str(path)!r}).read()
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("deaf")
    while True: signal.pause()
    """
    limits = dataclasses.replace(AT_ONCE, max_restarts=2)
    summary = Run(Job(program(source), num_workers=2), limits=limits, observer=observer).execute()
    assert summary.code == 128 + signal.SIGKILL
    assert "worker 1 failed first: killed by SIGKILL" in summary.text()
    # The quickest of three, since other tests share the machine.
    assert min(end - start for start, end in zip(died, ended, strict=True)) < 1.0
    assert not any(map(is_running, recorder.all_pids))


def test_what_a_worker_started_is_stopped_with_it(tmp_path: pathlib.Path):
    path = fifo(tmp_path)
    recorder = Recorder(child=lambda: path.write_text("go"))
    source = f"""
    if worker == 0:
        if (pid := os.fork()) == 0:
            print("child", os.getpid())
            while True: signal.pause()
        while True: signal.pause()
    open({str(path)!r}).read()
    sys.exit(1)
    """
    assert execute(source, recorder).code == 1
    pids = [int(line.split()[1]) for line in recorder.of(0)]
    assert len(pids) == 1
    assert wait_until(lambda: not any(map(is_running, pids)))


def test_a_stopped_worker_is_ended_too(tmp_path: pathlib.Path):
    path = fifo(tmp_path)

    def stop_worker_0() -> None:
        os.kill(recorder.pids[0][0], signal.SIGSTOP)
        path.write_text("go")

    recorder = Recorder(ready=stop_worker_0)
    source = f"""
    if worker == 0:
        print("ready")
        while True: signal.pause()
    open({str(path)!r}).read()
    sys.exit(5)
    """
    assert execute(source, recorder).code == 5
    assert not any(map(is_running, recorder.all_pids))


# -- restarts ----------------------------------------------------------------------------------


def test_after_a_failure_all_start_again_on_new_ports_with_the_number_of_the_attempt():
    recorder = Recorder()
    source = "print(attempt, address); sys.exit(3 if worker == 1 and attempt < 3 else 0)"
    limits = RestartLimits(max_restarts=2, backoff_seconds=0.01)
    summary = execute(source, recorder, limits=limits)
    assert summary.code == 0
    attempts, addresses = zip(*(line.split() for line in recorder.of(1)), strict=True)
    assert attempts == ("1", "2", "3")
    assert len(set(addresses)) == 3
    assert [d.pause for _, d in recorder.decisions] == [0.01, 0.02, 0.0]
    assert "The run is done after" in summary.text()
    assert "Attempt 1: worker 1: exit code 3\nAttempt 2: worker 1: exit code 3" in summary.text()


def test_the_exit_code_is_that_of_the_last_attempt():
    limits = dataclasses.replace(AT_ONCE, max_restarts=2)
    summary = execute("sys.exit(10 + attempt)", workers=1, limits=limits)
    assert (summary.code, len(summary.outcomes)) == (13, 3)


@pytest.mark.parametrize("field", ["max_restarts", "backoff_seconds"])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_negative_limits_are_refused(field: str, value: float):
    with pytest.raises(ValueError, match=f"{field} must be 0 or more, got"):
        RestartLimits(**{field: value})


def test_a_preemption_is_not_a_failure():
    limits = dataclasses.replace(AT_ONCE, max_restarts=0)
    summary = execute("sys.exit(75 if attempt < 4 else 0)", limits=limits)
    assert summary.code == 0
    assert [o.ending for o in summary.outcomes] == [Ending.PREEMPTED] * 3 + [Ending.DONE]


def test_preemptions_have_a_limit_of_their_own():
    limits = dataclasses.replace(AT_ONCE, max_restarts=9, max_preemptions=2)
    summary = execute("sys.exit(75)", workers=1, limits=limits)
    assert (summary.code, len(summary.outcomes)) == (PREEMPTED, 3)
    assert "The run was preempted and ends with exit code 75" in summary.text()


def test_after_a_preemption_the_others_may_finish_saving(tmp_path: pathlib.Path):
    path = fifo(tmp_path)
    recorder = Recorder(leaving=lambda: path.write_text("go"))
    source = f"""
    if worker == 1:
        print("leaving")
        sys.exit(75)
    open({str(path)!r}).read()
    print("saved")
    sys.exit(75)
    """
    limits = RestartLimits(max_preemptions=0)
    assert execute(source, recorder, limits=limits).code == PREEMPTED
    assert recorder.of(0) == ["saved"]


def test_after_a_preemption_one_that_does_not_leave_is_ended():
    source = """
    if worker == 1: sys.exit(75)
    while True: signal.pause()
    """
    limits = RestartLimits(max_preemptions=0)
    assert execute(source, limits=limits, grace_seconds=0.1).code == PREEMPTED


def test_many_restarts_leave_no_process_no_port_and_no_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
):
    num_restarts = 100 if is_full else 10
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    recorder = Recorder()
    source = """
    host, port = address.split(":")
    listener = socket.create_server((host, int(port)))
    print(address)
    sys.exit(3 if worker else 0)
    """
    before = descriptors()
    limits = dataclasses.replace(AT_ONCE, max_restarts=num_restarts)
    summary = execute(source, recorder, limits=limits)
    assert len(summary.outcomes) == num_restarts + 1
    assert {outcome.ending for outcome in summary.outcomes} == {Ending.FAILED}
    assert not any(map(is_running, recorder.all_pids))
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []
    addresses = {line for _, line in recorder.lines}
    assert len(addresses) > num_restarts
    for address in addresses:
        host, port = address.split(":")
        socket.create_server((host, int(port))).close()


# -- interruptions -----------------------------------------------------------------------------


def test_sigterm_is_passed_on_and_workers_that_save_end_the_run_as_preempted():
    interruption = Interruption()
    recorder = Recorder(ready=lambda: interruption.add(signal.SIGTERM))
    source = """
    def leave(*args):
        print("saved")
        sys.exit(75)
    signal.signal(signal.SIGTERM, leave)
    if worker == 0: print("ready")
    while True: signal.pause()
    """
    summary = execute(source, recorder, workers=1, interruption=interruption)
    assert summary.code == PREEMPTED
    assert summary.outcomes[-1].ending is Ending.INTERRUPTED
    assert recorder.of(0) == ["ready", "saved"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_workers_that_do_not_leave_are_ended_after_the_grace_time(number: int, code: int):
    interruption = Interruption()
    recorder = Recorder(deaf=lambda: interruption.add(number))
    source = """
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
    print("deaf")
    while True: signal.pause()
    """
    limits = RestartLimits(max_restarts=5)
    summary = execute(
        source, recorder, workers=1, interruption=interruption, limits=limits, grace_seconds=0.1
    )
    assert (summary.code, len(summary.outcomes)) == (code, 1)


def test_a_second_signal_ends_everything_at_once():
    interruption = Interruption()
    recorder = Recorder(
        deaf=lambda: interruption.add(signal.SIGTERM),
        heard=lambda: interruption.add(signal.SIGTERM),
    )
    source = """
    signal.signal(signal.SIGTERM, lambda *args: print("heard"))
    print("deaf")
    while True: signal.pause()
    """
    # Without the second signal this would take an hour.
    summary = execute(source, recorder, workers=1, interruption=interruption, grace_seconds=3600.0)
    assert summary.code == 143


def test_workers_that_finish_in_the_grace_time_are_done():
    interruption = Interruption()
    recorder = Recorder(ready=lambda: interruption.add(signal.SIGTERM))
    source = """
    signal.signal(signal.SIGTERM, lambda *args: sys.exit(0))
    print("ready")
    while True: signal.pause()
    """
    assert execute(source, recorder, workers=1, interruption=interruption).code == 0


def test_a_signal_between_two_attempts_ends_the_run():
    interruption = Interruption()
    recorder = Recorder()
    observer = dataclasses.replace(
        recorder.observer, on_end=lambda *args: interruption.add(signal.SIGINT)
    )
    limits = RestartLimits(max_restarts=1, backoff_seconds=60.0)
    job = Job(program("sys.exit(1)"), num_workers=1)
    run = Run(job, limits=limits, interruption=interruption, observer=observer)
    summary = run.execute()
    assert summary.code == 130
    assert len(recorder.pids) == 1


# -- the coordination service ------------------------------------------------------------------


class Service:
    """Records when it is started and stopped, and whether a worker was running then."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.events: list[tuple] = []
        self._variables = variables

    def start(self, addresses, *, attempt):
        self.events.append(("start", attempt, len(addresses)))
        return self._variables

    def stop(self):
        self.events.append(("stop",))


def test_a_coordination_service_runs_around_each_attempt_and_its_variables_reach_all_workers():
    service = Service({"REPLICAX_SERVICE": "here"})
    recorder = Recorder()
    limits = dataclasses.replace(AT_ONCE, max_restarts=1)
    source = "print(os.environ['REPLICAX_SERVICE']); sys.exit(attempt == 1 and worker == 1)"
    assert execute(source, recorder, limits=limits, coordination=service).code == 0
    assert service.events == [("start", 1, 2), ("stop",), ("start", 2, 2), ("stop",)]
    assert recorder.of(1) == ["here", "here"]


def test_an_attempt_whose_coordination_service_is_in_trouble_fails_with_its_name():
    class Troubled(Service):
        def trouble(self):
            starts = sum(event[0] == "start" for event in self.events)
            return "the service at h:1 does not answer." if starts == 1 else ""

    limits = dataclasses.replace(AT_ONCE, max_restarts=1)
    source = "if attempt == 1: signal.pause()"
    summary = execute(source, Recorder(), limits=limits, coordination=Troubled({}))
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.FAILED, Ending.DONE]
    assert "Attempt 1: the service at h:1 does not answer." in summary.text()
