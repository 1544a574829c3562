"""What an eager run cannot do says so, and ``function`` around it can."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import replicax as rx


def all_reduce(x):
    return rx.get_replica_context().all_reduce("SUM", x)


def all_gather(x):
    return rx.get_replica_context().all_gather(x[None], axis=0).sum()


def merge_call(x):
    merge_fn = lambda s, v: s.reduce("SUM", v, axis=None)  # noqa: E731
    return rx.get_replica_context().merge_call(merge_fn, args=(x,))


MEETINGS = {f.__name__: f for f in (all_reduce, all_gather, merge_call)}

PLACES = {
    "scan": lambda meet, x: lax.scan(lambda c, _: (meet(c), None), x, length=2)[0],
    "fori": lambda meet, x: lax.fori_loop(0, 2, lambda i, c: meet(c), x),
    "cond": lambda meet, x: lax.cond(True, meet, lambda x: x, x),
    "switch": lambda meet, x: lax.switch(1, [lambda x: x, meet], x),
    "while": lambda meet, x: lax.while_loop(lambda c: c < 1.0, lambda c: meet(c) + 1.0, x * 0.0),
    "jit": lambda meet, x: jax.jit(meet)(x),
    "checkpoint": lambda meet, x: jax.checkpoint(meet)(x),
    "vmap": lambda meet, x: jax.vmap(meet)(jnp.stack([x, x])).sum(),
    "grad of jit": lambda meet, x: jax.grad(jax.jit(meet))(x),
}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("place", PLACES)
def test_a_meeting_inside_a_trace_is_refused_by_an_eager_run(distributed, eager, place, meeting):
    def replica_fn(x):
        return PLACES[place](MEETINGS[meeting], x)

    with pytest.raises(RuntimeError, match=rf"{meeting} was reached inside .*replicax\.function"):
        eager(distributed, replica_fn, args=(jnp.ones(()),))
    assert float(eager(distributed, all_reduce, args=(1.0,))) == distributed.num_replicas_in_sync


@pytest.mark.parametrize("place", ["scan", "cond", "jit"])
def test_an_aggregated_assign_inside_a_trace_is_refused_by_an_eager_run(distributed, eager, place):
    with distributed.scope():
        variable = rx.Variable(1.0, aggregation=rx.VariableAggregation.SUM)

    def write(x):
        variable.assign_add(x)
        return x

    with pytest.raises(RuntimeError, match=r"replicax\.function"):
        eager(distributed, lambda x: PLACES[place](write, x), args=(jnp.ones(()),))
    assert float(variable.read_value()) == 1.0


def test_merge_call_under_grad_is_refused_by_an_eager_run(distributed, eager):
    with pytest.raises(RuntimeError, match=r"merge_call was reached inside jax\.grad"):
        eager(distributed, jax.grad(merge_call), args=(jnp.ones(()),))
    assert float(eager(distributed, all_reduce, args=(1.0,))) == distributed.num_replicas_in_sync


@pytest.mark.parametrize("place", ["scan", "fori", "cond", "switch", "while", "jit", "checkpoint"])
def test_meetings_inside_a_trace_work_when_compiled(strategy, compiled, place):
    count = strategy.num_replicas_in_sync

    def replica_fn(x):
        return jnp.stack([PLACES[place](meet, x) for meet in MEETINGS.values()])

    expected = {"scan": count**2, "fori": count**2, "while": 1.0}.get(place, count)
    result = compiled(strategy, replica_fn, args=(jnp.ones(()),))
    for component in strategy.experimental_local_results(result):
        assert component.tolist() == [float(expected)] * len(MEETINGS)


def test_a_run_inside_a_transformation_of_the_user_is_refused(distributed):
    with pytest.raises(RuntimeError, match=r"inside a JAX transformation.*replicax\.function"):
        jax.jit(lambda x: distributed.run(lambda y: y, args=(x,)))(1.0)
    assert float(distributed.run(all_reduce, args=(1.0,))) == distributed.num_replicas_in_sync
