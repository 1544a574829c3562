"""Traces a function with a frame of its own, and runs what was traced."""

import dataclasses

import jax
import jax.numpy as jnp

from replicax.engine.trace.frame import Frame
from replicax.jax_internals.programs import eval_jaxpr, sub_jaxprs


@dataclasses.dataclass(frozen=True, eq=False)
class Key:
    name: str = "state"
    local_shape: tuple = ()
    dtype: object = jnp.float32
    per_replica: bool = False
    num_replicas: int = 2

    @property
    def global_shape(self):
        return (self.num_replicas, *self.local_shape) if self.per_replica else self.local_shape


def trace(fn, *args, in_replica=False):
    """The frame, and the program over state, then arguments; writes, then results."""
    frame = Frame(in_replica=in_replica)

    def traced(*args):
        with frame.tracing():
            result = fn(frame, *args)
            return frame.written_values(), result

    closed = jax.make_jaxpr(traced)(*args)
    return frame, frame.program(closed.jaxpr), closed.consts


def run(fn, state, *args):
    frame, jaxpr, consts = trace(fn, *args)
    outs = eval_jaxpr(jaxpr, consts, *(state[key] for key in frame.entered), *args)
    count = len(frame.written)
    return dict(zip(frame.written, outs[:count], strict=True)), outs[count:]


def primitives(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in sub_jaxprs(eqn.params):
            yield from primitives(inner)


def num_refs(jaxpr):
    return sum(name in ("new_ref", "ref", "mutable_array") for name in primitives(jaxpr))
