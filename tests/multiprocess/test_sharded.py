"""The state of a training that is split over the replicas of several workers."""

import json

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess import sharded, training
from tests.multiprocess.clusters import EACH_LAYOUT, LAYOUTS, require_success, run_workers
from tests.multiprocess.test_training import close

SECONDS = 300

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def alone():
    """The same on one device, with nothing split."""
    return training.train(rx.MirroredStrategy(["CPU:0"]), sharded.optimizer)


@pytest.fixture(scope="module", params=EACH_LAYOUT)
def cluster(request, tmp_path_factory):
    """What each worker of a cluster has found, and where the checkpoint is."""
    folder = tmp_path_factory.mktemp("checkpoints")
    ended = run_workers(
        ["-m", "tests.multiprocess.sharded", str(folder)],
        *LAYOUTS[request.param],
        tmp_path_factory.mktemp("workers"),
        seconds=SECONDS,
    )
    require_success(ended)
    lines = [line for w in ended for line in w.output.splitlines() if line.startswith("found ")]
    return [json.loads(line.removeprefix("found ")) for line in lines], folder


@pytest.mark.parametrize("stage", sharded.STAGES)
def test_training_gives_what_one_device_gives(cluster, alone, stage):
    found, _ = cluster
    for worker in found:
        for name, value in alone.items():
            assert close(worker[str(stage)][name], value), name
    assert all(worker[str(stage)] == found[0][str(stage)] for worker in found)


def test_every_replica_stores_its_part_only(cluster):
    found, _ = cluster
    parts = [part for worker in found for part in worker["parts"]]
    size = -(-7 // len(parts))
    assert parts == [list(range(7))[i * size : (i + 1) * size] for i in range(len(parts))]
    assert [stop - start for w in found for start, stop in w["bounds"]] == list(map(len, parts))


def test_a_checkpoint_has_the_whole_and_restores_it(cluster):
    found, folder = cluster
    for worker in found:
        values = worker["saved"]
        assert values == found[0]["saved"]
        assert values["assigned"] == [0.0] * 7
        assert values["restored"] == values["at save"]
        assert values["again"] == values["later"]
    with rx.OneDeviceStrategy("CPU:0").scope():
        w = rx.Variable(np.zeros(7, np.float32), name="w")
    rx.Checkpoint(w=w).read(str(folder / "split")).expect_partial()
    assert w.numpy().tolist() == found[0]["saved"]["at save"]


def test_an_eager_run_reads_the_whole(cluster):
    found, _ = cluster
    num_replicas = sum(len(worker["parts"]) for worker in found)
    assert [worker["eager"] for worker in found] == [21.0 * num_replicas] * len(found)


def test_one_worker_alone_may_look_at_what_it_stores(cluster):
    found, _ = cluster
    last = found[0]["bounds"][-1][1]
    assert f"of which elements 0 to {last} are here" in found[0]["repr"]
    assert f"[0:{found[0]['bounds'][0][1]}] on" in found[0]["drawing"]
