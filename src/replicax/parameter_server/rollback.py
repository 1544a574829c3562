"""Rolls all servers back together when one of them is lost, and lets what they forget run again.

The coordinator keeps a snapshot of all servers, and what has changed them since: first the changes
that the program has made itself, then closures, in the order in which they were committed. A change
by the program after closures begins with a new snapshot, so that this order is always the true one.

A lost server takes part of the state along. What is left on the others does not belong to anything
then, so all go back to the snapshot, in a new *epoch*: servers refuse every attempt that began
before. The changes of the program are made again, and the closures go back into the queue.

Commits share the servers with each other. A snapshot, a change by the program and a rollback have
them alone, so that no closure is on some of the servers only when they look.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from replicax.core import notices
from replicax.parameter_server.messages import Attempt, ServerSnapshot
from replicax.parameter_server.queue import ClosureQueue, ScheduledClosure
from replicax.parameter_server.statistics import Counting
from replicax.parameter_server.transport import FencedError, ServerGoneError

if TYPE_CHECKING:
    from replicax.parameter_server.cluster import ServerCluster

T = TypeVar("T")

Change = Callable[[int], None]
"""A change of servers by the program; it is given the epoch."""

_LOOK_AGAIN_SECONDS = 1.0


class Rollback:
    """The snapshot of one cluster of servers, and the way back to it.

    Args:
        cluster: The servers.
        queue: What is held while servers are rolled back, and gets the closures that run again.
        counting: Is told of them.
        every: A new snapshot is taken when so much has happened since the last one.

    Raises:
        ServerGoneError: If a server is lost already.
    """

    def __init__(
        self, cluster: ServerCluster, queue: ClosureQueue, counting: Counting, every: int
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._counting = counting
        self._every = every
        self._changed = threading.Condition()
        self._num_committing = 0
        self._num_wanting = 0  # who wants the servers alone
        self._is_alone = False
        self._news = 0  # of servers that are lost, there again, or rolled back
        self._losses = 0
        self._num_repaired = 0  # of the losses
        self._is_recovering = False
        self._empty: set[int] = set()  # servers that may not know the optimizers
        self._changes: list[Change] = []
        self._log: list[ScheduledClosure] = []
        self._snapshots = self._taken()

    # -- who has the servers -----------------------------------------------------------------

    @contextlib.contextmanager
    def committing(self, attempt: Attempt, closure: ScheduledClosure | None) -> Iterator[None]:
        """Lets a closure be committed; `closure` is noted when that is done on all servers.

        Raises:
            FencedError: The epoch of the attempt is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._num_wanting)
            if attempt.epoch != self._cluster.epoch:
                raise FencedError(f"epoch {attempt.epoch} is over: servers were rolled back.")
            self._num_committing += 1
        try:
            yield
            if closure is not None:
                with self._changed:
                    self._log.append(closure)
        except ServerGoneError as error:  # some servers may have committed it
            self._lose(error)
            raise
        finally:
            with self._changed:
                self._num_committing -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._changed:
            self._num_wanting += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and not self._num_committing)
                self._is_alone = True
            finally:
                self._num_wanting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()

    # -- the program's side ------------------------------------------------------------------

    def look(self, read: Callable[[], T]) -> T:
        """What `read` finds on servers that have all that was applied, in one epoch."""
        while True:
            epoch, news = self._cluster.epoch, self._news  # before it is known that all is well
            self._queue.wait_settled()
            try:
                found = read()
            except Exception as error:
                if self._is_current(epoch):
                    if not isinstance(error, ServerGoneError):
                        raise
                    self._lose(error)
            else:
                if self._is_current(epoch):
                    return found
            self._wait_for_news(news)

    def change(self, change: Change) -> None:
        """Makes a change, now and whenever servers are rolled back to what was before it."""
        while True:
            news = self._news
            self._queue.wait_settled()
            with self._alone():
                if self._is_whole() and self._queue.is_settled():
                    try:
                        if self._log:
                            self._renew()
                        change(self._cluster.epoch)
                    except ServerGoneError as error:  # some servers may have made it
                        self._lose(error)
                    else:
                        self._changes.append(change)
                        self._renew_if_due()
                        return
            self._wait_for_news(news)

    def is_over(self, epoch: int) -> bool:
        """Whether what is said of `epoch` does not count any more."""
        return not self._is_current(epoch)

    def _is_current(self, epoch: int) -> bool:
        with self._changed:
            return epoch == self._cluster.epoch and self._is_whole()

    def _is_whole(self) -> bool:
        return self._losses == self._num_repaired

    def is_lost(self, index: int) -> None:
        """A worker says that a server is gone: asks it, and waits a moment if it is there."""
        news = self._news
        try:
            self._cluster.transport.servers[index].decided(())
        except ServerGoneError as error:
            self._lose(error)
        else:
            self._wait_for_news(news)

    def _wait_for_news(self, news: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._news != news, _LOOK_AGAIN_SECONDS)

    def _tell(self) -> None:
        self._news += 1
        self._changed.notify_all()

    # -- snapshots ---------------------------------------------------------------------------

    def snapshot_if_due(self) -> None:
        """Takes a snapshot if much has happened since the last one."""
        if self._is_due():
            with self._alone():
                self._renew_if_due()

    def _is_due(self) -> bool:
        return len(self._log) + len(self._changes) >= self._every

    def _renew_if_due(self) -> None:
        if self._is_due() and self._is_whole():
            with contextlib.suppress(ServerGoneError):  # it is lost, which somebody will say
                self._renew()

    def _renew(self) -> None:
        """Takes a snapshot; who calls has the servers alone."""
        self._cluster.drop_now()
        self._snapshots = self._taken()
        self._changes.clear()
        self._log.clear()

    def _taken(self) -> list[ServerSnapshot]:
        return [server.snapshot() for server in self._cluster.transport.servers]

    # -- servers that are lost ---------------------------------------------------------------

    def server_lost(self, index: int, reason: str) -> None:
        """A server has gone, with what it held; the one in its place will know nothing."""
        with self._changed:
            self._empty.add(index)
        self._lose(ServerGoneError(reason, index))

    def server_joined(self, index: int) -> None:
        """A server is there again."""
        del index
        with self._changed:
            self._tell()

    def _lose(self, error: ServerGoneError) -> None:
        """What servers hold does not belong together any more."""
        self._queue.hold(error)
        with self._changed:
            self._losses += 1
            is_first, self._is_recovering = not self._is_recovering, True
            self._tell()
        if is_first:
            name = "replicax rollback"
            threading.Thread(target=self._recover, args=(error,), name=name, daemon=True).start()

    def _recover(self, error: ServerGoneError) -> None:
        """Rolls all servers back, as often as it takes."""
        try:
            with self._alone():
                self._queue.hold(error)  # an earlier rollback may have ended meanwhile
                if not self._rolled_back():
                    return
                closures, self._log = self._log, []
                self._counting.note_rolled_back(len(closures))
                self._queue.run_again(closures)
            with contextlib.suppress(notices.ReplicaxWarning):  # where warnings are errors
                notices.notify_once(
                    ("rolled back", id(self), self._cluster.epoch),
                    f"{error} All servers were rolled back; {len(closures)} closures run again.",
                )
        except BaseException as defect:
            self._queue.fail_for_good(defect)

    def _rolled_back(self) -> bool:
        """Whether all servers are in a new epoch; False if nobody needs them any more."""
        epoch = self._cluster.epoch
        while not self._queue.is_over():
            news, losses, epoch = self._news, self._losses, epoch + 1
            try:
                self._restore(epoch)
            except ServerGoneError:
                self._wait_for_news(news)
                continue
            with self._changed:
                if self._losses == losses:
                    self._num_repaired, self._is_recovering = losses, False
                    self._cluster.epoch = epoch
                    self._tell()
                    return True
        return False

    def _restore(self, epoch: int) -> None:
        servers = self._cluster.transport.servers
        for server in servers:  # before much is sent to some of them
            server.decided(())
        for server, snapshot in zip(servers, self._snapshots, strict=True):
            server.restore(snapshot, epoch)
        with self._changed:
            empty = set(self._empty)
        for index in empty:
            for spec in self._cluster.optimizers_of(index):
                servers[index].register_optimizer(spec)
        for change in self._changes:
            change(epoch)
        with self._changed:
            self._empty -= empty
