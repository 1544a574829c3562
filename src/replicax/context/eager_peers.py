"""How eager replicas reach each other: meetings of their threads.

Values are concrete there, so a collective inside a traced function has nothing
to meet with and is refused; under ``grad`` an all_reduce still sees concrete
values, because its rule is called with the primals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.backend import compat, placement
from replicax.backend.collectives import Reduction
from replicax.backend.mesh import ReplicaMesh
from replicax.context import stack
from replicax.core import nest
from replicax.core.enums import ReduceOp
from replicax.core.errors import ContextError, ReductionError
from replicax.execution import epoch
from replicax.execution.eager import ReplicaThreads
from replicax.values.distributed import Mirrored, PerReplica
from replicax.values.operators import plain
from replicax.values.reduce import check_gather, gather_leaf, reduce_leaf
from replicax.values.regroup import regroup, select


class EagerSession:
    """What the replicas of one eager run share.

    Attributes:
        strategy: The strategy that runs them.
        mesh: Their devices.
        threads: Their threads.
        reduction: How values are added.
        shared: Arrays that are one object for all replicas, by their ``id``.
    """

    def __init__(
        self, strategy: Any, mesh: ReplicaMesh, threads: ReplicaThreads, reduction: Reduction
    ) -> None:
        """A session for one run."""
        self.strategy = strategy
        self.mesh = mesh
        self.threads = threads
        self.reduction = reduction
        self._mirrored: dict[int, tuple[jax.Array, Mirrored]] = {}
        self.shared: dict[int, jax.Array] = {}

    def remember(self, value: Any) -> Any:
        """Notes what is the same on all replicas, so that it can be recognised later."""
        for leaf in nest.flatten(value)[0]:
            if isinstance(leaf, jax.Array):
                self.shared[id(leaf)] = leaf
            if isinstance(leaf, Mirrored):
                self._mirrored.update({id(copy): (copy, leaf) for copy in leaf.values})
        return value

    def find_mirrored(self, leaf: Any) -> Mirrored | None:
        """The mirrored value that `leaf` is a copy of."""
        found = self._mirrored.get(id(leaf))
        return None if found is None else found[1]

    def merge(self, label: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Called by a replica: all meet, ``fn(*args)`` runs once in cross-replica context."""
        hold = functools.partial(self._hold, label)
        answer = self.threads.meet(label, hold, payload=(fn, args, kwargs))
        epoch.renew()
        return answer

    def _hold(self, label: str, payloads: list[Any]) -> list[Any]:
        fn = payloads[0][0]
        grouped = [(args, kwargs) for _, args, kwargs in payloads]
        args, kwargs = regroup(
            grouped,
            self.mesh,
            find_mirrored=self.find_mirrored,
            shared=self.shared,
            what=label,
        )
        with stack.entered(stack.Entry(self.strategy, stack.Mode.MERGE)):
            result = self.remember(fn(*args, **kwargs))
        return [select(result, replica_id) for replica_id in self.mesh.local_replicas]


class EagerPeers:
    """Implements `context.replica.Peers` for one replica of an eager run."""

    def __init__(self, session: EagerSession, replica_id: int) -> None:
        """Peers of replica `replica_id` of the run `session`."""
        self._session = session
        self.replica_id = replica_id

    def merge(
        self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Waits for all replicas and runs `merge_fn` once, in cross-replica context."""
        require_concrete("merge_call", under_grad=False)
        session = self._session

        def with_strategy(*args: Any, **kwargs: Any) -> Any:
            return merge_fn(session.strategy, *args, **kwargs)

        return session.merge("merge_call", with_strategy, args, kwargs)

    def together(self, label: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Waits for all replicas and runs `fn` once, in cross-replica context."""
        require_concrete(label)
        return self._session.merge(label, fn, args, {})

    def all_reduce(self, op: ReduceOp, leaves: list[Any], options: Any) -> list[jax.Array]:
        """Waits for all replicas and combines what they brought."""
        del options
        require_concrete("all_reduce")

        def meet(values: list[Any]) -> list[Any]:
            return self._session.merge("all_reduce", self._reduce_all, (op, values), {})

        return _differentiable(meet)([jnp.asarray(plain(leaf)) for leaf in leaves])

    def _reduce_all(self, op: ReduceOp, values: list[Any]) -> list[Mirrored]:
        mesh = self._session.mesh
        results = []
        for value in values:
            if isinstance(value, PerReplica) and value.is_uneven:
                raise ReductionError(
                    f"all_reduce needs the same shape on every replica; got {list(value.shapes)}."
                )
            total = reduce_leaf(op, value, None, mesh, self._session.reduction)
            results.append(Mirrored(mesh, array=placement.replicate(total, mesh)))
        return results

    def all_gather(self, leaf: Any, axis: int) -> jax.Array:
        """Waits for all replicas and concatenates what they brought."""
        require_concrete("all_gather")
        session = self._session

        def gather(value: Any) -> tuple[Mirrored, PerReplica]:
            mesh = session.mesh
            sizes = [shape[axis] for shape in _shapes(value, mesh)]
            starts = [sum(sizes[:replica]) for replica in mesh.local_replicas]
            whole = gather_leaf(value, axis, mesh)
            mirrored = Mirrored(mesh, array=placement.replicate(whole, mesh))
            shapes = [()] * mesh.num_replicas
            return mirrored, PerReplica(mesh, components=starts, shapes=shapes)

        def meet(value: Any) -> tuple[jax.Array, int]:
            return session.merge("all_gather", gather, (value,), {})

        @jax.custom_vjp
        def gathered(value: Any) -> jax.Array:
            return meet(value)[0]

        def forward(value: Any) -> tuple[jax.Array, Any]:
            whole, start = meet(value)
            return whole, (start, value.shape[axis])

        def backward(own: Any, cotangent: Any) -> tuple[Any]:
            (total,) = self.all_reduce(ReduceOp.SUM, [cotangent], None)
            return (jax.lax.dynamic_slice_in_dim(total, own[0], own[1], axis),)

        gathered.defvjp(forward, backward)
        array = jnp.asarray(plain(leaf))
        check_gather(axis, [array.shape])
        return gathered(array) if compat.is_transforming() else meet(array)[0]


def _shapes(value: Any, mesh: ReplicaMesh) -> Sequence[Any]:
    if isinstance(value, PerReplica):
        return value.shapes
    return [np.shape(value)] * mesh.num_replicas


def require_concrete(call: str, *, under_grad: bool = True) -> None:
    """Raises unless values are concrete here.

    Args:
        call: What was called, for the error.
        under_grad: Whether an open ``grad`` is fine.

    Raises:
        ContextError: Inside jit, scan, cond, while, checkpoint or vmap.
    """
    if compat.is_staging() or compat.is_batching():
        where = "jax.jit, lax.scan, lax.cond, lax.while_loop, jax.checkpoint or jax.vmap"
    elif not under_grad and compat.is_transforming():
        where = "jax.grad"
    else:
        return
    raise ContextError(
        f"{call} was reached inside {where} in an eager run, where replicas meet only at concrete "
        "values. Put replicax.function around the function passed to run."
    )


def _differentiable(meet: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """`meet` with the gradient of an all-reduce: the all-reduce of the gradient."""

    @jax.custom_vjp
    def reduced(values: list[Any]) -> list[Any]:
        return meet(values)

    def forward(values: list[Any]) -> tuple[list[Any], None]:
        return reduced(values), None

    def backward(_: None, cotangents: list[Any]) -> tuple[list[Any]]:
        return (reduced(cotangents),)

    reduced.defvjp(forward, backward)
    return reduced if compat.is_transforming() else meet
