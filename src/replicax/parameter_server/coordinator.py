"""`ClusterCoordinator`: hands closures to workers, and decides whose updates count.

A thread for each worker takes closures from the queue. A worker runs one and stages its updates;
only then, and only here, is decided that they are applied, on every server. A closure whose worker
has gone is aborted everywhere and run again by another worker: its updates are applied once.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from replicax.core import nest, notices, recording
from replicax.core.tracebacks import fold
from replicax.engine.functions import arguments
from replicax.engine.functions.call_site import CallSite
from replicax.engine.functions.function import Function
from replicax.parameter_server.messages import (
    Array,
    Attempt,
    ClosureCall,
    ClosureReply,
    DatasetSpec,
    Element,
    OtherShapes,
)
from replicax.parameter_server.per_worker import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
)
from replicax.parameter_server.programs import ClosureProgram
from replicax.parameter_server.queue import ClosureQueue, EachWorker, ScheduledClosure
from replicax.parameter_server.remote_value import RemoteValue
from replicax.parameter_server.rollback import Rollback
from replicax.parameter_server.roster import WorkerRoster
from replicax.parameter_server.statistics import CoordinatorStats, Counting
from replicax.parameter_server.strategy import ParameterServerStrategy
from replicax.parameter_server.tracing import tracing_closure
from replicax.parameter_server.transport import (
    FencedError,
    ServerGoneError,
    TaskGoneError,
    WorkerGoneError,
)

T = TypeVar("T")

_MAX_PROGRAMS = 256
_DEFAULTS = {
    "max_staleness": None,
    "queue_size": 1024,
    "snapshot_every": None,
    "restart_timeout": 300.0,
}


class ClusterCoordinator:
    """Schedules functions on the workers of a `ParameterServerStrategy`.

    Workers do not wait for each other. A function is traced once, here, as any ``function`` is; it
    may read and assign variables of the strategy, call ``strategy.run``, take gradients, apply them
    by an optimizer, update metrics, and take elements from a per-worker dataset. Its updates are
    applied exactly once, also if it has to be run again.

    There is one coordinator for a strategy: another one is the same object.

    Args:
        strategy: The strategy.
        max_staleness: How many closures may change the variables of one between its reading and
            its own updates; 0 is synchronous training. None for no bound.
        queue_size: How many closures may wait; ``schedule`` waits while there are so many.
        snapshot_every: A lost server is an error for good, unless this is a number: then all
            servers are rolled back together to the last snapshot, which the coordinator keeps in
            memory and takes anew after so many closures, and what was applied since runs again.
            That is so also for a closure whose result was fetched; the result stays as it was.
        restart_timeout: How many seconds closures wait while no worker is there, and for a server
            in the place of a lost one. After that it is an error.

    Raises:
        TypeError: If `strategy` is no `ParameterServerStrategy`.
        ValueError: If an option is out of bounds, or other than that of the coordinator that the
            strategy has.

    Example:
        >>> import replicax as rx
        >>> cluster = rx.cluster_resolver.SimpleClusterResolver(
        ...     {"ps": ["a:1"], "worker": ["b:1", "b:2"]})
        >>> strategy = rx.ParameterServerStrategy(cluster)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> with strategy.scope():
        ...     total = rx.Variable(0.0)
        >>> @rx.function
        ... def add(amount):
        ...     total.assign_add(amount)
        >>> for amount in range(5):
        ...     value = coordinator.schedule(add, args=(float(amount),))
        >>> coordinator.join()
        >>> float(total)
        10.0
    """

    _initialised = False

    def __new__(cls, strategy: Any, **options: Any) -> ClusterCoordinator:
        """The coordinator of `strategy`, a new one the first time."""
        if not isinstance(strategy, ParameterServerStrategy):
            raise TypeError(
                f"ClusterCoordinator needs a ParameterServerStrategy; got {strategy!r}. Other "
                "strategies run their steps with strategy.run."
            )
        known = strategy.extended.coordinator
        return super().__new__(cls) if known is None else known

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        *,
        max_staleness: int | None = None,
        queue_size: int = 1024,
        snapshot_every: int | None = None,
        restart_timeout: float = 300.0,
    ) -> None:
        options = {
            "max_staleness": max_staleness,
            "queue_size": queue_size,
            "snapshot_every": snapshot_every,
            "restart_timeout": restart_timeout,
        }
        if self._initialised:
            if options not in (self._options, _DEFAULTS):
                raise ValueError(
                    f"{strategy!r} has a coordinator with {_listed(self._options)} already; asked "
                    f"for {_listed(options)}. Give the options to the first one."
                )
            return
        _check_count(max_staleness, "max_staleness", 0, optional=True)
        _check_count(queue_size, "queue_size", 1)
        _check_count(snapshot_every, "snapshot_every", 1, optional=True)
        if isinstance(restart_timeout, bool) or not restart_timeout > 0:
            raise ValueError(
                f"restart_timeout is {restart_timeout!r}; expected a number of seconds above 0."
            )
        self._initialised = True
        self._options = options
        self._strategy = strategy
        self._cluster = strategy.extended.cluster
        self._transport = self._cluster.transport
        num_workers = len(self._transport.workers)
        self._queue = ClosureQueue(
            queue_size, max_staleness, num_workers=num_workers, patience=restart_timeout
        )
        self._counting = Counting(num_workers)
        self._site = CallSite(
            donate=False, lifts=True, max_programs=_MAX_PROGRAMS, program_of=self._program_of
        )
        self._lock = threading.RLock()
        self._datasets: dict[int, Callable[[], Any]] = {}
        self._dataset_specs: dict[int, DatasetSpec] = {}
        self._iterators: dict[int, int] = {}
        self._roster = WorkerRoster(num_workers, self._queue)
        self._rollback: Rollback | None = None
        if snapshot_every is not None:
            self._rollback = Rollback(self._cluster, self._queue, self._counting, snapshot_every)
            self._cluster.rollback = self._rollback
        strategy.extended.coordinator = self
        for index in range(num_workers):
            # Weakly: a program that forgets the strategy must not keep its threads.
            name = f"replicax worker {index}"
            target = (weakref.ref(self), self._queue, index)
            threading.Thread(target=_drive, args=target, name=name, daemon=True).start()
        self._transport.watch(CoordinatorListener(self))
        weakref.finalize(self, self._queue.close).atexit = True

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy."""
        return self._strategy

    def __repr__(self) -> str:
        return f"<ClusterCoordinator of {self._strategy!r}>"

    # -- scheduling --------------------------------------------------------------------------

    def schedule(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> RemoteValue:
        """Lets some worker call `fn`, some time; returns at once, unless the queue is full.

        Args:
            fn: The function; a ``function``, or any Python function, which is then traced.
            args: Its arguments: nests of arrays and numbers, iterators of per-worker datasets and
                `PerWorkerValues`.
            kwargs: The same by keyword.

        Returns:
            What `fn` will return.

        Raises:
            BaseException: The error of a closure that was scheduled before; `fn` is then not
                scheduled. And what goes wrong when `fn` is traced.
            TypeError: If `fn` is not callable, or an argument is a `RemoteValue`.
        """
        if not callable(fn):
            raise TypeError(f"schedule needs a callable as fn; got {fn!r}.")
        try:
            args, kwargs = tuple(args or ()), dict(kwargs or {})
            with recording.within(recording.DISPATCH):
                closure = self._traced(self._site, fn, args, kwargs, {})
            closure.program.retrace = lambda shapes: self._retraced(fn, args, kwargs, shapes)
            with recording.within(recording.WORKERS):
                self._queue.put(closure)
        except Exception as error:
            fold(error)
            raise
        return closure.value

    def join(self) -> None:
        """Waits until every closure that was scheduled has been run, and its updates are applied.

        Raises:
            BaseException: The error of a closure. What was queued after it is cancelled, and
                nothing runs any more; the next call starts afresh.
            WorkerGoneError: If closures wait, and no worker was there for `restart_timeout`.
            ServerGoneError: If a server is lost, and servers are not rolled back or none takes its
                place in time.
        """
        with recording.within(recording.WORKERS):
            self._queue.join()

    def done(self) -> bool:
        """Whether every closure that was scheduled has been run.

        Returns:
            True if nothing waits and nothing runs.

        Raises:
            BaseException: The error of a closure, as `join`.
        """
        return self._queue.is_done()

    def close(self) -> None:
        """Cancels what waits, and lets the threads of the workers end.

        A coordinator that is no longer used does so by itself.
        """
        self._queue.close()

    def fetch(self, val: Any) -> Any:
        """Waits for the values in a nest.

        Args:
            val: A nest with `RemoteValue` leaves; others stay as they are.

        Returns:
            The nest, with arrays of NumPy.

        Raises:
            BaseException: What a closure raised.
        """
        with recording.within(recording.WORKERS):
            return nest.map_leaves(
                lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val
            )

    def stats(self) -> CoordinatorStats:
        """How many closures there were, how fast they are, and how stale what they read.

        Returns:
            The figures since the coordinator was made.
        """
        queued, running = self._queue.counts()
        return self._counting.stats(scheduled=self._queue.scheduled, queued=queued, running=running)

    def _traced(
        self,
        site: CallSite,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shapes: dict[tuple[int, int, int], tuple[int, ...]],
    ) -> ScheduledClosure:
        """A closure of a call, traced if it is the first of its kind."""
        if isinstance(fn, Function):
            args, kwargs = fn._checked(args, kwargs)
            fn = fn.python_function
        args, kwargs, each = _with_values_of_first_worker(args, kwargs)
        with self._strategy.scope(), tracing_closure(self._strategy, shapes):
            program, arrays = site.call(fn, args, kwargs)
        own = [EachWorker(tuple(each[i])) if i in each else a for i, a in enumerate(arrays)]
        return ScheduledClosure(self._cluster.new_number(), program, own)

    def _program_of(self, traced: Any, *, name: str, donate: bool) -> ClosureProgram:
        number = self._cluster.new_number()
        return ClosureProgram(
            traced, name=name, donate=donate, program_id=number, submit=lambda *call: call
        )

    def _retraced(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], elements: tuple[Element, ...]
    ) -> ClosureProgram:
        """The program for elements of other shapes."""
        shapes = {(e.iterator_id, e.turn, e.leaf): e.shape for e in elements}
        site = CallSite(donate=False, program_of=self._program_of)
        return self._traced(site, fn, args, kwargs, shapes).program

    # -- datasets ----------------------------------------------------------------------------

    def create_per_worker_dataset(self, dataset_fn: Callable[[], Any]) -> PerWorkerDataset:
        """Makes a dataset on each worker.

        Args:
            dataset_fn: Called on each worker; returns anything that can be iterated over, whose
                elements are nests of arrays. ``experimental_get_current_worker_index()`` in it
                says which worker it is.

        Returns:
            The dataset; pass ``iter`` of it to closures.

        Raises:
            TypeError: If `dataset_fn` is not callable.
        """
        if not callable(dataset_fn):
            raise TypeError(
                f"create_per_worker_dataset needs a function that makes the dataset of a worker; "
                f"got {dataset_fn!r}. Write lambda: dataset."
            )
        with self._lock:
            dataset_id = self._cluster.new_number()
            self._datasets[dataset_id] = dataset_fn
            # On all at once: an error in dataset_fn is seen here, and not in some closure.
            specs = list(self._on_workers(lambda worker: self._know_dataset(worker, dataset_id)))
            if not specs:
                raise WorkerGoneError(
                    "no worker is there to make a dataset. Make it later, when one has started "
                    "again.",
                    0,
                )
            self._dataset_specs[dataset_id] = specs[0]
            return PerWorkerDataset(self, dataset_id, dataset_fn)

    def create_per_worker_resource(self, resource_fn: Callable[[], Any]) -> PerWorkerDataset:
        """`create_per_worker_dataset`, by another name of the documents.

        Args:
            resource_fn: As `dataset_fn` of `create_per_worker_dataset`.

        Returns:
            The dataset.
        """
        return self.create_per_worker_dataset(resource_fn)

    def _dataset_spec(self, dataset_id: int) -> DatasetSpec:
        return self._dataset_specs[dataset_id]

    def _new_iterator(self, dataset_id: int) -> PerWorkerIterator:
        with self._lock:
            iterator_id = self._cluster.new_number()
            self._iterators[iterator_id] = dataset_id
            for _ in self._on_workers(lambda worker: self._know_iterator(worker, iterator_id)):
                pass
            return PerWorkerIterator(self._strategy, iterator_id, self._dataset_spec(dataset_id))

    def _on_workers(self, call: Callable[[int], T]) -> Iterator[T]:
        """What `call` gives for each worker; one that is gone will be told when it is back."""
        for worker in self._roster.there():
            with contextlib.suppress(WorkerGoneError):
                yield call(worker)

    def _know_dataset(self, worker: int, dataset_id: int) -> DatasetSpec:
        known = self._roster.life(worker).known
        dataset_fn = self._datasets[dataset_id]
        spec = self._transport.workers[worker].make_dataset(dataset_id, dataset_fn)
        known.add(dataset_id)
        return spec

    def _know_iterator(self, worker: int, iterator_id: int) -> None:
        known = self._roster.life(worker).known
        dataset_id = self._iterators[iterator_id]
        if dataset_id not in known:
            self._know_dataset(worker, dataset_id)
        if iterator_id not in known:
            self._transport.workers[worker].make_iterator(iterator_id, dataset_id)
            known.add(iterator_id)

    # -- what the thread of a worker does ----------------------------------------------------

    def _execute(self, worker: int, closure: ScheduledClosure) -> None:
        """Runs a closure on a worker, decides about its updates, and tells the queue."""
        attempt = Attempt(self._cluster.epoch, closure.number, closure.tries)
        life = self._roster.life(worker)
        self._counting.note_start(worker)
        try:
            program, reply = self._run(worker, closure, attempt)
            if not self._queue.wait_turn(worker):
                self._give_up(attempt)
                self._queue.put_back(worker)
                return
            staleness = self._decide(attempt, closure, reply)
        except (WorkerGoneError, FencedError) as error:
            self._counting.note_retry()
            self._give_up(attempt)
            if isinstance(error, WorkerGoneError):
                self._roster.left(worker, str(error), life)
            self._queue.put_back(worker)
            return
        except ServerGoneError as error:
            if self._rollback is None:
                self._queue.fail(worker, error)
                self._queue.fail_for_good(error)
                return
            self._give_up(attempt)
            self._queue.put_back(worker)
            self._rollback.is_lost(error.index)
            return
        except BaseException as error:
            self._give_up(attempt)
            if self._rollback is not None and self._rollback.is_over(attempt.epoch):
                self._queue.put_back(worker)  # it may have seen servers that were half empty
            else:
                self._queue.fail(worker, error)
            return
        self._counting.note_applied(worker, staleness)
        closure.value._set(reply.results, program.finish)
        self._queue.done(worker)
        if self._rollback is not None:
            self._rollback.snapshot_if_due()

    def _run(
        self, worker: int, closure: ScheduledClosure, attempt: Attempt
    ) -> tuple[ClosureProgram, ClosureReply]:
        """Runs a closure, by the program for the shapes of the elements that the worker has."""
        program = closure.program
        while True:
            self._know_program(worker, program)
            call = ClosureCall(attempt, program.spec.program_id, closure.arguments_of(worker))
            reply = self._transport.workers[worker].run(call)
            if not isinstance(reply, OtherShapes):
                return program, reply
            with self._lock:
                variant = program.variants.get(reply.elements)
                if variant is None:
                    variant = program.retrace(reply.elements)
                    variant.retrace = program.retrace
                    program.variants[reply.elements] = variant
            program = variant

    def _know_program(self, worker: int, program: ClosureProgram) -> None:
        known = self._roster.life(worker).known
        spec = program.spec
        if spec.program_id in known:
            return
        with self._lock:
            for element in spec.elements:
                self._know_iterator(worker, element.iterator_id)
            self._transport.workers[worker].register_program(spec)
            known.add(spec.program_id)

    def _decide(
        self, attempt: Attempt, closure: ScheduledClosure, reply: ClosureReply
    ) -> int | None:
        """Lets the updates of an attempt count; gives its staleness."""
        if self._rollback is None:
            return self._commit(attempt, reply)
        with self._rollback.committing(attempt, closure if reply.servers else None):
            return self._commit(attempt, reply)

    def _commit(self, attempt: Attempt, reply: ClosureReply) -> int | None:
        """Applies the updates of an attempt; gives its staleness."""
        late: list[int] = []
        for server in reply.servers:
            clock = self._transport.servers[server].commit(attempt)
            if server in reply.clocks:
                late.append(clock - reply.clocks[server])
        return max(late, default=None)

    def _give_up(self, attempt: Attempt) -> None:
        """Keeps an attempt from being applied, wherever it has staged something."""
        for server in self._transport.servers:
            with contextlib.suppress(TaskGoneError):
                server.abort(attempt)


class CoordinatorListener:
    """Implements `transport.Listener`: tells the coordinator, which it does not keep alive."""

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        """For `coordinator`."""
        self._queue = coordinator._queue
        self._roster = coordinator._roster
        rollback = coordinator._rollback
        self._rollback = None if rollback is None else weakref.ref(rollback)

    def worker_joined(self, index: int) -> None:
        """A worker is there, and knows nothing yet."""
        self._roster.came(index)

    def worker_lost(self, index: int, reason: str) -> None:
        """A worker has gone."""
        self._roster.left(index, reason)

    def server_joined(self, index: int) -> None:
        """A server is there again, empty; what it held is lost all the same."""
        if self._rollback is not None and (rollback := self._rollback()) is not None:
            rollback.server_joined(index)

    def server_lost(self, index: int, reason: str) -> None:
        """A server has gone, and all that it held."""
        if self._rollback is None:
            self._queue.fail_for_good(ServerGoneError(reason, index))
        elif (rollback := self._rollback()) is not None:
            rollback.server_lost(index, reason)

    def task_is_slow(self, what: str, seconds: float) -> None:
        """Somebody has not moved for long."""
        with contextlib.suppress(notices.ReplicaxWarning):  # where warnings are errors
            notices.notify_once(("slow task", what), f"{what}, for {seconds:.0f} seconds.")


def _drive(coordinator: weakref.ref[ClusterCoordinator], queue: ClosureQueue, worker: int) -> None:
    """The thread of one worker."""
    while True:
        closure = queue.take(worker)
        own = coordinator()
        if closure is None or own is None:
            return
        try:
            own._execute(worker, closure)
        except BaseException as error:  # a defect; `join` must not wait for this worker for ever
            queue.fail_for_good(error, worker)
            return
        del own, closure


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _check_count(value: Any, name: str, least: int, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        or_none = ", or None" if optional else ""
        raise ValueError(f"{name} is {value!r}; expected an int of {least} or more{or_none}.")


def _with_values_of_first_worker(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, list[Array]]]:
    """The arguments for worker 0, and for each array that differs those of all workers.

    Arrays are counted as a program has them: leaves that are traced, in their order.
    """
    leaves, structure = nest.flatten((args, kwargs))
    if any(isinstance(leaf, RemoteValue) for leaf in leaves):
        raise TypeError(
            "an argument of schedule is a RemoteValue, which may not be there yet. Pass its value: "
            "coordinator.fetch(value)."
        )
    if not any(isinstance(leaf, PerWorkerValues) for leaf in leaves):
        return args, kwargs, {}
    first: list[Any] = []
    each: dict[int, list[Array]] = {}
    count = 0
    for leaf in leaves:
        if not isinstance(leaf, PerWorkerValues):
            first.append(leaf)
            count += arguments.is_traced(leaf)
            continue
        nests = [nest.map_leaves(np.asarray, value) for value in leaf._values]
        first.append(nests[0])
        for columns in zip(*(nest.flatten(value)[0] for value in nests), strict=True):
            each[count] = [np.asarray(arguments.lower(c, lambda: "a value")) for c in columns]
            count += 1
    args, kwargs = nest.unflatten(structure, first)
    return args, kwargs, each
