"""Variants merged into one program give each replica what its own variant computes alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax.engine.trace.gather import gather_components
from replicax.engine.trace.lockstep import run_in_lockstep
from tests.engine.merging import (
    AXIS,
    DIM,
    KINDS,
    MIRRORED,
    NUM_REPLICAS,
    SIZES,
    make_components,
    run_merged,
    shard_map,
    trace,
)

Steps = Generator[Any, Any, list[Any]]


def run_apart(fns: Sequence[Callable[..., Steps]]) -> list[list[np.ndarray]]:
    """What each replica gets when it runs alone and hands over what it yields to be summed."""
    replicas = [fn(x, MIRRORED) for fn, x in zip(fns, make_components(), strict=True)]
    sent, results = None, [None] * NUM_REPLICAS
    while True:
        yielded = []
        for number, replica in enumerate(replicas):
            try:
                yielded.append(replica.send(sent))
            except StopIteration as end:
                results[number] = end.value
        if not yielded:
            return [[np.asarray(out) for out in result] for result in results]
        assert len(yielded) == NUM_REPLICAS
        sent = sum(yielded)


def in_one_trace(fn: Callable[..., Steps]) -> Callable[..., list[Any]]:
    """The same function with a psum for each yield."""

    def traced(x: jax.Array, m: jax.Array) -> list[Any]:
        steps = fn(x, m)
        sent = None
        try:
            while True:
                sent = lax.psum(steps.send(sent), AXIS)
        except StopIteration as end:
            return end.value

    return traced


def no_collective(x: Any, m: Any) -> Steps:
    return [jnp.sin(x) * m, x.sum(), jnp.float32(x.shape[0])]
    yield


def plain_sum(x: Any, m: Any) -> Steps:
    total = yield (x * m).sum(0)
    return [x + total, total * x.shape[0]]


def batch_norm(x: Any, m: Any) -> Steps:
    mean = x.mean(0) if x.shape[0] else jnp.zeros(DIM)
    total = yield x.sum(0)
    count = yield jnp.float32(x.shape[0])
    square = yield ((x - total / count) ** 2).sum(0)
    return [(x - total / count) / jnp.sqrt(square / count + 1e-5), mean, total / count]


def values_kept_for_later(x: Any, m: Any) -> Steps:
    early = jnp.cos(x)
    first = yield x.sum(0)
    second = yield first + m
    return [early + second, first, x]


def collective_of_an_input(x: Any, m: Any) -> Steps:
    total = yield m
    again = yield total
    return [again, total]


def only_collectives_decide(x: Any, m: Any) -> Steps:
    total = yield 2.0 * x.shape[0] + m
    return [total]


def reference_loop(x: Any, m: Any) -> Steps:
    carry, rows = m, []
    for _ in range(3):
        carry = (yield (x * carry).sum(0)) / 4 + x.shape[0]
        rows.append(carry * 2)
    return [carry, jnp.stack(rows)]


def scan_loop(x: Any, m: Any) -> list[Any]:
    def body(carry: Any, _: None) -> Any:
        carry = lax.psum((x * carry).sum(0), AXIS) / 4 + x.shape[0]
        return carry, carry * 2

    return list(lax.scan(body, m, None, length=3))


def jitted_scan_loop(x: Any, m: Any) -> list[Any]:
    return jax.jit(lambda x, m: jax.checkpoint(scan_loop)(x, m))(x, m)


def while_loop(x: Any, m: Any) -> list[Any]:
    def body(state: Any) -> Any:
        i, carry, rows = state
        carry = lax.psum((x * carry).sum(0), AXIS) / 4 + x.shape[0]
        return i + 1, carry, rows.at[i].set(carry * 2)

    start = (0, m, jnp.zeros((3, DIM)))
    return list(lax.while_loop(lambda state: state[0] < m[1] + 1, body, start)[1:])


def reference_rows(x: Any, m: Any) -> Steps:
    carry, rows = x[:0].sum(0), []
    for row in jnp.arange(8.0).reshape(4, DIM)[::-1]:
        carry = carry + (yield (x * row).sum(0))
        rows.append(x.sum() + carry)
    return [carry, jnp.stack(rows[::-1])]


def scan_over_rows(x: Any, m: Any) -> list[Any]:
    def body(carry: Any, row: Any) -> Any:
        carry = carry + lax.psum((x * row).sum(0), AXIS)
        return carry, x.sum() + carry

    rows = jnp.arange(8.0).reshape(4, DIM)
    return list(lax.scan(body, x[:0].sum(0), rows, reverse=True))


def reference_while(x: Any, m: Any) -> Steps:
    carry = x.sum()
    while True:
        total = yield carry + x.shape[0]
        if not total < 100:
            return [carry]
        carry = carry + (yield jnp.sin(carry) ** 2 + x.shape[0])


def while_with_collective_predicate(x: Any, m: Any) -> list[Any]:
    def test(carry: Any) -> Any:
        return lax.psum(carry + x.shape[0], AXIS) < 100

    def body(carry: Any) -> Any:
        return carry + lax.psum(jnp.sin(carry) ** 2 + x.shape[0], AXIS)

    return [lax.while_loop(test, body, x.sum())]


def reference_cond(x: Any, m: Any) -> Steps:
    total = yield x.sum(0)
    taken = (yield total * x.shape[0]) if m[0] > 0 else total
    other = total * 3 + x.sum()
    return [taken + x.sum(0), other]


def cond(x: Any, m: Any) -> list[Any]:
    total = lax.psum(x.sum(0), AXIS)
    taken = lax.cond(m[0] > 0, lambda: lax.psum(total * x.shape[0], AXIS), lambda: total)
    other = lax.cond(total[0] > 1e9, lambda: lax.psum(total, AXIS), lambda: total * 3 + x.sum())
    return [taken + x.sum(0), other]


def reference_gradient(x: Any, m: Any) -> Steps:
    def local(w: Any) -> Any:
        return (jnp.tanh(x * w)).sum()

    total = yield local(m)
    cotangent = yield 2 * total  # the gradient of psum is psum
    return [jax.grad(local)(m) * cotangent, total**2]


def gradient(x: Any, m: Any) -> list[Any]:
    def loss(w: Any) -> Any:
        return lax.psum(jnp.tanh(x * w).sum(), AXIS) ** 2

    value, slope = jax.value_and_grad(loss)(m)
    return [slope, value]


def reference_refs(x: Any, m: Any) -> Steps:
    held = m + (yield x.sum(0))
    own = x * 2 + held
    for _ in range(2):
        held = held + (yield own.sum(0))
        own = own + x.shape[0]
    for _ in range(x.shape[0]):
        held = held * 0.5
    return [held, own]


def refs(x: Any, m: Any) -> list[Any]:
    held = jax.new_ref(m)
    held[...] += lax.psum(x.sum(0), AXIS)
    own = jax.new_ref(x * 2 + held[...])

    def body(carry: int, _: None) -> Any:
        held[...] = held[...] + lax.psum(own[...].sum(0), AXIS)
        jax.ref.addupdate(own, ..., jnp.full_like(x, x.shape[0]))
        return carry, None

    def local(carry: int, _: None) -> Any:
        held[...] = held[...] * 0.5
        return carry, None

    lax.scan(body, 0, None, length=2)
    lax.scan(local, 0, None, length=x.shape[0])
    return [held[...], jax.freeze(own)]


def reference_random(x: Any, m: Any) -> Steps:
    key = jax.random.fold_in(jax.random.key(7), x.shape[0])
    total = yield x.sum(0)
    return [jax.random.normal(key, (2,)) + total]


def same(reference: Callable[..., Steps]) -> tuple[Any, Any]:
    return in_one_trace(reference), reference


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Steps]]] = {
    "no collective": same(no_collective),
    "a sum between different shapes": same(plain_sum),
    "batch norm": same(batch_norm),
    "values kept for later": same(values_kept_for_later),
    "a collective of an input and of a result": same(collective_of_an_input),
    "a collective of a constant": same(only_collectives_decide),
    "scan": (scan_loop, reference_loop),
    "scan in checkpoint in jit": (jitted_scan_loop, reference_loop),
    "scan over rows backwards": (scan_over_rows, reference_rows),
    "while": (while_loop, reference_loop),
    "while with a collective in its predicate": (while_with_collective_predicate, reference_while),
    "cond": (cond, reference_cond),
    "a gradient through a sum": (gradient, reference_gradient),
    "Refs": (refs, reference_refs),
    "a random key kept for later": same(reference_random),
}


@pytest.mark.parametrize("case", CASES)
def test_a_merged_program_equals_every_replica_on_its_own(case: str) -> None:
    fn, reference = CASES[case]
    merged = run_merged([fn] * 3, make_components(), KINDS)
    apart = run_apart([reference] * NUM_REPLICAS)
    for got, expected in zip(merged, apart, strict=True):
        for a, b in zip(got, expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_each_replica_may_have_a_variant_of_its_own() -> None:
    def variant(replica: int) -> Callable[..., Steps]:
        def fn(x: Any, m: Any) -> Steps:
            scaled = x * (replica + 1) if replica % 2 else jnp.sin(x)
            total = yield scaled.sum(0)
            return [total + replica, m * replica, scaled]

        return fn

    fns = [variant(replica) for replica in range(NUM_REPLICAS)]
    merged = run_merged([in_one_trace(fn) for fn in fns], make_components(), range(NUM_REPLICAS))
    for got, expected in zip(merged, run_apart(fns), strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_loop_that_would_never_end_on_another_kinds_data_is_not_run_there() -> None:
    def fn(x: Any, m: Any) -> list[Any]:
        # Each component is all ones: this ends at 10 there, and never for zeros.
        local = lax.while_loop(lambda c: (c < 10).any(), lambda c: c + x, x)
        return [lax.psum(local.sum(), AXIS)]

    components = [np.ones((size, DIM), np.float32) for size in SIZES]
    merged = run_merged([fn] * 3, components, KINDS)
    np.testing.assert_allclose([row[0] for row in merged], 10.0 * DIM * sum(SIZES))


def test_shared_outputs_are_the_replicas_own_value_once() -> None:
    merged = run_merged([in_one_trace(plain_sum)] * 3, make_components(), KINDS, [1])
    for got, expected in zip(merged, run_apart([plain_sum] * NUM_REPLICAS), strict=True):
        np.testing.assert_allclose(got[1], expected[1], rtol=2e-5)


def test_a_single_variant_needs_no_switch() -> None:
    components = [np.full((2, DIM), 1.0 + replica, np.float32) for replica in range(NUM_REPLICAS)]
    fn = in_one_trace(plain_sum)
    merged = run_merged([fn], components, [0] * NUM_REPLICAS)
    np.testing.assert_allclose(merged[3][0], components[3] + 20 * MIRRORED)


def test_refs_of_equal_variables_are_shared_by_the_variants() -> None:
    def fn(x: Any, m: Any) -> list[Any]:
        ref = jax.new_ref(m)
        ref[...] = ref[...] + lax.psum(x.sum(0), AXIS)
        return [ref[...]]

    traced = [trace(fn, component)[0] for component in make_components()[1:]]

    def body(a: Any, b: Any, c: Any, m: Any) -> Any:
        return run_in_lockstep(traced, [[a, m], [b, m], [c, m]], KINDS, axis=AXIS)

    stacks = [np.zeros((NUM_REPLICAS, size, DIM), np.float32) for size in SIZES[1:]]
    (eqn,) = jax.make_jaxpr(shard_map(body, 3))(*stacks, MIRRORED).eqns
    names = [inner.primitive.name for inner in eqn.params["jaxpr"].eqns]
    assert names.count("new_ref") == 1
    assert names.count("psum") == 1


def test_a_loop_keeps_its_direction_its_length_and_how_it_is_unrolled() -> None:
    def fn(x: Any, m: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            return carry + lax.psum((x * row).sum(0), AXIS), None

        return lax.scan(body, m, jnp.ones((6, DIM)), reverse=True, unroll=2)[0]

    traced = [trace(lambda x, m: [fn(x, m)], component)[0] for component in make_components()[1:]]

    def body(a: Any, b: Any, c: Any, m: Any) -> Any:
        return run_in_lockstep(traced, [[a, m], [b, m], [c, m]], KINDS, axis=AXIS)

    stacks = [np.zeros((NUM_REPLICAS, size, DIM), np.float32) for size in SIZES[1:]]
    (eqn,) = jax.make_jaxpr(shard_map(body, 3))(*stacks, MIRRORED).eqns
    (loop,) = (e for e in eqn.params["jaxpr"].eqns if e.primitive.name == "scan")
    assert [loop.params[name] for name in ("reverse", "length", "unroll")] == [True, 6, 2]


def test_uneven_components_are_gathered_with_their_true_shapes_and_gradients() -> None:
    kind_shapes = tuple((SIZES[KINDS.index(kind)], DIM) for kind in range(3))

    def fn(x: Any, m: Any) -> list[Any]:
        def loss(x: Any) -> Any:
            parts = gather_components(x, kind_shapes=kind_shapes, kind_of_replica=KINDS, axis=AXIS)
            # Each replica weighs all of them by its own number of rows plus one.
            return (jnp.concatenate(parts) ** 2).sum() * (x.shape[0] + 1)

        parts = gather_components(x, kind_shapes=kind_shapes, kind_of_replica=KINDS, axis=AXIS)
        return [*parts, jax.grad(loss)(x)]

    components = make_components()
    for replica, (*parts, slope) in enumerate(run_merged([fn] * 3, components, KINDS)):
        for part, component in zip(parts, components, strict=True):
            np.testing.assert_array_equal(part, component)
        weight = sum(size + 1 for size in SIZES)
        np.testing.assert_allclose(slope, 2 * components[replica] * weight, rtol=1e-5)


def test_components_of_different_rank_are_not_gathered() -> None:
    text = r"shape \(3, 2\) cannot be gathered with components of shapes \(\(3, 2\), \(3,\)\)"
    with pytest.raises(ValueError, match=text):
        gather_components(
            jnp.ones((3, 2)), kind_shapes=((3, 2), (3,)), kind_of_replica=(0, 1), axis=AXIS
        )
