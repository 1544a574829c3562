"""The ``replicax`` command: the table of subcommands and the group that loads them.

A subcommand's module is imported when the subcommand is run, not before, so
``replicax --help`` does not pay for plotting or datasets. One new subcommand is
one file beside this one and one row in ``SUBCOMMANDS``. The console script is
the only caller.
"""

import dataclasses
import difflib
import importlib
from collections.abc import Mapping

import click

__all__ = ["main"]


@dataclasses.dataclass(frozen=True, slots=True)
class Subcommand:
    """Where a subcommand is, and what ``--help`` says of it before it is loaded.

    Attributes:
        target: ``"module:attribute"`` of the Click command.
        short_help: One line for the list of subcommands.
        extra: The optional dependencies of the package that it needs, or ``None``.

    Example:
        >>> Subcommand("replicax.cli.demo:demo", "Train a small model.").module
        'replicax.cli.demo'
    """

    target: str
    short_help: str
    extra: str | None = None

    @property
    def module(self) -> str:
        """The module that ``target`` names."""
        return self.target.partition(":")[0]

    @property
    def attribute(self) -> str:
        """The name of the command in that module."""
        return self.target.partition(":")[2]


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "demo": Subcommand(
        target="replicax.cli.demo:demo",
        short_help="Train a small model on virtual devices and show the result.",
        extra="demo",
    ),
    "doctor": Subcommand(
        target="replicax.cli.doctor:doctor",
        short_help="Show versions, devices and the cluster, and what would fail.",
    ),
    "launch": Subcommand(
        target="replicax.cli.launch:launch",
        short_help="Start several workers that run one program, and watch them.",
    ),
    "show": Subcommand(
        target="replicax.cli.show:show",
        short_help="Show what is in a saved model or a checkpoint.",
    ),
    "simulate": Subcommand(
        target="replicax.cli.simulate:simulate",
        short_help="Show what a script's step would take on machines that are not here.",
    ),
}


class LazyGroup(click.Group):
    """A Click group whose subcommands come from ``SUBCOMMANDS`` and load on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all subcommands, in the order of ``--help``."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the subcommand ``cmd_name``; ``None`` if the table does not have it."""
        row = SUBCOMMANDS.get(cmd_name)
        return None if row is None else _load(cmd_name, row)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the subcommand, or says which one comes nearest."""
        near = difflib.get_close_matches(args[0], SUBCOMMANDS, n=1)
        if args[0] not in SUBCOMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of subcommands from the table, without importing any."""
        rows = [(name, SUBCOMMANDS[name].short_help) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _load(name: str, row: Subcommand) -> click.Command:
    try:
        module = importlib.import_module(row.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if row.extra is None or missing.partition(".")[0] == "replicax":
            raise  # a mistake of ours, not a package that the user left out
        raise click.ClickException(
            f"'replicax {name}' needs the package {missing!r}, which is not installed. "
            f"Install it with: pip install 'replicax[{row.extra}]'"
        ) from error
    command = getattr(module, row.attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{row.target} is {command!r}, not a Click command. Correct SUBCOMMANDS.")
    return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'replicax COMMAND --help' shows the options of a command.",
)
@click.version_option(None, "-V", "--version", package_name="replicax")
def main() -> None:
    """Replicax: the tf.distribute programming model on JAX.

    Write one training step, and run it as one replica on each device. The
    commands here show that on the devices of this machine.
    """
