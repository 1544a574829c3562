"""Traces variants of a replica function as the library does, and runs them merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from replicax.engine.analysis.varying import analyse
from replicax.engine.trace.lockstep import run_in_lockstep

AXIS = "replica"
NUM_REPLICAS = 4
SIZES = (3, 3, 2, 0)  # of the components: three kinds, one of them empty
KINDS = (0, 0, 1, 2)
DIM = 2
MIRRORED = np.arange(1.0, 1.0 + DIM, dtype=np.float32)


def make_mesh() -> Mesh:
    return jax.make_mesh((NUM_REPLICAS,), (AXIS,), axis_types=(AxisType.Auto,))


def make_components() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(size, DIM)).astype(np.float32) for size in SIZES]


def shard_map(body: Callable[..., Any], num_mapped: int) -> Callable[..., Any]:
    """``body`` on every replica; ``num_mapped`` stacked arguments, then one mirrored."""
    specs = (*[P(AXIS)] * num_mapped, P())
    return jax.shard_map(
        body,
        mesh=make_mesh(),
        in_specs=specs,
        out_specs=P(AXIS),
        axis_names={AXIS},
        check_vma=False,
    )


def trace(fn: Callable[..., Any], component: np.ndarray) -> tuple[Any, list[Any]]:
    """The jaxpr of ``fn(x, m)`` on one replica, and its inputs: "x", "m" or a constant."""

    def body(x: jax.Array, m: jax.Array) -> Any:
        return jax.tree.map(lambda out: jnp.asarray(out)[None], fn(x[0], m))

    stacked = np.broadcast_to(component, (NUM_REPLICAS, *component.shape))
    outer = jax.make_jaxpr(shard_map(body, 1))(stacked, MIRRORED)
    (eqn,) = outer.eqns
    known = dict(zip(outer.jaxpr.constvars, outer.consts, strict=True))
    known.update(zip(outer.jaxpr.invars, ("x", "m"), strict=True))
    return jex_core.ClosedJaxpr(eqn.params["jaxpr"], ()), [known[var] for var in eqn.invars]


def run_merged(
    fns: Sequence[Callable[..., Any]],
    components: Sequence[np.ndarray],
    kinds: Sequence[int],
    shared_outputs: Sequence[int] = (),
) -> list[list[np.ndarray]]:
    """What each replica gets from the merged program of ``fns``, one for each kind."""
    examples = [components[kinds.index(kind)] for kind in range(len(fns))]
    traced = [trace(fn, example) for fn, example in zip(fns, examples, strict=True)]
    for closed, sources in traced:  # as in real use: refuses what would hang
        analyse(closed.jaxpr, [source == "x" for source in map(str, sources)], axis=AXIS)
    stacks = []
    for kind, example in enumerate(examples):
        stack = np.zeros((NUM_REPLICAS, *example.shape), example.dtype)
        for replica in range(NUM_REPLICAS):
            if kinds[replica] == kind:
                stack[replica] = components[replica]
        stacks.append(stack)

    def body(*args: jax.Array) -> Any:
        *xs, m = args
        inputs = []
        for (_, sources), x in zip(traced, xs, strict=True):
            named = {"x": x, "m": m}
            inputs.append([named[s] if isinstance(s, str) else s for s in sources])
        variants = [closed for closed, _ in traced]
        outs = run_in_lockstep(variants, inputs, kinds, axis=AXIS, shared_outputs=shared_outputs)
        for row in outs[1:]:
            assert all(row[position] is outs[0][position] for position in shared_outputs)
        return outs

    merged = jax.jit(shard_map(body, len(fns)))(*stacks, MIRRORED)
    for kind, row in enumerate(merged):
        for position, out in enumerate(row):
            for replica in range(NUM_REPLICAS):
                if kinds[replica] != kind and position not in shared_outputs:
                    assert not np.asarray(out[replica]).any()
    return [
        [np.asarray(out[replica]) for out in merged[kinds[replica]]]
        for replica in range(NUM_REPLICAS)
    ]
