"""The command of the suite: ``python -m benchmarks``, in the root of a checkout.

Measures, or loads earlier results, and shows and draws them.
"""

import datetime
import importlib
import importlib.util
import itertools
import pathlib
import sys
from collections.abc import Sequence

import click
from rich.console import Console

from benchmarks import report, suite
from replicax.cli.duration import Duration

RESULTS = pathlib.Path(__file__).parent / "results"


@click.command()
@click.option("--only", metavar="W1,W2", help="Only these workloads.")
@click.option("--peers", metavar="NAME,NAME", help="Only these peers, and Replicax.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How often each measurement is repeated.",
)
@click.option(
    "--minutes",
    type=Duration(min_open=True),
    default=45.0,
    show_default=True,
    help="After this long, no other case is begun.",
)
@click.option(
    "--smoke", is_flag=True, help="A few short cases; exit code 1 if one takes twice the limit."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    help="The folder for the results; a new one, benchmarks/results/<date>, if not given.",
)
@click.option(
    "--show",
    type=click.Path(file_okay=False, exists=True, path_type=pathlib.Path),
    help="Measure nothing: show the results in this folder, and draw them again.",
)
@click.pass_context
def bench(
    ctx: click.Context,
    only: str | None,
    peers: str | None,
    rounds: int,
    minutes: float,
    smoke: bool,
    output: pathlib.Path | None,
    show: pathlib.Path | None,
) -> None:
    """Measure Replicax beside hand-written JAX and other libraries.

    Every peer runs in a process of its own, and all of them in alternating rounds.
    A peer whose library is not installed is skipped. The results are a folder:
    one JSON line per measurement, the machine, and two plots.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    if show is not None:
        results, folder = suite.load(show), show
    else:
        choice = suite.Choice(
            only=_chosen("--only", only, list(suite.WORKLOADS)),
            peers=_with_ours(_chosen("--peers", peers, list(suite.PEERS))),
            rounds=rounds,
            minutes=minutes,
            smoke=smoke,
        )
        date = datetime.date.today().isoformat()
        name = f"smoke-{date}" if smoke else date
        folder = output or _unused(RESULTS / name)
        results = suite.run(choice, folder, lambda line: _say(console, line))
    if not results.measurements:
        raise click.ClickException("nothing was measured: no chosen peer takes part in any case.")
    _show(console, results)
    if not smoke:
        _draw(console, folder, results)
    console.print(f"Results: {folder}", highlight=False, soft_wrap=True)
    losses = results.gross_losses() if smoke else []
    for loss in losses:
        console.print(f"[red]{loss}")
    if losses:
        ctx.exit(1)


def _unused(folder: pathlib.Path) -> pathlib.Path:
    """The folder, or the first of those with a number after its name that does not exist."""
    later = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], later) if not path.exists())


def _chosen(option: str, text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if text is None:
        return tuple(known)
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'} is not among {', '.join(known)}.",
            param_hint=option,
        )
    return names


def _with_ours(peers: tuple[str, ...]) -> tuple[str, ...]:
    return peers if "replicax" in peers else (*peers, "replicax")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, style="dim")


def _show(console: Console, results: suite.Results) -> None:
    verdicts = results.verdicts
    console.print(report.table_of(results.measurements))
    if verdicts:
        console.print(report.verdict_table(verdicts))
        missed = report.missed_cells(verdicts)
        console.print(f"Cells missed: {', '.join(missed) or 'none'}", highlight=False)


def _draw(console: Console, folder: pathlib.Path, results: suite.Results) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        console.print("No plots: install matplotlib.")
        return
    plots = importlib.import_module("benchmarks.plots")
    plots.save(folder, results.measurements)


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
