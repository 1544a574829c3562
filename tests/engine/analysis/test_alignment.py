"""Variants that do not meet at the same collectives are refused, with the lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from replicax.core.errors import ReplicaxError
from replicax.engine.analysis.alignment import LockstepError
from tests.engine.merging import AXIS, KINDS, make_components, run_merged


def by_size(**choices: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does one thing for 3 rows and another for fewer."""
    return lambda x, m: choices["full" if x.shape[0] == 3 else "short"](x, m)


def psum(value: Any) -> Any:
    return lax.psum(value, AXIS)


def looped(length: int) -> Callable[..., Any]:
    return lambda x, m: [lax.scan(lambda c, _: (psum(c), None), m, None, length=length)[0]]


MISMATCHES: dict[str, tuple[Callable[..., Any], str]] = {
    "another primitive": (
        by_size(full=lambda x, m: [psum(m)], short=lambda x, m: [lax.pmax(m, AXIS)]),
        r"Replica kind 0 calls psum of float32\[2\] at .*test_alignment.py:\d+, but replica kind 1 "
        r"calls pmax of float32\[2\] at .*test_alignment.py:\d+ there. All replicas must call the "
        r"same collectives with the same shapes in the same order",
    ),
    "another shape": (lambda x, m: [psum(x)], r"psum of float32\[3,2\] .* psum of float32\[2,2\]"),
    "one more on kind 0": (
        by_size(full=lambda x, m: [psum(m)], short=lambda x, m: [m]),
        "Replica kind 0 calls psum .* but replica kind 1 ends without it. All replicas must",
    ),
    "one more on kind 1": (
        by_size(full=lambda x, m: [m], short=lambda x, m: [psum(m)]),
        "Replica kind 1 calls psum .* but replica kind 0 ends without it. All replicas must",
    ),
    "another nesting": (
        by_size(full=looped(1), short=lambda x, m: [psum(m)]),
        "calls scan of length 1 at .* calls psum of",
    ),
    "another number of rounds": (
        by_size(full=looped(3), short=looped(2)),
        "scan of length 3 at .* scan of length 2 at",
    ),
    "other parameters": (
        by_size(
            full=lambda x, m: [lax.ppermute(m, AXIS, [(0, 1)])],
            short=lambda x, m: [lax.ppermute(m, AXIS, [(1, 0)])],
        ),
        "calls ppermute .* calls ppermute",
    ),
    "a predicate on the shape": (
        lambda x, m: [lax.cond(jnp.array(x.shape[0]) > 2, lambda: psum(m), lambda: m)],
        r"predicate of the cond at .*test_alignment.py:\d+ on replica kind 0 is not the one at .* "
        r"compute the predicate from values that are equal on all replicas",
    ),
    "a number of rounds that depends on the shape": (
        lambda x, m: [lax.while_loop(lambda c: c[0] < x.shape[0], lambda c: psum(c) + 1, m)],
        "predicate of the while at",
    ),
    "a predicate that differs from the second round": (
        lambda x, m: [lax.while_loop(lambda c: c[0] < 9.0, lambda c: psum(c) + x.shape[0], m)],
        "predicate of the while at",
    ),
    "a linear solve": (
        lambda x, m: [
            lax.custom_linear_solve(psum, m, lambda _, b: psum(b), symmetric=True) * x.shape[0]
        ],
        "custom_linear_solve at .* contains a collective, which cannot be merged",
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_variants_that_do_not_meet_are_refused(case: str) -> None:
    fn, text = MISMATCHES[case]
    with pytest.raises(LockstepError, match=text) as caught:
        run_merged([fn] * 3, make_components(), KINDS)
    assert isinstance(caught.value, ReplicaxError)
    assert isinstance(caught.value, ValueError)
