"""Runs random programs for a given time: ``python -m tests.random_programs --minutes 120``.

A finding is printed and written to a file, with its seed; ``--seed N --count 1`` runs the programs
of that seed again.
"""

import argparse
import gc
import re
import sys
import time
import traceback

import jax

import conftest  # noqa: F401  # gives the devices; before any backend starts
from tests.random_programs.cases import run_seed

SEEDS_BETWEEN_CLEARINGS = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, help="how many seeds; without it, until the time is up"
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--findings", default="findings.txt", help="where findings are written")
    parser.add_argument("--no-shrink", action="store_true", help="print programs as drawn")
    parser.add_argument("--ignore", action="append", default=[], help="a pattern of known findings")
    options = parser.parse_args()

    def ignored(text):
        return any(re.search(pattern, text) for pattern in options.ignore)

    start = told = time.monotonic()
    seed, num_programs, num_findings = options.seed, 0, 0
    while time.monotonic() - start < 60 * options.minutes:
        if options.count is not None and seed >= options.seed + options.count:
            break
        try:
            num_programs += run_seed(seed, shrink=not options.no_shrink, ignored=ignored)
        except Exception:  # also a bug of the generator itself is worth a line
            num_findings += 1
            text = f"==== seed {seed}\n{_last_error()}\n"
            print(text, flush=True)
            with open(options.findings, "a", encoding="utf-8") as file:
                file.write(text)
        seed += 1
        if (seed - options.seed) % SEEDS_BETWEEN_CLEARINGS == 0:
            jax.clear_caches()
            gc.collect()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            minutes = (told - start) / 60
            print(
                f"{minutes:.0f} min: next seed {seed}, {num_programs} programs, "
                f"{num_findings} findings",
                flush=True,
            )
    print(f"seeds {options.seed} to {seed - 1}: {num_programs} programs, {num_findings} findings")
    return 1 if num_findings else 0


def _last_error():
    """The finding alone, or the whole traceback of anything else."""
    error = sys.exc_info()[1]
    return str(error) if type(error).__name__ == "Finding" else traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
