"""The doctor command: what it shows, what it calls wrong, and its exit code."""

import contextlib
import importlib.metadata
import json
import pathlib
import re
import socket
import tomllib
from collections.abc import Iterator

import jax
import pytest
from click.testing import CliRunner, Result

from replicax.cli.doctor import EXTRAS, doctor
from replicax.cluster.addresses import free_ports
from replicax.cluster.roles import Task
from replicax.launch.reachability import check_addresses

PYPROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port where connections are neither taken nor refused: its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as held:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(doctor, arguments, env={"COLUMNS": "200"})


def diagnosis(*arguments: str) -> dict:
    return json.loads(invoke("--json", *arguments).stdout)


def set_cluster(monkeypatch: pytest.MonkeyPatch, *addresses: str, index: int = 0) -> None:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_a_single_process_has_versions_devices_and_nothing_wrong():
    result = invoke()
    assert result.exit_code == 0
    assert f"jax {importlib.metadata.version('jax')}" in result.output
    assert f"replicax {importlib.metadata.version('replicax')}" in result.output
    assert "CPU:7 (cpu)" in result.output
    assert "none: this is a single process" in result.output
    assert "Nothing is wrong." in result.output


def test_the_extras_that_install_what_is_missing_are_named(monkeypatch: pytest.MonkeyPatch):
    def version(name: str) -> str:
        if name in ("orbax-checkpoint", "grain"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "pip install 'replicax[data,checkpoint]'" in invoke().output


def test_every_library_that_an_extra_installs_is_known():
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    helpers = {"flatbuffers", "google-crc32c", "pillow"}  # of no use alone
    installed = {
        re.split(r"[<>=\[]", requirement)[0]: extra
        for extra, requirements in extras.items()
        for requirement in requirements
        if extra not in ("demo", "all")
    }
    assert {k: v for k, v in installed.items() if k not in helpers} == EXTRAS


def test_json_has_everything():
    found = diagnosis()
    assert found["ok"] is True
    assert len(found["devices"]) == jax.local_device_count()
    assert found["versions"]["jaxlib"] == importlib.metadata.version("jaxlib")
    assert {"python", "numpy", "torch"} <= found["versions"].keys()
    assert (found["cluster"], found["task"]) == ({}, {"type": None, "index": None})
    assert (found["addresses"], found["problems"]) == ([], [])


def test_the_cluster_of_tf_config_is_shown_with_this_task(monkeypatch: pytest.MonkeyPatch):
    set_cluster(monkeypatch, "127.0.0.1:2222", "localhost:2223", index=1)
    result = invoke()
    assert result.exit_code == 0
    assert "2 x worker (from TF_CONFIG); this is worker 1" in result.output
    assert "not tried" in result.output


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{'cluster'}", "TF_CONFIG is not JSON"),
        ('{"cluster": {"worker": ["a:1"]}}', 'TF_CONFIG has no "task"'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 4}}',
            "TF_CONFIG has no worker 4",
        ),
    ],
)
def test_a_malformed_tf_config_is_explained_as_the_resolver_does(
    monkeypatch: pytest.MonkeyPatch, text: str, problem: str
):
    monkeypatch.setenv("TF_CONFIG", text)
    result = invoke()
    assert result.exit_code == 1
    assert f"problem: {problem}" in result.output
    found = diagnosis()
    assert found["ok"] is False
    assert found["cluster"] is None
    assert found["problems"][0].startswith(problem)


def test_addresses_are_tried_on_request(monkeypatch: pytest.MonkeyPatch):
    own, silent = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        set_cluster(monkeypatch, *(f"127.0.0.1:{p}" for p in (own, silent, port)))
        found = diagnosis("--cluster")
    assert found["ok"] is True
    states = [report["state"] for report in found["addresses"]]
    assert states == ["free for this task", "host answers, nothing listens yet", "listening"]


def test_a_port_of_this_task_that_is_in_use_is_said(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        set_cluster(monkeypatch, f"127.0.0.1:{listener.getsockname()[1]}")
        (report,) = diagnosis("--cluster")["addresses"]
    assert report["state"] == "in use: by this task, if it runs already"


def test_an_address_that_does_not_answer_in_time_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, deaf_port: int
):
    (own,) = free_ports(1)
    set_cluster(monkeypatch, f"127.0.0.1:{own}", f"127.0.0.1:{deaf_port}")
    result = invoke("--cluster", "--timeout", "0.3")
    assert result.exit_code == 1
    assert (
        f"problem: worker 1: 127.0.0.1:{deaf_port} cannot be reached within 0.3 s" in result.output
    )


def test_a_task_whose_address_is_another_machine_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    set_cluster(monkeypatch, "192.0.2.1:2222")
    (report,) = diagnosis("--cluster")["addresses"]
    assert "this task cannot listen at 192.0.2.1:2222" in report["problem"]


def test_a_task_at_every_interface_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    set_cluster(monkeypatch, "0.0.0.0:2222")
    (report,) = diagnosis("--cluster")["addresses"]
    assert "'0.0.0.0', means every interface of a machine" in report["problem"]


def test_a_host_that_is_loopback_among_several_is_a_problem_before_anything_is_tried(
    monkeypatch: pytest.MonkeyPatch,
):
    set_cluster(monkeypatch, "localhost:2222", "192.0.2.1:2222", index=1)
    found = diagnosis()
    assert found["ok"] is False
    problem = found["addresses"][0]["problem"]
    assert "'localhost' resolves to" in problem
    assert "which only this machine can reach, in a cluster of several hosts" in problem
    assert found["addresses"][1]["problem"] == ""


def test_a_host_name_that_does_not_resolve_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    set_cluster(monkeypatch, "no-such-host.invalid:2222")
    assert invoke().exit_code == 1
    (report,) = diagnosis()["addresses"]
    assert "'no-such-host.invalid' does not resolve on this machine" in report["problem"]


def test_an_address_that_is_none_is_a_problem_of_its_task():
    tasks = [Task("worker", 0, "host0"), Task("worker", 1, "127.0.0.1:2222")]
    first, second = check_addresses(tasks, ("worker", 1), connect=False, seconds=5.0)
    assert "the address 'host0' has no port" in first.problem
    assert second.is_good


def test_many_addresses_take_the_time_of_one(deaf_port: int):
    tasks = [Task("worker", i, f"127.0.0.1:{deaf_port}") for i in range(20)]
    reports = check_addresses(tasks, ("worker", 99), connect=True, seconds=0.5)
    assert len(reports) == 20
    assert all("cannot be reached within 0.5 s" in report.problem for report in reports)


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "1e+300"])
def test_a_time_that_nobody_can_wait_for_is_refused(value: str):
    result = invoke("--timeout", value)
    assert result.exit_code == 2
    assert f"Invalid value for '--timeout': {value}" in result.output.replace("0.0", "0")
