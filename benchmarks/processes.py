"""Starts the processes of a peer and talks to them; whatever takes too long is ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, Self

from benchmarks.cases import PEERS, Case
from benchmarks.timing import KINDS

ROOT = pathlib.Path(__file__).resolve().parent.parent
THREADS_PER_DEVICE = 3
NOT_INHERITED = ("TF_CONFIG", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
"""The last one, because a program that is installed has its bytecode."""


class PeerError(Exception):
    """A process of a peer failed or took too long."""


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def environment(devices: int) -> dict[str, str]:
    """What every process gets: the CPU, divided alike for all that are written in JAX."""
    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    inherited = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONWARNINGS": "ignore",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(max(THREADS_PER_DEVICE * devices, os.cpu_count() or 1)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }


@dataclasses.dataclass(slots=True)
class _Member:
    """One process, and a thread that collects its answers."""

    process: subprocess.Popen[str]
    answers: queue.SimpleQueue[str]
    errors: Any

    @classmethod
    def start(cls, assignment: dict[str, Any], variables: dict[str, str]) -> Self:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by `end`
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(assignment)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables,
            cwd=ROOT,
        )
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def collect() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                answers.put(line)
            answers.put("")

        threading.Thread(target=collect, daemon=True).start()
        return cls(process, answers, errors)

    def tell(self, command: str, argument: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self.process.stdin.write(json.dumps({command: argument}) + "\n")
            self.process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise PeerError(f"no answer within {seconds:.0f} s") from None
        if not line:
            self.errors.seek(0)
            lines = [line for line in self.errors.read().splitlines() if line.strip()]
            raise PeerError(lines[-1] if lines else "ended without a word")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()  # one that has joined others does not leave by itself
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.errors.close()


class PeerProcesses:
    """All processes of one peer in one case.

    Args:
        peer: Which of `cases.PEERS`.
        case: What they will do.
        deadline: How long anything may take, in seconds.
    """

    def __init__(self, peer: str, case: Case, *, deadline: float) -> None:
        self.peer = peer
        self._deadline = deadline
        each = PEERS[peer].process_per_replica
        count = case.replicas if each else case.processes
        addresses = free_addresses(count + 1)
        self._members = []
        for rank in range(count):
            assignment = {
                **{"peer": peer, "workload": case.workload, "replicas": case.replicas},
                **{"rank": rank, "processes": count, "address": addresses[-1]},
            }
            more = (*PEERS[peer].variables, *case.variables)
            variables = environment(case.replicas // count) | dict(more)
            if count > 1:
                task = {"type": "worker", "index": rank}
                cluster = {"cluster": {"worker": addresses[:-1]}, "task": task}
                variables["TF_CONFIG"] = json.dumps(cluster)
            self._members.append(_Member.start(assignment, variables))

    def _all(self, command: str, argument: Any) -> list[dict[str, Any]]:
        for member in self._members:
            member.tell(command, argument)
        return [member.answer(self._deadline) for member in self._members]

    def start_build(self, variant: str) -> None:
        """Begins to make a variant; `value` waits for it."""
        for member in self._members:
            member.tell("build", variant)

    def value(self) -> float:
        """The loss after the first steps."""
        answers = [member.answer(self._deadline) for member in self._members]
        return sum(answer["value"] for answer in answers)

    def measure(self, runs: int, command: str = "measure") -> dict[str, float]:
        """The time of a step: on the clock that of the first process, CPU of all together."""
        answers = self._all(command, runs)
        together = {"cpu_us": sum(answer["cpu_us"] for answer in answers)}
        return {kind: answers[0][kind] for kind in KINDS} | together

    def memory(self) -> dict[str, float]:
        """Megabytes of all processes together."""
        answers = self._all("memory", None)
        return {key: sum(answer[key] for answer in answers) for key in answers[0]}

    def drop(self) -> None:
        """Forgets the variant."""
        self._all("drop", None)

    def end(self) -> None:
        """Ends the processes."""
        for member in self._members:
            member.end()


@contextlib.contextmanager
def ending(group: list[PeerProcesses]) -> Iterator[list[PeerProcesses]]:
    """Ends all that are in the list when the block is left."""
    try:
        yield group
    finally:
        for peer in group:
            peer.end()
