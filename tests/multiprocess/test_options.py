"""Each field of `CommunicationOptions` has an effect that can be seen between workers."""

import pytest

from tests.multiprocess.clusters import Workers, require_success, run_workers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

SECONDS = 240


def bits_of(num_workers, num_devices, folder):
    command = ["-m", "tests.multiprocess.options", "bits"]
    ended = run_workers(command, num_workers, num_devices, folder, seconds=SECONDS)
    require_success(ended)
    found = {
        line for worker in ended for line in worker.output.splitlines() if line.startswith("bits ")
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.slow
def test_deterministic_training_has_the_same_bits_in_every_layout(tmp_path):
    assert bits_of(1, 4, tmp_path) == bits_of(2, 2, tmp_path) == bits_of(4, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, 12])
def test_the_timeout_is_how_long_a_collective_waits_for_a_worker_that_is_alive(tmp_path, limit):
    command = ["-m", "tests.multiprocess.options", "timeout", str(limit)]
    with Workers(command, 2, 1, tmp_path) as workers:
        workers.processes[0].wait(SECONDS)
        (line,) = [line for line in workers.output(0).splitlines() if line.startswith("raised ")]
        assert workers.processes[1].poll() is None
    _, seconds, _ = line.removeprefix("raised ").split(" ", 2)
    assert limit - 1 <= float(seconds) <= limit + 8
