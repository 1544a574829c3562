"""How many random programs are run, and how a seed becomes programs.

A seed stands for `PER_SEED` programs: Hypothesis draws them from it, always the same ones while
`drawing` stays as it is. A failure names its seed, and prints the smallest program that Hypothesis
finds to fail alike.
"""

from __future__ import annotations

import time

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

from tests.random_programs.bounded import Rejected
from tests.random_programs.execution import Difference, check
from tests.random_programs.programs import programs
from tests.random_programs.source import Source

PER_SEED = 10
QUICK_CASES = 200
FULL_CASES = 5000
NUM_SHARDS = 20
SHRINK_SECONDS = 60


class DrawnFromSeed(HypothesisProvider):
    """Draws no constants out of the source of this project, which changes with every repair."""

    def _maybe_draw_constant(self, *args, **kwargs):
        return None


AVAILABLE_PROVIDERS["drawn from seed"] = DrawnFromSeed


class Finding(AssertionError):
    """A program that the library gets wrong."""


def seeds_of(shard, *, is_full):
    """The seeds of one of the shards; the full run has those of the quick one and more."""
    num_seeds = (FULL_CASES if is_full else QUICK_CASES) // PER_SEED
    return range(shard, num_seeds, NUM_SHARDS)


def run_seed(seed, *, shrink=True, ignored=lambda text: False):
    """Runs the programs of one seed and returns how many.

    Args:
        seed: A number.
        shrink: Whether a failing program is made smaller, for `SHRINK_SECONDS` at most.
        ignored: Whether a difference, given its text, is known and passed over.

    Raises:
        Finding: If one of them fails.
    """
    count = 0
    failed: dict = {}
    time_is_up = float("inf")

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=PER_SEED,
        backend="drawn from seed",
        database=None,
        deadline=None,
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(programs())
    def run(program):
        nonlocal count, time_is_up
        if program not in failed and time.monotonic() < time_is_up:
            difference = _difference(program)
            if difference is not None and not ignored(str(difference)):
                failed[program] = described(seed, program, difference)
                time_is_up = min(time_is_up, time.monotonic() + SHRINK_SECONDS)
        if program in failed:  # one line for the first time and for repetitions: one failure
            raise Finding(failed[program])
        count += 1

    run()
    return count


def _difference(program):
    """What is wrong with the program, or None."""
    try:
        check(program)
    except Rejected:
        hypothesis.reject()
    except Difference as difference:
        return difference
    return None


def described(seed, program, difference):
    """What a failure prints: what differs, how to see it again, and a program to run."""
    again = f"python -m tests.random_programs --seed {seed} --count 1"
    facts = f"# N = {program.num_replicas}, steps:\n"
    facts += "".join(f"#   {step}, batch {step.examples()}\n" for step in program.steps)
    facts += f"# argument as {program.argument}, executors {program.executors}\n"
    return f"{difference}\nAgain: {again}\n{facts}{Source(program).text()}"
