"""The coordination service of the launcher: where it listens, and that nothing keeps it."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from replicax.backend.joining import COORDINATION_VARIABLE
from replicax.cluster.addresses import parse_address
from replicax.core.errors import ClusterError
from replicax.launch.service import CoordinationService
from replicax.launch.supervise import POLL_SECONDS
from tests.backend.fresh_process import ROOT
from tests.launch.programs import children, descriptors, is_running, wait_until

ADDRESSES = ["127.0.0.1:4001", "127.0.0.1:4002"]


def listening_at(port: int) -> list[str]:
    """The addresses at which something listens on `port`, as the kernel writes them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if address.endswith(f":{port:04X}") and state == "0A":
                found.append(address.partition(":")[0])
    return found


def test_it_listens_on_the_loopback_interface_only_and_is_gone_after_stop():
    before, open_before = children(), descriptors()
    service = CoordinationService()
    address = parse_address(service.start(ADDRESSES, attempt=1)[COORDINATION_VARIABLE])
    assert address.host == "127.0.0.1"
    (found,) = listening_at(address.port)
    assert found in ("0100007F", "0000000000000000FFFF00000100007F")
    service.stop()
    assert service.pid is None
    assert listening_at(address.port) == []
    assert children() <= before
    assert descriptors() == open_before


def test_a_worker_that_was_killed_or_that_waits_does_not_keep_it():
    service = CoordinationService()
    (address,) = service.start(ADDRESSES, attempt=1).values()
    # It waits for the second worker, which does not come.
    connect = (
        "from replicax.jax_internals import processes\nprint('here', flush=True)\n"
        f"processes.connect_to_coordination({address!r}, 2, 0, heartbeat_seconds=60, "
        "start_seconds=60)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", connect], env=environment, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout.readline() == b"here\n"
        worker.kill()
    service.stop()
    assert service.start(ADDRESSES, attempt=2)[COORDINATION_VARIABLE] != address
    os.kill(service.pid, signal.SIGSTOP)
    service.stop()
    assert service.pid is None


def trouble_within(service: CoordinationService, seconds: float) -> tuple[str, float]:
    """The first trouble of a service that is asked as the supervisor asks, and when it came."""
    since = time.monotonic()
    while not (trouble := service.trouble()) and time.monotonic() - since < seconds:
        time.sleep(POLL_SECONDS)
    return trouble, time.monotonic() - since


@pytest.mark.slow
def test_one_that_is_stopped_is_named_in_time_and_one_that_goes_on_in_time_is_not():
    service = CoordinationService()
    (address,) = service.start(ADDRESSES, attempt=1).values()
    try:
        os.kill(service.pid, signal.SIGSTOP)
        assert trouble_within(service, 4.0)[0] == ""
        os.kill(service.pid, signal.SIGCONT)
        assert trouble_within(service, 5.0)[0] == ""
        os.kill(service.pid, signal.SIGSTOP)
        trouble, seconds = trouble_within(service, 20.0)
        assert trouble.startswith(
            f"the coordination service at {address} (process {service.pid}) does not answer for 7 s"
        )
        assert seconds < 10.0
        time.sleep(1.5)  # nobody listens, as if this process had been stopped as well
        assert service.trouble() == ""
    finally:
        service.stop()
    assert service.trouble() == ""


@pytest.mark.slow
def test_no_message_stops_it():
    rng = random.Random(9)
    service = CoordinationService()
    (text,) = service.start(ADDRESSES, attempt=1).values()
    address = parse_address(text)
    try:
        for number in range(10_000):
            greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b""
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection((address.host, address.port), 10) as peer,
            ):
                peer.sendall(greeting + rng.randbytes(rng.randrange(300)))
        assert service.trouble() == ""
        join = (
            "from replicax.jax_internals import processes\n"
            f"processes.connect_to_coordination({text!r}, 2, RANK, heartbeat_seconds=60, "
            "start_seconds=60)\nimport os\nos._exit(7)"
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        commands = [[sys.executable, "-c", join.replace("RANK", str(rank))] for rank in (0, 1)]
        workers = [subprocess.Popen(command, env=environment) for command in commands]
        assert [worker.wait(60) for worker in workers] == [7, 7]
    finally:
        service.stop()


def test_one_that_is_killed_is_named_at_once():
    service = CoordinationService()
    service.start(ADDRESSES, attempt=1)
    pid = service.pid
    os.kill(pid, signal.SIGKILL)
    trouble, seconds = trouble_within(service, 10.0)
    service.stop()
    assert f"(process {pid}) has ended: killed by SIGKILL." in trouble
    assert seconds < 1.0


def test_it_does_not_outlive_a_launcher_that_is_killed():
    source = (
        "import os, signal\n"
        "from replicax.launch.service import CoordinationService\n"
        "service = CoordinationService()\n"
        f"service.start({ADDRESSES!r}, attempt=1)\n"
        "print(service.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    launcher = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert launcher.returncode == -signal.SIGKILL
    assert wait_until(lambda: not is_running(int(launcher.stdout)))


def test_one_that_does_not_start_is_an_error_with_its_reason():
    service = CoordinationService()
    try:
        with pytest.raises(ClusterError, match=r"no interface '192\.0\.2\.1'"):
            service.start(["192.0.2.1:4001", "192.0.2.1:4002"], attempt=1)
    finally:
        service.stop()


def test_one_worker_needs_none():
    service = CoordinationService()
    assert service.start(["127.0.0.1:4001"], attempt=1) == {}
    assert service.pid is None
    service.stop()
