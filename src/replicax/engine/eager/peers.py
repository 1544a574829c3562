"""How eager replicas reach each other: meetings of their threads.

Values are concrete there, so a collective inside a traced function has nothing
to meet with and is refused; under ``grad`` an all_reduce still sees concrete
values, because its rule is called with the primals.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax.backend import placement
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError, ReductionError
from replicax.engine.contexts import stack
from replicax.engine.eager.captured import CapturedValue, captured_by
from replicax.engine.eager.same_call import SameCall
from replicax.engine.protocols import StrategyLike
from replicax.engine.threads import ALONE, ReplicaThreads
from replicax.engine.trace import epoch
from replicax.engine.trace.overrides import drop_override, noting_assignments
from replicax.jax_internals.traces import is_batching, is_staging, is_transforming
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.operators import plain
from replicax.values.reduce import check_gather, gather_leaf, reduce_to_all
from replicax.values.regroup import regroup, select

_PASS_IT = "Use the same on every replica, or pass it as an argument of the call."
_RETURN_IT = "The call itself changed it, for the first of them only: return the value instead."


class EagerSession:
    """What the replicas of one eager run share.

    Attributes:
        strategy: The strategy that runs them.
        mesh: Their devices.
        threads: Their threads.
        reduction: How values are added.
        shared: The number of each array and mirrored value that is one for all replicas, by its
            ``id``. All workers count alike.
    """

    def __init__(
        self,
        strategy: StrategyLike,
        mesh: ReplicaMesh,
        threads: ReplicaThreads,
        reduction: Reduction,
    ) -> None:
        """A session for one run."""
        self.strategy = strategy
        self.mesh = mesh
        self.threads = threads
        self.reduction = reduction
        self._mirrored: dict[int, tuple[jax.Array, Mirrored]] = {}
        self.shared: dict[int, int] = {}
        self._kept: list[Any] = []  # what `shared` knows by its ``id``
        self._assigned: list[Any] = []  # at the last meeting

    def remember(self, value: Any) -> Any:
        """Notes what is the same on all replicas, so that it can be recognised later."""
        for leaf in nest.flatten(value)[0]:
            if isinstance(leaf, jax.Array | Mirrored):
                self.shared[id(leaf)] = len(self._kept)
                self._kept.append(leaf)
            if isinstance(leaf, Mirrored):
                self._mirrored.update({id(copy): (copy, leaf) for copy in leaf.values})
        return value

    def find_mirrored(self, leaf: Any) -> Mirrored | None:
        """The mirrored value that `leaf` is a copy of."""
        found = self._mirrored.get(id(leaf))
        return None if found is None else found[1]

    def merge(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
        own: Callable[..., Any] | None = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Called by a replica: all meet, ``fn(*args)`` runs once in cross-replica context.

        For `own` and `alone`, see `ReplicaContext._together`.
        """
        # Listed here: the next replica may give captured names other values.
        call = _Call(fn, None if own is None else captured_by(own), args, kwargs)
        # Other workers do not know who is alone here, and launch what all replicas launch.
        can_be_alone = alone is not None and not self.mesh.spans_workers
        answer = self.threads.meet(
            label, functools.partial(self._hold, label), payload=call, can_be_alone=can_be_alone
        )
        if alone is not None and answer is ALONE:
            return alone()
        for variable in self._assigned:  # a gradient that is open on this thread ends there
            drop_override(variable)
        epoch.renew()
        return answer

    def _hold(self, label: str, calls: list[_Call]) -> list[Any]:
        same = SameCall(label, self.mesh, self.find_mirrored)
        same.require([captured_by(call.fn) for call in calls], _PASS_IT)
        fn = calls[0].fn
        own = [call.own for call in calls if call.own is not None]
        if own:
            fn = functools.partial(fn, same.own_values(own, self._regrouped_captured(label)))
        args, kwargs = self._regrouped([(call.args, call.kwargs) for call in calls], label)
        entry = stack.Entry(self.strategy, stack.Mode.MERGE)
        with stack.entered(entry), noting_assignments() as self._assigned:
            result = self.remember(fn(*args, **kwargs))
        same.require([captured_by(call.fn) for call in calls], _RETURN_IT)
        return [select(result, replica_id) for replica_id in self.mesh.local_replicas]

    def _regrouped(self, nests: list[Any], label: str, arguments: Collection[int] = ()) -> Any:
        return regroup(
            nests,
            self.mesh,
            find_mirrored=self.find_mirrored,
            arguments=arguments,
            shared=self.shared,
            what=label,
        )

    def _regrouped_captured(self, label: str) -> Callable[[list[list[Any]]], list[Any]]:
        """As arguments; but an array of the host that all replicas captured is the same."""

        def merge(rows: list[list[Any]]) -> list[Any]:
            known = () if self.mesh.spans_workers else {id(value) for value in rows[0]}
            return self._regrouped(rows, label, known)

        return merge


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """What one replica brings to a meeting.

    Attributes:
        fn: The function that is to run.
        own: What another function brings along, some of it perhaps of the replica's own.
        args: The arguments of `fn`.
        kwargs: The same by keyword.
    """

    fn: Callable[..., Any]
    own: Sequence[CapturedValue] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class EagerPeers:
    """Implements `engine.contexts.replica.Peers` for one replica of an eager run."""

    def __init__(self, session: EagerSession, replica_id: int) -> None:
        """Peers of replica `replica_id` of the run `session`."""
        self._session = session
        self._replica_id = replica_id

    @property
    def replica_id(self) -> int:
        """The index of this replica.

        Raises:
            ContextError: In what all replicas call together, which belongs to none of them.
        """
        if self._session.threads.are_meeting():
            raise ContextError(
                f"the replica_id_in_sync_group of a captured ReplicaContext, that of replica "
                f"{self._replica_id}, was asked for in what all replicas call together (merge_fn, "
                "an update, a function). Ask before and pass it as an argument; in a function, "
                "call replicax.get_replica_context() there."
            )
        return self._replica_id

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Waits for all replicas and runs `merge_fn` once, in cross-replica context."""
        require_concrete("merge_call", under_grad=False)
        session = self._session

        def with_strategy(*args: Any, **kwargs: Any) -> Any:
            return merge_fn(session.strategy, *args, **kwargs)

        return session.merge("merge_call", with_strategy, args, kwargs)

    def together(
        self,
        label: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        own: Any = None,
        alone: Callable[[], Any] | None = None,
    ) -> Any:
        """Waits for all replicas and runs `fn` once, in cross-replica context.

        A gradient that is open on this thread ends at the arguments.
        """
        require_concrete(label)
        known = nest.map_leaves(_without_gradient, args)
        result = self._session.merge(label, fn, known, {}, own, alone)
        if _has_tracers(args) and any(isinstance(x, jax.Array) for x in nest.flatten(result)[0]):
            raise ContextError(
                f"{label} was reached inside jax.grad in an eager run, with values that are "
                "differentiated, and gave arrays, which would have no gradient. Put "
                "replicax.function around the function passed to run, or return no arrays."
            )
        return result

    def all_reduce(self, op: ReduceOp, value: Any, options: Any) -> Any:
        """Waits for all replicas and combines what they brought."""
        del options
        require_concrete("all_reduce")
        session = self._session

        def reduce_all(value: Any) -> Any:
            return nest.map_leaves(functools.partial(_reduced, session, op), value)

        def meet(value: Any) -> Any:
            return session.merge("all_reduce", reduce_all, (value,), {})

        return _differentiable(meet)(nest.map_leaves(lambda x: jnp.asarray(plain(x)), value))

    def all_gather(self, value: Any, axis: int) -> Any:
        """Waits for all replicas and concatenates what they brought."""
        require_concrete("all_gather")
        session = self._session

        def gather_all(value: Any) -> tuple[Any, Any]:
            wholes = nest.map_leaves(functools.partial(_gathered, session, axis), value)
            return wholes, nest.map_leaves(functools.partial(_starts, session, axis), value)

        def meet(value: Any) -> tuple[Any, Any]:
            return session.merge("all_gather", gather_all, (value,), {})

        @jax.custom_vjp
        def gathered(value: Any) -> Any:
            return meet(value)[0]

        def forward(value: Any) -> tuple[Any, Any]:
            wholes, starts = meet(value)
            return wholes, (starts, nest.map_leaves(lambda leaf: leaf.shape[axis], value))

        def backward(own: Any, cotangent: Any) -> tuple[Any]:
            def part(total: Any, start: Any, size: Any) -> Any:
                return jax.lax.dynamic_slice_in_dim(total, start, size, axis)

            total = self.all_reduce(ReduceOp.SUM, cotangent, None)
            return (nest.map_leaves(part, total, *own),)

        gathered.defvjp(forward, backward)
        arrays = nest.map_leaves(lambda leaf: jnp.asarray(plain(leaf)), value)
        for array in nest.flatten(arrays)[0]:
            check_gather(axis, [array.shape])
        return gathered(arrays) if is_transforming() else meet(arrays)[0]


def _has_tracers(values: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in nest.flatten(values)[0])


def _without_gradient(leaf: Any) -> Any:
    """The value of a tracer; of one that is the result of an all_reduce, that result itself."""
    return jax.lax.stop_gradient(leaf) if isinstance(leaf, Tracer) else leaf


def _reduced(session: EagerSession, op: ReduceOp, leaf: Any) -> Mirrored:
    if isinstance(leaf, PerReplica) and leaf._is_uneven:
        raise ReductionError(
            f"all_reduce needs the same shape on every replica; got {list(leaf.shapes)}."
        )
    total = reduce_to_all(op, leaf, session.mesh, session.reduction)
    return Mirrored(session.mesh, array=total)


def _gathered(session: EagerSession, axis: int, leaf: Any) -> Mirrored:
    whole = gather_leaf(leaf, axis, session.mesh)
    return Mirrored(session.mesh, array=placement.replicate(whole, session.mesh))


def _starts(session: EagerSession, axis: int, leaf: Any) -> PerReplica:
    """Where the part of each replica begins in the whole."""
    mesh = session.mesh
    is_own = isinstance(leaf, PerReplica)
    shapes = leaf.shapes if is_own else [np.shape(leaf)] * mesh.num_replicas
    sizes = [shape[axis] for shape in shapes]
    starts = [sum(sizes[:replica]) for replica in mesh.local_replicas]
    return PerReplica(mesh, components=starts, shapes=[()] * mesh.num_replicas)


def require_concrete(call: str, *, under_grad: bool = True) -> None:
    """Raises unless values are concrete here.

    Args:
        call: What was called, for the error.
        under_grad: Whether an open ``grad`` is fine.

    Raises:
        ContextError: Inside jit, scan, cond, while, checkpoint or vmap.
    """
    if is_staging() or is_batching():
        where = "jax.jit, lax.scan, lax.cond, lax.while_loop, jax.checkpoint or jax.vmap"
    elif not under_grad and is_transforming():
        where = "jax.grad"
    else:
        return
    raise ContextError(
        f"{call} was reached inside {where} in an eager run, where replicas meet only at concrete "
        "values. Put replicax.function around the function passed to run."
    )


def _differentiable(meet: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`meet` with the gradient of an all-reduce: the all-reduce of the gradient."""

    @jax.custom_vjp
    def reduced(value: Any) -> Any:
        return meet(value)

    def forward(value: Any) -> tuple[Any, None]:
        return reduced(value), None

    def backward(_: None, cotangent: Any) -> tuple[Any]:
        return (reduced(cotangent),)

    reduced.defvjp(forward, backward)
    return reduced if is_transforming() else meet
