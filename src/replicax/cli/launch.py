"""``replicax launch``: options, and what the terminal shows; the work is in `replicax.launch`."""

import math
import os
import pathlib
import sys

import click

from replicax.cli.duration import Duration
from replicax.cluster import addresses
from replicax.core.errors import ClusterError, ClusterPlatformError
from replicax.launch import exit_codes
from replicax.launch.interruption import Interruption
from replicax.launch.outcome import Ending
from replicax.launch.plan import Job
from replicax.launch.ray_place import RayPlace
from replicax.launch.restart import Decision, RestartLimits
from replicax.launch.run import LastLines, Observer, Run
from replicax.launch.service import CoordinationService
from replicax.launch.summary import SHOWN_LINES, cause
from replicax.ray_cluster.session import LOCAL

_CHIEF = 0
_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green")

_EPILOG = """\b
Examples:
  replicax launch --workers 4 train.py
  replicax launch --workers 2 --max-restarts 3 --log-dir logs train.py -- --epochs 5
  replicax launch --ray 10.0.0.1:6379 --workers 8 --resources CPU=4 train.py

\b
Exit code: that of the worker that failed first (128 + n for signal n), 0 if all
workers ended with 0, 75 after a preemption that was not followed by a restart,
130 after Ctrl-C, 143 after SIGTERM.
"""


@click.command(
    context_settings={"allow_interspersed_args": False, "show_default": True}, epilog=_EPILOG
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    required=True,
    help="How many workers to start.",
)
@click.option(
    "--devices-per-worker",
    type=click.IntRange(min=1),
    help="Give each worker this many virtual CPU devices. [default: the devices that JAX finds]",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    help="How often to start all workers again after one has failed.",
)
@click.option(
    "--max-preemptions",
    type=click.IntRange(min=0),
    default=100,
    help="How often to start them again after they left with exit code 75.",
)
@click.option(
    "--backoff",
    type=Duration(),
    default=1.0,
    help="Seconds before the first restart; doubles with each failure, up to 60.",
)
@click.option(
    "--grace",
    type=Duration(),
    default=20.0,
    help="Seconds that workers may take to save and leave after SIGTERM or a preemption.",
)
@click.option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="Append the output of each worker to a file worker-N.log in this folder.",
)
@click.option(
    "--show",
    type=click.Choice(["chief", "all"]),
    default="chief",
    help="Whose output to show while all is well. After a failure, the end of everyone's.",
)
@click.option("-m", "--module", is_flag=True, help="SCRIPT is the name of a module, as python -m.")
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value=LOCAL,
    help="Start the workers by Ray: on the cluster at host:port, on the one that runs on this "
    "machine (auto), or on one of this machine that ends with the job (local, or no ADDRESS).",
)
@click.option(
    "--resources",
    metavar="NAME=NUMBER,...",
    callback=lambda ctx, option, text: _resources(text),
    help="What Ray keeps for each worker, such as CPU=4,GPU=1.  [default: CPU=1]",
)
@click.option(
    "--start-timeout",
    type=Duration(),
    default=300.0,
    help="Seconds to wait until Ray has room for all workers.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(
    ctx: click.Context,
    workers: int,
    devices_per_worker: int | None,
    max_restarts: int,
    max_preemptions: int,
    backoff: float,
    grace: float,
    log_dir: pathlib.Path | None,
    show: str,
    module: bool,
    ray: str | None,
    resources: dict[str, float],
    start_timeout: float,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Start several workers that run SCRIPT, and watch them.

    Each worker gets a TF_CONFIG that lists all workers and says which one it is,
    and REPLICAX_ATTEMPT, which is 1 in the first start. When one worker fails,
    the others are stopped, and with --max-restarts all are started again on new
    ports: SCRIPT goes on from its last checkpoint.

    With --ray the workers run where Ray has room, on one machine or several; SCRIPT
    must be at the same place on each. Without it, on this machine.
    """
    if not hasattr(os, "waitid"):
        raise click.ClickException("'replicax launch' needs Linux, or macOS and Python 3.13.")
    if log_dir is not None:
        _make_folder(log_dir)
    job = Job(
        command=_command(script, arguments, module=module),
        num_workers=workers,
        devices_per_worker=devices_per_worker,
        log_dir=log_dir,
        grace_seconds=grace,
    )
    interruption = Interruption()
    with interruption.installed():
        try:
            place = None
            if ray is not None:
                place = RayPlace(
                    _address_of_ray(ray),
                    num_workers=workers,
                    resources=resources,
                    interruption=interruption,
                    start_seconds=start_timeout,
                )
            elif resources:
                raise click.UsageError("--resources are what Ray keeps for a worker. Add --ray.")
            summary = Run(
                job,
                place=place,
                limits=RestartLimits(max_restarts, max_preemptions, backoff_seconds=backoff),
                interruption=interruption,
                coordination=CoordinationService(None if place is None else place.host),
                observer=_observer(show),
            ).execute()
        except (ClusterPlatformError, ImportError) as error:
            if interruption.first is not None:
                ctx.exit(exit_codes.for_shell(-interruption.first))
            raise click.ClickException(str(error)) from error
    if summary.code or len(summary.outcomes) > 1:
        _say(summary.text(), "red" if summary.code else "green")
    ctx.exit(summary.code)


def _address_of_ray(text: str) -> str:
    if text in (LOCAL, "auto"):
        return text
    try:
        return str(addresses.parse_address(text))
    except ClusterError as error:
        raise click.BadParameter(
            f"{text!r} is no address of a cluster. Write host:port, auto, or local; --ray without "
            "an address stands before another option.",
            param_hint="--ray",
        ) from error


def _resources(text: str | None) -> dict[str, float]:
    found = {}
    for part in [] if text is None else text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = amount = float(number)
        except ValueError:
            amount = 0.0
        if not name.strip() or not 0 < amount < math.inf:
            raise click.BadParameter(
                f"{part!r} is no amount of a resource. Write NAME=NUMBER, such as CPU=4,GPU=1.",
                param_hint="--resources",
            )
    return found


def _command(script: str, arguments: tuple[str, ...], *, module: bool) -> tuple[str, ...]:
    if arguments[:1] == ("--",):
        arguments = arguments[1:]
    if module:
        return (sys.executable, "-m", script, *arguments)
    if not pathlib.Path(script).is_file():
        raise click.BadParameter(
            f"there is no file {script!r}. Use -m for a module.", param_hint="SCRIPT"
        )
    return (sys.executable, script, *arguments)


def _make_folder(path: pathlib.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(
            f"the folder {path} cannot be made: {error.strerror}.", param_hint="--log-dir"
        ) from error


# -- what is shown -----------------------------------------------------------------------------


def _observer(show: str) -> Observer:
    def is_shown(worker_id: int) -> bool:
        return show == "all" or worker_id == _CHIEF

    def on_line(worker_id: int, line: str) -> None:
        if is_shown(worker_id):
            _print_line(worker_id, line)

    def on_end(attempt: int, decision: Decision, last_lines: LastLines) -> None:
        if decision.outcome.ending is Ending.FAILED:
            for worker_id, lines in last_lines.items():
                if not is_shown(worker_id):
                    for line in lines[-SHOWN_LINES:]:
                        _print_line(worker_id, line)
        if decision.restart:
            _say(
                f"Attempt {attempt} ended ({cause(decision.outcome)}). Starting all workers again "
                f"in {decision.pause:g} s.",
                "yellow",
            )

    return Observer(on_line=on_line, on_end=on_end)


def _print_line(worker_id: int, line: str) -> None:
    prefix = click.style(f"[worker {worker_id}]", fg=_COLORS[worker_id % len(_COLORS)])
    try:
        click.echo(f"{prefix} {line}")
    except UnicodeEncodeError:  # a terminal that knows fewer letters than the worker
        click.echo(f"{prefix} {line.encode('ascii', 'backslashreplace').decode()}")


def _say(text: str, color: str) -> None:
    """A message of the launcher itself, apart from the output of the workers."""
    first, newline, rest = text.partition("\n")
    click.echo(f"{click.style(first, fg=color)}{newline}{rest}", err=True)
