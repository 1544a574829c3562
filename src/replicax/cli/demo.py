"""``replicax demo``: the same training on many virtual devices and on one, compared.

The command, what it prints and what it draws; the model and its training are in
`cli.digits`.
"""

import pathlib
from collections.abc import Mapping, Sequence

import click
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import replicax as rx
from replicax.cli import digits
from replicax.cli.digits import Examples, TrainingResult

TOLERANCE = 1e-4
"""The largest difference of a parameter that summing in another order may explain."""

_MANY_COLOR, _ONE_COLOR, _TEXT_COLOR = "#1f6feb", "#f0883e", "#24292f"


@click.command()
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Virtual devices to divide this machine's CPU into, one replica on each.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How often to go through the training images.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=pathlib.Path),
    default=pathlib.Path("replicax-demo.png"),
    show_default=True,
    help="Where to save the plot of both loss curves, as PNG.",
)
@click.pass_context
def demo(ctx: click.Context, replicas: int, epochs: int, output: pathlib.Path) -> None:
    """Train a small convolutional net on many virtual devices, then on one.

    The data are the 1,797 handwritten digits that come with scikit-learn. Both
    runs must end with the same parameters: the largest difference is printed,
    and the exit code is 1 if it is above 1e-4.

    No accelerator is needed or used.
    """
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(
            f"the folder {output.absolute().parent} does not exist.", param_hint="--output"
        )
    rx.set_virtual_devices(replicas)
    console = Console()
    many, one = rx.MirroredStrategy(), rx.OneDeviceStrategy("CPU:0")
    train_set, test_set = digits.load_examples()
    console.print(f"{many.describe()}\n", highlight=False)
    labels = [f"{replicas} replica{'s' if replicas > 1 else ''}", "one device"]
    runs = dict(zip(labels, (many, one), strict=True))
    results = _train_under(runs, train_set, test_set, epochs=epochs, console=console)

    console.print(_table(labels, results))
    difference = digits.largest_difference(*results)
    agree = is_same_training(difference)
    verdict = "[green]the same training" if agree else "[red]not the same training"
    console.print(
        f"Largest parameter difference: {difference:.1e} (limit {TOLERANCE:.0e}), {verdict}",
        highlight=False,
    )
    save_loss_curves(output, labels, results)
    console.print(f"Loss curves: {output}", highlight=False, soft_wrap=True)
    if not agree:
        ctx.exit(1)


def is_same_training(difference: float) -> bool:
    """Whether two runs that differ by `difference` at most did the same; NaN never is.

    Example:
        >>> is_same_training(3e-7), is_same_training(2e-4), is_same_training(float("nan"))
        (True, False, False)
    """
    return difference <= TOLERANCE


def _train_under(
    strategies: Mapping[str, rx.Strategy],
    train_set: Examples,
    test_set: Examples,
    *,
    epochs: int,
    console: Console,
) -> list[TrainingResult]:
    num_steps = epochs * -(-len(train_set) // digits.BATCH_SIZE)
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    results = []
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(label, start=False, total=num_steps) for label in strategies]
        for strategy, task in zip(strategies.values(), tasks, strict=True):
            progress.start_task(task)
            result = digits.train(
                strategy,
                train_set,
                test_set,
                epochs=epochs,
                on_step=lambda task=task: progress.advance(task),
            )
            results.append(result)
    return results


def _table(labels: Sequence[str], results: Sequence[TrainingResult]) -> Table:
    table = Table("")
    for heading in ("test accuracy", "last loss", "images per second"):
        table.add_column(heading, justify="right")
    for label, result in zip(labels, results, strict=True):
        table.add_row(
            label,
            f"{result.accuracy:.1%}",
            f"{result.losses[-1]:.4f}",
            f"{result.images_per_second:,.0f}",
        )
    return table


def save_loss_curves(
    path: pathlib.Path, labels: Sequence[str], results: Sequence[TrainingResult]
) -> None:
    """Draws the loss of each step of two runs, the second one over the first.

    Args:
        path: The PNG file to write.
        labels: What to call the runs.
        results: The runs: first the one on many devices, then the one on one.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    many, one = results
    steps = range(1, len(many.losses) + 1)
    axes.plot(steps, many.losses, color=_MANY_COLOR, linewidth=5, alpha=0.35, label=labels[0])
    axes.plot(steps, one.losses, color=_ONE_COLOR, linewidth=1.2, label=labels[1])
    axes.set_yscale("log")
    axes.set_xlabel("step", color=_TEXT_COLOR)
    axes.set_ylabel("mean loss of the batch", color=_TEXT_COLOR)
    axes.set_title(
        f"The same training on {labels[0]} and on {labels[1]}",
        loc="left",
        color=_TEXT_COLOR,
        fontweight="bold",
    )
    axes.grid(which="major", color="#d0d7de", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_TEXT_COLOR, which="both")
    axes.legend(frameon=False, labelcolor=_TEXT_COLOR)
    figure.savefig(path, dpi=150, format="png")
