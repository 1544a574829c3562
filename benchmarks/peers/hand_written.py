"""The limit: what an expert writes in plain JAX, with donation and small gradients packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks import models, problems
from benchmarks.peers import sources
from benchmarks.problems import Problem
from benchmarks.timing import Step, wait_for
from benchmarks.worker import Assignment

AXIS = "replica"
WHOLE, DIVIDED = PartitionSpec(), PartitionSpec(AXIS)
PACKED_BELOW = 16_384
LOOP = 64


def mesh_of(replicas: int) -> Mesh:
    """The first devices of this process, or those of all processes."""
    return Mesh(np.asarray(jax.devices()[:replicas]), (AXIS,), axis_types=(AxisType.Auto,))


def place(array: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """A copy on the devices of all processes."""
    where = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, where, lambda index: array[index].copy())


def read(loss: jax.Array) -> float:
    """The sum of what the replicas of this process say."""
    return float(sum(np.asarray(shard.data).sum() for shard in loss.addressable_shards))


def read_first(value: jax.Array) -> float:
    """What all replicas say alike."""
    return float(np.asarray(value.addressable_data(0)).ravel()[0])


def spmd(
    replica: Callable[..., Any], mesh: Mesh, specs: Sequence[Any], out: Any, *, donate: int = 0
) -> Any:
    """One program for all replicas that donates its first arguments; one device needs no mesh."""
    if mesh.size > 1:
        replica = jax.shard_map(
            replica, mesh=mesh, in_specs=tuple(specs), out_specs=out, check_vma=False
        )
    return jax.jit(replica, donate_argnums=tuple(range(donate)))


def packed_sum(gradients: Sequence[jax.Array], replicas: int) -> list[jax.Array]:
    """The sums over the replicas: small arrays in one collective, large ones each in its own."""
    if replicas == 1:
        return list(gradients)
    small = [i for i, g in enumerate(gradients) if g.size < PACKED_BELOW]
    results = [None if i in set(small) else jax.lax.psum(g, AXIS) for i, g in enumerate(gradients)]
    if small:
        flat = jax.lax.psum(jnp.concatenate([gradients[i].ravel() for i in small]), AXIS)
        offsets = np.cumsum([gradients[i].size for i in small])[:-1].tolist()
        for i, part in zip(small, jnp.split(flat, offsets), strict=True):
            results[i] = part.reshape(gradients[i].shape)
    return results


def repeated(body: Callable[..., Any]) -> Callable[..., Any]:
    """`LOOP` steps of W1 in one program."""

    def loop(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, totals = jax.lax.scan(lambda w, _: body(w, x), w, length=LOOP)
        return w, totals[-1]

    return loop


def carrying(step: Callable[..., Any], w: jax.Array, x: jax.Array, variant: str) -> Step:
    """Calls a step of W1 that takes and returns the variable."""
    state = [w]

    def run() -> jax.Array:
        state[0], total = step(state[0], x)
        return total

    count = LOOP if variant == "64 steps" else 1
    return Step(run, read_first, wait_for, count)


def start_of(problem: Problem, mesh: Mesh) -> tuple[list[Any], Any, list[Any]]:
    """Parameters, slots of the optimizer, and the batch, where they belong."""
    params = [place(array, mesh, WHOLE) for array in problem.params]
    slots = jax.tree.map(
        lambda a: place(np.zeros(a.shape, a.dtype), mesh, WHOLE),
        jax.eval_shape(models.optimizer_of(problem).init, params),
    )
    return params, slots, [place(array, mesh, DIVIDED) for array in problem.batch]


def empty_step(assignment: Assignment, variant: str) -> Step:
    """W1."""
    mesh = mesh_of(assignment.replicas)
    variable, factors = problems.empty_step(assignment.replicas)
    w, x = place(variable, mesh, WHOLE), place(factors, mesh, DIVIDED)

    def replica(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.sum(w * x)
        total = jax.lax.psum(total, AXIS) if mesh.size > 1 else total
        return w - problems.EMPTY_RATE * total, total

    body = repeated(replica) if variant == "64 steps" else replica
    step = spmd(body, mesh, (WHOLE, DIVIDED), (WHOLE, WHOLE), donate=1)
    return carrying(step, w, x, variant)


def train(
    assignment: Assignment,
    variant: str,
    combine: Callable[[Sequence[jax.Array], int], list[jax.Array]] = packed_sum,
) -> Step:
    """W2, W3, W4 and W7."""
    if assignment.processes > 1 and not jax.distributed.is_initialized():
        jax.distributed.initialize(assignment.address, assignment.processes, assignment.rank)
    problem = problems.problem_of(assignment.workload, variant)
    mesh = mesh_of(assignment.replicas)
    loss_of, optimizer = models.loss_of(problem), models.optimizer_of(problem)
    params, slots, batch = start_of(problem, mesh)

    def replica(params: list[Any], slots: Any, *batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        updates, slots = optimizer.update(combine(gradients, mesh.size), slots, params)
        return optax.apply_updates(params, updates), slots, loss[None]

    specs = (WHOLE, WHOLE, *[DIVIDED] * len(batch))
    step = spmd(replica, mesh, specs, (WHOLE, WHOLE, DIVIDED), donate=2)
    state = [params, slots]

    def run() -> jax.Array:
        state[0], state[1], loss = step(*state, *batch)
        return loss

    return Step(run, read, wait_for)


def batches(assignment: Assignment, variant: str) -> Step:
    """W6: a copy of each batch, because the source keeps it; alone, or in front of a step."""
    mesh = mesh_of(assignment.replicas)
    make = sources.maker(variant)
    numbers = itertools.cycle(range(sources.NUM_BATCHES))
    divided = NamedSharding(mesh, DIVIDED)
    is_ours = variant in sources.SLOW

    def placed() -> jax.Array:
        array = make(next(numbers))
        host = array if is_ours else sources.aligned_copy(array)
        return jax.make_array_from_callback(host.shape, divided, lambda index: host[index])

    if variant == "batches":
        return Step(placed, sources.read_corner, wait_for)

    def replica(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(sources.loss)(w, x)
        total, gradient = jax.lax.psum((loss, gradient), AXIS)
        return w - sources.RATE * gradient / mesh.size, total / mesh.size

    step = spmd(replica, mesh, (WHOLE, DIVIDED), (WHOLE, WHOLE), donate=1)
    state = [place(sources.weights(), mesh, WHOLE)]

    def run() -> Any:
        state[0], loss = step(state[0], placed())
        return float(loss)  # the loop looks at its loss

    return Step(run, float)


def reduce(assignment: Assignment, variant: str) -> Step:
    """W8: psum everywhere, or the best way to one device."""
    mesh = mesh_of(assignment.replicas)
    size = problems.megabytes(variant)
    ones = np.ones((assignment.replicas * size,), np.float32)
    x = place(ones, mesh, DIVIDED)
    if variant.startswith("all_reduce"):
        step = spmd(lambda part: jax.lax.psum(part, AXIS), mesh, (DIVIDED,), WHOLE)
        return Step(lambda: step(x), read_first, wait_for)
    return Step(to_one_device(x), read_first, wait_for)


def to_one_device(x: jax.Array) -> Callable[[], jax.Array]:
    """A function that adds the shards of `x` on the first of their devices.

    With NumPy: the devices share their memory, and NumPy asks for large pages where XLA maps a
    new buffer page by page. A psum, or copies to one device and a sum there, take up to 6 times
    as long.
    """
    shards = [shard.data for shard in x.addressable_shards]
    (device,) = shards[0].devices()
    chunk = 2**16

    def add() -> jax.Array:
        parts = [np.from_dlpack(shard) for shard in jax.block_until_ready(shards)]
        out = sources.aligned(parts[0].shape, parts[0].dtype)
        for start in range(0, out.size, chunk):
            here = out[start : start + chunk]
            np.add(parts[0][start : start + chunk], parts[1][start : start + chunk], out=here)
            for part in parts[2:]:
                np.add(here, part[start : start + chunk], out=here)
        return jax.device_put(out, device)

    return add


def dispatch(assignment: Assignment, variant: str) -> Step:
    """W9 and W10: a step without computation, over so many variables and arguments."""
    if variant == "replicas":
        return empty_step(assignment, "dispatch")
    mesh = mesh_of(assignment.replicas)
    num_variables, num_arguments = sources.dispatch_sizes(variant)
    state = [[place(np.zeros(2, np.float32), mesh, WHOLE) for _ in range(num_variables)]]
    arguments = [
        place(np.ones(2 * mesh.size, np.float32), mesh, DIVIDED) for _ in range(num_arguments)
    ]

    def replica(variables: list[Any], arguments: list[Any]) -> tuple[list[Any], jax.Array]:
        del arguments[1:]
        return [v + 1.0 for v in variables], arguments[0]

    step = spmd(replica, mesh, (WHOLE, DIVIDED), (WHOLE, DIVIDED), donate=1)

    def run() -> jax.Array:
        state[0], out = step(state[0], arguments)
        return out

    return Step(run, lambda out: read_first(state[0][0]), wait_for)


STEPS = {
    "W1": empty_step,
    "W2": train,
    "W3": train,
    "W4": train,
    "W6": batches,
    "W7": train,
    "W8": reduce,
    "W9": batches,
    "W10": dispatch,
}
