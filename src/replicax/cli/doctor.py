"""``replicax doctor``: what this process would run on, and whether its cluster can be reached."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from replicax.backend import devices
from replicax.cli.duration import Duration
from replicax.cluster import detection, roles, tf_config
from replicax.cluster.resolver import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.jax_internals import executables
from replicax.launch.plan import ATTEMPT_VARIABLE
from replicax.launch.reachability import AddressReport, check_addresses

REQUIRED = ("replicax", "jax", "jaxlib", "numpy", "optax")
EXTRAS = {
    "grain": "data",
    "orbax-checkpoint": "checkpoint",
    "tensorboardX": "tensorboard",
    **{name: name for name in ("flax", "keras", "ray")},
}
OPTIONAL = (*EXTRAS, "datasets", "tensorflow", "torch")
VARIABLES = (
    *("TF_CONFIG", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "NPROC"),
    ATTEMPT_VARIABLE,
)


@dataclasses.dataclass(slots=True)
class Diagnosis:
    """Everything that was found out.

    Attributes:
        versions: Of Python and each library; None for one that is not installed.
        environment: The variables that matter and are set.
        host: The name of this machine.
        devices: The name of each device.
        launches: How steps are launched: directly, or through ``jit`` and why.
        source: Where the description of the cluster comes from.
        cluster: The cluster as it was read; None if it could not be.
        task: Type and id of this task.
        addresses: What was found out about each address.
        problems: What is wrong, apart from addresses.

    Example:
        >>> Diagnosis(problems=["no devices"]).is_good
        False
    """

    versions: dict[str, str | None] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    host: str = ""
    devices: list[str] = dataclasses.field(default_factory=list)
    launches: str = ""
    source: str = ""
    cluster: dict[str, Any] | None = None
    task: tuple[str | None, int | None] = (None, None)
    addresses: list[AddressReport] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and all(report.is_good for report in self.addresses)

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can carry."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        reports = [report.to_json() for report in self.addresses]
        task = {"type": self.task[0], "index": self.task[1]}
        return {"ok": self.is_good, **fields, "addresses": reports, "task": task}


@click.command()
@click.option(
    "--cluster", is_flag=True, help="Also find the platform, and try to reach every address."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option(
    "--timeout",
    type=Duration(min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds that one address may take.",
)
@click.pass_context
def doctor(ctx: click.Context, cluster: bool, as_json: bool, timeout: float) -> None:
    """Show versions, devices and the cluster, and look for what would fail.

    Without --cluster, TF_CONFIG is read and its host names are resolved. With it,
    the cluster may also come from Slurm, MPI, Kubernetes, SageMaker or a TPU, this
    task's port is tried, and every other address is connected to.

    The exit code is 1 if something is wrong.
    """
    diagnosis = diagnose(cluster=cluster, seconds=timeout)
    if as_json:
        click.echo(json.dumps(diagnosis.to_json(), indent=2))
    else:
        _print(diagnosis, Console(highlight=False))
    if not diagnosis.is_good:
        ctx.exit(1)


def diagnose(*, cluster: bool, seconds: float) -> Diagnosis:
    """Finds everything out; starts JAX.

    Args:
        cluster: Whether to detect the platform and connect to the addresses.
        seconds: The longest time for one address.
    """
    found = Diagnosis(
        versions={"python": platform.python_version()}
        | {name: _version(name) for name in (*REQUIRED, *OPTIONAL)},
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        host=socket.gethostname(),
    )
    _find_devices(found)
    _find_cluster(found, cluster=cluster, seconds=seconds)
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_devices(found: Diagnosis) -> None:
    try:
        found.devices = [
            f"{devices.device_name(device)} ({device.device_kind})"
            for device in devices.local_devices()
        ]
    except RuntimeError as error:
        found.problems.append(f"JAX does not start: {error}")
        return
    reason = executables.missing()
    found.launches = "direct" if reason is None else f"through jit, somewhat slower: {reason}"


def _find_cluster(found: Diagnosis, *, cluster: bool, seconds: float) -> None:
    try:
        found.source, resolver = _resolver(cluster)
        spec = resolver.cluster_spec()
        found.cluster = spec.as_dict()
        found.task = resolver.task_type, resolver.task_id
    except (ClusterError, ClusterPlatformError) as error:
        found.problems.append(str(error))
        return
    found.addresses = check_addresses(_tasks(spec), found.task, connect=cluster, seconds=seconds)


def _resolver(cluster: bool) -> tuple[str, ClusterResolver]:
    if cluster:
        for row in detection.PLATFORMS:
            if row.is_present():
                return row.name, row.resolver()
    return tf_config.VARIABLE, tf_config.TFConfigClusterResolver()


def _tasks(spec: ClusterSpec) -> list[roles.Task]:
    return [task for job in spec.jobs for task in roles.tasks_of(spec, job)]


# -- what is shown -----------------------------------------------------------------------------


def _print(found: Diagnosis, console: Console) -> None:
    facts = Table.grid(padding=(0, 2))
    present = {name: v for name, v in found.versions.items() if v is not None}
    facts.add_row("versions", ", ".join(f"{name} {v}" for name, v in present.items()))
    absent = [name for name, version in found.versions.items() if version is None]
    facts.add_row("not installed", ", ".join(absent) or "-")
    if extras := [EXTRAS[name] for name in absent if name in EXTRAS]:
        facts.add_row("", f"pip install 'replicax[{','.join(extras)}]' adds what Replicax can use")
    facts.add_row("host", found.host)
    facts.add_row("devices", "\n".join(found.devices) or "-")
    facts.add_row("launches", found.launches or "-")
    for name, value in found.environment.items():
        facts.add_row(name, value)
    facts.add_row("cluster", _described(found))
    console.print(facts, markup=False)
    if found.addresses:
        console.print(_address_table(found.addresses))
    wrong = [*found.problems, *(f"{r.task}: {r.problem}" for r in found.addresses if r.problem)]
    for problem in wrong:
        console.print("problem:", style="red", end=" ")
        console.print(problem, markup=False, soft_wrap=True)
    if not wrong:
        console.print("Nothing is wrong.", style="green")


def _described(found: Diagnosis) -> str:
    if found.cluster is None:
        return f"could not be read from {found.source or tf_config.VARIABLE}"
    if not found.cluster:
        return "none: this is a single process"
    jobs = ", ".join(f"{len(tasks)} x {job}" for job, tasks in found.cluster.items())
    return f"{jobs} (from {found.source}); this is {found.task[0]} {found.task[1]}"


def _address_table(reports: list[AddressReport]) -> Table:
    table = Table("task", "address", "resolves to", "state")
    for report in reports:
        state = "[red]see below" if report.problem else report.state or "not tried"
        table.add_row(report.task, report.address, ", ".join(report.resolved), state)
    return table
