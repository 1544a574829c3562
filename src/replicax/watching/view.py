"""The figures of a watched loop on one screen of a terminal, drawn again and again."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from replicax.watching.report import WatchReport, memory_text, programs_text, slow_texts

_BAR = 40
_COLOURS = {
    "input": "yellow",
    "dispatch": "magenta",
    "devices": "green",
    "workers": "red",
    "loop": "blue",
}


class LiveView:
    """The last lines of the terminal; what the program prints meanwhile appears above them."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def draw(self, recent: WatchReport, whole: WatchReport) -> None:
        """Shows the figures.

        Args:
            recent: Of the last seconds.
            whole: Of all the time.
        """
        self._live.update(picture(recent, whole), refresh=True)


def picture(recent: WatchReport, whole: WatchReport) -> Text:
    """What is on the screen: rates and shares of the last seconds, beside those of all the time."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(whole.strategy, "bold")
    text.append(f"   {_clock(whole.seconds)}\n")
    text.append(f"{'':10}{'now':>12}{'overall':>14}{'total':>14}\n", "dim")
    text.append(_row("steps/s", recent.steps_per_second, whole.steps_per_second, whole.steps))
    if whole.examples is not None:
        now, rate = recent.examples_per_second or 0.0, whole.examples_per_second or 0.0
        text.append(_row("examples/s", now, rate, whole.examples))
    text.append("\n")
    for name, share in recent.shares.items():
        text.append(f"{name:10}{share:>6.0%}  ")
        text.append("█" * round(_BAR * share), _COLOURS[name])
        text.append("\n")
    text.append(f"\nmemory    {memory_text(whole)}\n")
    compiling = f" in {whole.compiling_seconds:.1f} s" if whole.programs else ""
    text.append(f"programs  {programs_text(whole)}{compiling}")
    for line in slow_texts(recent) or slow_texts(whole):
        text.append(f"\n{line}", "bold red")
    return text


def _row(name: str, now: float, overall: float, total: int) -> str:
    return f"{name:10}{now:>12,.1f}{overall:>14,.1f}{total:>14,}\n"


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
