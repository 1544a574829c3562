"""Where the processes of a job listen: on one machine, at the loopback interface only.

Each test has a machine of its own, a network namespace with a LAN address, and is run with each
meaning that the name of a machine may have: its LAN address, 127.0.1.1 as on Debian, or none.
"""

import contextlib
import ipaddress
import json
import pathlib
import sys
import time

import pytest

from replicax.cluster.addresses import free_ports
from tests.multiprocess import namespaces
from tests.multiprocess.clusters import environment
from tests.multiprocess.programs import TRAIN, WAIT_SECONDS, Worker, program

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NAMES = {"LAN": f"{namespaces.LAN}.1", "Debian": "127.0.1.1", "unknown": None}
LAUNCH = ["-c", "from replicax.cli.main import main; main()", "launch"]
FAIL_FIRST = f"""
import os
if os.environ["REPLICAX_ATTEMPT"] == "1":
    FAULT = os.environ["FAULT"] = '[1, 3, "SIGKILL"]'
{TRAIN}
"""


def by_launcher(folder: pathlib.Path) -> list[tuple[list[str], dict[str, str]]]:
    return [([*LAUNCH, "--workers", "2", "--show", "all", str(program(folder))], {})]


def again_by_launcher(folder: pathlib.Path) -> list[tuple[list[str], dict[str, str]]]:
    path = str(program(folder, FAIL_FIRST))
    arguments = ["--workers", "2", "--max-restarts", "1", "--backoff", "0", "--show", "all", path]
    return [([*LAUNCH, *arguments], {})]


def by_hand(folder: pathlib.Path) -> list[tuple[list[str], dict[str, str]]]:
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    configs = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)]
    path = str(program(folder))
    return [([path], {"TF_CONFIG": json.dumps(config)}) for config in configs]


MPI_TRAIN = TRAIN.replace('json.loads(os.environ["TF_CONFIG"])["task"]["index"]', "-1")


def by_mpi(folder: pathlib.Path) -> list[tuple[list[str], dict[str, str]]]:
    path = str(program(folder, MPI_TRAIN))
    ranks = [{"PMI_RANK": str(i), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"} for i in range(2)]
    return [([path], rank) for rank in ranks]


CASES = [(launch, name) for launch in (by_launcher, by_hand, by_mpi) for name in NAMES]


def num_of_lines(worker: Worker, text: str) -> int:
    return sum(text in line for line in list(worker.lines))


@pytest.mark.parametrize(("launch", "own_name"), [*CASES, (again_by_launcher, "LAN")])
def test_every_listener_of_a_job_on_one_machine_is_loopback(
    tmp_path: pathlib.Path, launch, own_name: str
):
    commands = launch(tmp_path)
    num_starts = 2 if launch is again_by_launcher else 1
    with contextlib.ExitStack() as stack:
        (name,) = stack.enter_context(namespaces.made(1))
        inside = namespaces.inside(name, namespaces.hosts_file(tmp_path, NAMES[own_name]))
        processes = []
        for command, variables in commands:
            variables = environment(1, TIMEOUT="10", **variables)
            processes.append(Worker([*inside, sys.executable, *command], variables))
            stack.callback(processes[-1].kill)
        seen: set[str] = set()
        most = 0
        end = time.monotonic() + WAIT_SECONDS
        while sum(num_of_lines(each, "stepping") for each in processes) < 2 * num_starts:
            assert time.monotonic() < end, "\n".join(each.text for each in processes)
            found = namespaces.listeners(name)
            seen |= found.keys()
            most = max(most, sum(found.values()))
            time.sleep(0.02)
    assert most >= 3  # the coordination service, and gloo in each worker
    assert [ip for ip in seen if not ipaddress.ip_address(ip).is_loopback] == []
