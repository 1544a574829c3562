"""``replicax simulate``: what a script's step would take on machines that are not here."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click
from rich.console import Console

import replicax as rx
from replicax.core.errors import ReplicaxError
from replicax.costs.machines import MACHINES, ClusterTopology, Machine, Stage, machine_of
from replicax.costs.simulate import HOSTS, Batch, Simulation

FUNCTION = "step_to_simulate"
"""What the script calls the function that gives its step."""

_EXAMPLE = f"""
    def {FUNCTION}(strategy):
        with strategy.scope():
            ...  # variables and optimizer
        return train_step, (strategy.distribute_batch(first_batch),)"""


class _Hosts(click.ParamType[tuple[int, ...]]):
    """Numbers of hosts, with commas between them."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and int(part) for part in parts):
            self.fail(f"{value!r} is no list of numbers. Write them as 1,8,64,1024.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command(
    epilog=f"Machines: {', '.join(MACHINES)}. Another one is a file that Machine.save wrote, such "
    "as what replicax.calibrate() measured."
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--hosts",
    type=_Hosts(),
    default=HOSTS,
    show_default=",".join(map(str, HOSTS)),
    help="How many hosts there would be, as 1,8,64,1024.",
)
@click.option(
    "--machine",
    default="dgx-h100",
    show_default=True,
    help="The type of the hosts: a name, or a JSON file.",
)
@click.option(
    "--stage",
    type=click.IntRange(0, 3),
    default=0,
    show_default=True,
    help="What is split over the replicas: the stage of Sharding, 0 for nothing.",
)
@click.option(
    "--logical-devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many devices each replica spans.",
)
@click.option(
    "--batch",
    type=click.Choice(["per_replica", "global"]),
    default="per_replica",
    show_default=True,
    help="Which batch stays as the script has it.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="Virtual devices here that the step is traced for, one replica on each; stages 2 and 3 "
    "are the more exact the more there are.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Save it as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def simulate(
    script: Path,
    hosts: tuple[int, ...],
    machine: str,
    stage: int,
    logical_devices: int,
    batch: str,
    replicas: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show what the step of SCRIPT would take on machines that are not here.

    SCRIPT is a Python file with a function step_to_simulate(strategy). The function creates the
    variables in the scope of the strategy, and returns the step and the tuple of its arguments, as
    for strategy.run(step, args). Code under 'if __name__ == "__main__":' does not run, and the step
    itself does not either.
    """
    try:
        topology = ClusterTopology(
            hosts[0], _machine(machine), logical_devices=logical_devices, stage=cast(Stage, stage)
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--logical-devices") from error
    try:
        rx.set_virtual_devices(replicas * logical_devices)
        found = simulation_of(script, topology, hosts=hosts, batch=cast(Batch, batch))
    except ReplicaxError as error:
        raise click.ClickException(str(error)) from error
    if plot is not None:
        plot.write_text(found.svg(), encoding="utf-8")
    if as_json:
        click.echo(found.to_json())
    else:
        found.show(Console(highlight=False))


def _machine(name: str) -> Machine:
    try:
        return Machine.load(name) if name.endswith(".json") else machine_of(name)
    except OSError as error:
        raise click.BadParameter(f"cannot read {name}: {error}.", param_hint="--machine") from error
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--machine") from error


def simulation_of(
    script: Path,
    topology: ClusterTopology,
    *,
    hosts: Sequence[int],
    batch: Batch,
    devices: Sequence[str] | None = None,
) -> Simulation:
    """What the step of a script would take, made under a strategy with the layout of `topology`.

    Args:
        script: A Python file with the function `FUNCTION`.
        topology: The machines.
        hosts: For which numbers of hosts.
        batch: What stays the same.
        devices: Where the step is traced for; all devices if None.
    """
    function = _function_of(script)
    sharding = rx.experimental.Sharding(stage=topology.stage) if topology.stage else None
    strategy = rx.MirroredStrategy(
        devices, logical_devices=topology.logical_devices, sharding=sharding
    )
    step, args = _step_of(function, strategy, script)
    return rx.simulate(step, *args, topology=topology, strategy=strategy, hosts=hosts, batch=batch)


def _function_of(script: Path) -> Callable[[rx.Strategy], Any]:
    """The function of the script; runs the script, as an import would."""
    sys.path.insert(0, str(script.absolute().parent))
    found: Mapping[str, Any] = runpy.run_path(str(script), run_name=script.stem)
    function = found.get(FUNCTION)
    if not callable(function):
        raise click.ClickException(
            f"{script} has no function {FUNCTION}(strategy), so it is not known which step to "
            f"simulate. Add one:\n{_EXAMPLE}"
        )
    return function


def _step_of(
    function: Callable[[rx.Strategy], Any], strategy: rx.Strategy, script: Path
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    returned = function(strategy)
    match returned:
        case (step, tuple() as args) if callable(step):
            return step, args
    raise click.ClickException(
        f"{FUNCTION} of {script} returned {returned!r}; expected a step and a tuple of its "
        f"arguments:\n{_EXAMPLE}"
    )
