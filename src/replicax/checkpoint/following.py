"""Follows the checkpoints that somebody else saves: what an evaluator needs.

Looks at the list of a folder, and knows nothing of variables. The one that saves and the one that
follows share a folder and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from replicax.checkpoint.latest import Listing

_LOOK_SECONDS = 1.0


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """The latest checkpoint of a folder, and again whenever a newer one is there.

    One that is saved while you look at another is not given if a newer one follows: it is always
    the latest. Restore it before the manager of the program that saves deletes it: with
    ``max_to_keep=2`` or more there is time until the next but one.

    Args:
        checkpoint_dir: The folder; it need not be there yet.
        min_interval_secs: How many seconds to let pass at least from one checkpoint to the next.
        timeout: How many seconds to wait for a new checkpoint; None for as long as it takes.
        timeout_fn: Called when that time is over. If it returns true the iterator ends, otherwise
            it waits once more. Without it the iterator ends.

    Returns:
        An iterator over paths, for ``Checkpoint.restore``.

    Raises:
        ValueError: If a number of seconds is negative.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> saved = rx.Checkpoint(epoch=1).save(f"{folder}/ckpt")
        >>> for path in rx.checkpoints_iterator(folder, timeout=0):
        ...     print(path == saved)
        True
    """
    for name, seconds in (("min_interval_secs", min_interval_secs), ("timeout", timeout or 0)):
        if seconds < 0:
            raise ValueError(f"{name} is {seconds!r}; expected a number of seconds, at least 0.")
    return _followed(Path(checkpoint_dir).absolute(), min_interval_secs, timeout, timeout_fn)


def _followed(
    folder: Path, interval: float, timeout: float | None, timeout_fn: Callable[[], bool] | None
) -> Iterator[str]:
    known: tuple[str, float] | None = None
    while True:
        latest = _wait_for_other(folder, known, timeout)
        if latest is not None:
            known, given = latest, time.monotonic()
            yield latest[0]
            time.sleep(max(0.0, given + interval - time.monotonic()))
        elif timeout_fn is None or timeout_fn():
            return


def _wait_for_other(
    folder: Path, known: tuple[str, float] | None, timeout: float | None
) -> tuple[str, float] | None:
    """The latest checkpoint, with when it was saved; None if it stays the one that is known."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        listing = Listing(folder)
        paths = listing.paths()
        latest = (str(paths[-1]), listing.times[paths[-1].name]) if paths else None
        if latest is not None and latest != known:
            return latest
        left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
        if left <= 0:
            return None
        time.sleep(left)
