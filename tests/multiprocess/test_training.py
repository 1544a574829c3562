"""Training and input on several workers give what one worker gives."""

import json

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess import training
from tests.multiprocess.clusters import EACH_LAYOUT, LAYOUTS, require_success, run_workers

SECONDS = 300

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def alone():
    """The same on one device."""
    strategy = rx.MirroredStrategy(["CPU:0"])
    return {name: training.train(strategy, make) for name, make in training.OPTIMIZERS.items()}


@pytest.fixture(scope="module", params=EACH_LAYOUT)
def cluster(request, tmp_path_factory):
    """What each worker of a cluster has found, and how many replicas it has."""
    folder = tmp_path_factory.mktemp("texts")
    training.write_files(folder)
    num_workers, num_devices = LAYOUTS[request.param]
    ended = run_workers(
        ["-m", "tests.multiprocess.training", str(folder)],
        num_workers,
        num_devices,
        tmp_path_factory.mktemp("workers"),
        seconds=SECONDS,
    )
    require_success(ended)
    found = []
    for worker in ended:
        (line,) = [line for line in worker.output.splitlines() if line.startswith("found ")]
        found.append(json.loads(line.removeprefix("found ")))
    return found, num_workers, num_devices


def close(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return np.all(np.abs(one - other) <= 1e-5 * np.maximum(1, np.abs(other)))


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
def test_training_gives_what_one_device_gives(cluster, alone, optimizer):
    found, *_ = cluster
    for worker in found:
        for name, value in alone[optimizer].items():
            assert close(worker[optimizer][name], value), name


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
def test_all_workers_end_with_the_same_bits(cluster, optimizer):
    found, *_ = cluster
    assert all(worker[optimizer] == found[0][optimizer] for worker in found)


def test_each_worker_has_its_own_replicas_and_one_is_the_chief(cluster):
    found, num_workers, num_devices = cluster
    assert [worker["place"][0] for worker in found] == [True] + [False] * (num_workers - 1)
    replicas = [replica for worker in found for replica in worker["place"][1]]
    assert replicas == list(range(num_workers * num_devices))


def test_the_sequence_of_global_batches_is_that_of_one_worker(cluster):
    found, *_ = cluster
    whole = np.arange(23)
    shuffled = [batch.tolist() for batch in rx.data.Dataset.range(23).shuffle(23, seed=3).batch(8)]
    lines = [list(range(20))[start : start + 4] for start in range(0, 20, 4)]
    for worker in found:
        steps = {name: [step[0] for step in rows] for name, rows in worker["datasets"].items()}
        assert steps["arrays"] == [whole[start : start + 8].tolist() for start in (0, 8, 16)]
        assert steps["shuffled"] == shuffled
        assert steps["DATA"] == lines


def test_the_parts_of_the_workers_are_the_global_batch(cluster):
    found, *_ = cluster
    for name in found[0]["datasets"]:
        for rows in zip(*(worker["datasets"][name] for worker in found), strict=True):
            whole = rows[0][0]
            parts = [number for _, local in rows for part in local for number in part]
            assert parts == whole


def test_files_are_divided_and_every_line_is_read_once(cluster):
    found, num_workers, _ = cluster
    own = [
        [number for _, local in worker["datasets"]["FILE"] for part in local for number in part]
        for worker in found
    ]
    assert sorted(number for numbers in own for number in numbers) == list(range(20))
    starts = np.cumsum([0] + [index + 2 for index in range(training.NUM_FILES)])
    for worker_id, numbers in enumerate(own):
        files = range(worker_id, training.NUM_FILES, num_workers)
        expected = [n for f in files for n in range(starts[f], starts[f + 1])]
        assert sorted(numbers) == expected


@pytest.mark.parametrize("policy", ["OFF", "HINT"])
def test_without_sharding_every_worker_reads_everything(cluster, policy):
    found, *_ = cluster
    for worker in found:
        rows = worker["datasets"][policy]
        assert sorted(n for _, local in rows for part in local for n in part) == list(range(20))


def test_pipelines_of_different_lengths_end_together_and_lose_nothing(cluster):
    found, num_workers, num_devices = cluster
    steps = found[0]["from function"]
    assert all(worker["from function"] == steps for worker in found)
    expected = sorted(10 * w + i for w in range(num_workers) for i in range(2 + w) for _ in "ab")
    assert sorted(number for step in steps for number in step) == expected
    assert len(steps) == -(-(1 + num_workers) // num_devices)


def test_predictions_come_in_the_order_of_the_input(cluster):
    found, *_ = cluster
    x, _ = training.examples()
    for worker in found:
        np.testing.assert_allclose(worker["predicted"], x.sum(1), rtol=1e-5)


def test_every_replica_of_all_workers_has_a_random_key_of_its_own(cluster):
    found, num_workers, num_devices = cluster
    keys = np.asarray(found[0]["keys"]).reshape(num_workers * num_devices, -1)
    assert len({tuple(key) for key in keys}) == num_workers * num_devices
    assert all(worker["keys"] == found[0]["keys"] for worker in found)
