"""What the soak takes for a leak: one thread or descriptor in each attempt, no unlucky samples."""

import collections
import random

import pytest

from tests import soak

ATTEMPTS = 30


def samples(rng, leak):
    """Of a launch whose every third sample of a worker has what lasts as long as a save."""
    found = collections.defaultdict(list)
    for attempt in range(1, ATTEMPTS + 1):
        count = rng.randint(soak.LEAST_SAMPLES, 50)
        leaks_at = rng.randint(count // 3, count - count // 3)
        for number in range(count):
            more = int(rng.random() < 1 / 3)
            leaked = int(number >= leaks_at)
            found[attempt, "worker 0"].append(
                soak.Sample(
                    300.0,
                    40 + more + leaked * (leak == "threads"),
                    60 + 2 * more + leaked * (leak == "descriptors"),
                )
            )
            found[0, "launcher"].append(soak.Sample(100.0, 9, 30 + attempt * (leak == "launcher")))
    return found


@pytest.mark.parametrize("leak", [None, "threads", "descriptors", "launcher"])
def test_a_leak_in_each_attempt_is_found_and_unlucky_samples_are_none(leak):
    rng = random.Random(2)
    for _ in range(20):
        assert soak.is_flat(soak.growths(samples(rng, leak))) == (leak is None)


def test_a_single_attempt_whose_memory_grows_is_found():
    rng = random.Random(2)
    found = samples(rng, None)
    row = found[7, "worker 0"]
    found[7, "worker 0"] = [
        soak.Sample(300.0 + number, each.threads, each.descriptors)
        for number, each in enumerate(row)
    ]
    assert not soak.is_flat(soak.growths(found))
