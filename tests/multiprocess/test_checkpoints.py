"""Checkpoints that several workers save and restore together, with real processes."""

import json
import os
import pathlib
import random
import re
import signal

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.latest import latest_checkpoint
from tests.checkpoint.mid_save import half_written, stop_in_mid_save
from tests.multiprocess.checkpoint_programs import Model, start
from tests.tiers import full_only

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all workers share, with a checkpoint that this process has written."""
    folder = tmp_path_factory.mktemp("shared")
    model = Model(rx.MirroredStrategy(), with_none=False)
    model.step()
    model.checkpoint(epoch=5).save(folder / "one_process/ckpt")
    (folder / "expected").write_text(json.dumps(model.values()))
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """The values in every checkpoint that is restored under another layout."""
    return json.loads((folder / "expected").read_text())


@pytest.fixture(scope="module")
def round_trip(folder):
    """What the two workers with two devices each have found."""
    with start("round_trip", folder, num_workers=2, num_devices=2) as cluster:
        return cluster.results()


@pytest.fixture(scope="module")
def other_layout(folder, round_trip):
    """What three workers with one device each have found after them."""
    with start("other_layout", folder, num_workers=3) as cluster:
        return cluster.results()


def same_on_all(results, name):
    first, *others = [result[name] for result in results]
    assert all(other == first for other in others), [first, *others]
    return first


# -- saved and restored by two workers -----------------------------------------------------------


def test_all_workers_get_the_path_of_a_checkpoint_that_is_the_latest_at_once(round_trip, folder):
    assert same_on_all(round_trip, "path") == str(folder / "run/ckpt-1")
    assert same_on_all(round_trip, "seen at once")


def test_restore_gives_every_worker_the_values_and_its_own_copies_back(round_trip):
    for result in round_trip:
        assert result["restored"] == result["saved"]
        assert result["epoch"] == 7
    one, other = [result["saved"] for result in round_trip]
    assert one[0] == other[0]  # what is read across replicas is the same everywhere
    assert one[1] != other[1]  # and the copies are not
    assert one[2] != other[2]  # nor is the state of an object that differs between workers


def test_a_save_in_the_background_holds_the_values_of_the_moment_of_the_call(round_trip):
    for result in round_trip:
        assert result["restored from background"] == result["saved"][:2]


def test_two_saves_in_the_background_do_not_mix_up_their_messages(round_trip):
    assert same_on_all(round_trip, "second in background") == round_trip[0]["saved"][0][0]


def test_variables_made_after_restore_get_their_values(round_trip):
    assert same_on_all(round_trip, "deferred") == round_trip[0]["saved"][0][0]


# -- what one finds, all raise -------------------------------------------------------------------


def test_a_mismatch_on_one_worker_is_raised_on_all_and_nothing_is_overwritten(round_trip):
    for result in round_trip:
        assert result["mismatch"].startswith("CheckpointMismatchError: the checkpoint ")
        assert "w: shape (4, 2) here, (3, 2) in the checkpoint" in result["mismatch"]
        assert result["mismatch changed nothing"]
    assert re.search(r"\(On worker 1 \(.*\)\.\)$", round_trip[0]["mismatch"])


def test_a_state_that_one_worker_refuses_is_taken_back_on_all(round_trip):
    for result in round_trip:
        assert result["refused"].startswith("CheckpointMismatchError: ")
        assert "chance: Chance refused its state: not today" in result["refused"]
        assert result["refusal changed nothing"]


def test_an_object_that_fails_on_one_worker_fails_the_save_on_all(round_trip, folder):
    one, other = [result["cannot be saved"] for result in round_trip]
    assert other == "OSError: no room for it"
    assert re.fullmatch(
        r"OtherWorkerError: worker 1 \(.*\) failed with OSError: no room for it", one
    )
    assert not (folder / "failing").exists()


def test_what_the_first_worker_cannot_write_is_raised_on_all(round_trip):
    for name in ("cannot be written", "cannot be written in the background"):
        one, other = [result[name] for result in round_trip]
        expected = r"CheckpointWriteError: .* could not be written: IsADirectoryError: .*"
        assert re.fullmatch(expected, one)
        assert re.fullmatch(expected + r" \(On worker 0 \(.*\)\.\)", other)
    assert same_on_all(round_trip, "not counted")


def test_workers_that_would_save_different_things_say_so(round_trip):
    message = same_on_all(round_trip, "different objects")
    assert re.match(
        r"WorkersDifferError: the workers would save different things: w: a variable of shape "
        r"\(3, 2\) and dtype float32 on worker 0 .*, w: a variable of shape \(4, 2\)",
        message,
    )


def test_a_path_of_each_worker_s_own_is_refused(round_trip):
    message = same_on_all(round_trip, "path differs")
    assert re.match(r"WorkersDifferError: the path of a checkpoint differs between", message)
    assert "Pass the same path on every worker" in message
    message = same_on_all(round_trip, "path of restore differs")
    assert "the path of the checkpoint to restore differs between workers" in message


def test_a_folder_that_the_workers_do_not_share_is_an_error_that_says_so(round_trip):
    for result in round_trip:
        assert result["not shared"].startswith("CheckpointNotFoundError: ")
        assert "on storage that they share" in result["not shared"]
        assert result["only one has it"].startswith("CheckpointNotFoundError: there is no")
        assert "All workers must see the same folder." in result["only one has it"]


def test_what_failed_leaves_nothing_half_written(round_trip, folder):
    assert not list(folder.glob("**/*.partial-*"))


# -- a manager -----------------------------------------------------------------------------------


def test_the_manager_of_all_workers_keeps_as_many_as_it_should(round_trip):
    assert same_on_all(round_trip, "nothing there") is None
    assert same_on_all(round_trip, "kept") == ["ckpt-4", "ckpt-5"]


def test_a_damaged_checkpoint_is_passed_over_on_all_workers_with_a_reason(round_trip, folder):
    chosen = same_on_all(round_trip, "instead of the damaged")
    assert chosen == str(folder / "managed/ckpt-4")
    for result in round_trip:
        (warning,) = result["warned"]
        assert re.search(r"ckpt-5 is damaged: .* has \d+ bytes instead of \d+", warning)
        assert result["at the one before"]


# -- other layouts -------------------------------------------------------------------------------


def test_a_checkpoint_of_one_process_restores_on_two_by_two_and_three_by_one(
    round_trip, other_layout, expected
):
    assert same_on_all(round_trip, "from one process") == expected
    assert same_on_all(other_layout, "one_process") == [expected, 5]


def test_a_checkpoint_of_two_by_two_restores_on_three_by_one(other_layout, expected):
    assert same_on_all(other_layout, "two_by_two") == [expected, 11]


LAYOUTS = {
    "1x1": lambda: rx.MirroredStrategy(["CPU:0"]),
    "1x8": rx.MirroredStrategy,
    "one device": lambda: rx.OneDeviceStrategy("CPU:0"),
    "no strategy": rx.get_strategy,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_of_two_by_two_restores_in_one_process(layout, folder, round_trip, expected):
    model = Model(LAYOUTS[layout](), with_none=False)
    checkpoint = model.checkpoint(epoch=0)

    checkpoint.restore(folder / "two_by_two/ckpt-1").assert_consumed()

    assert (model.values(), checkpoint.epoch) == (expected, 11)


def test_copies_come_back_exactly_where_there_are_as_many_replicas(folder, round_trip):
    model = Model(rx.MirroredStrategy([f"CPU:{i}" for i in range(4)]))

    model.checkpoint(epoch=0).restore(folder / "run/ckpt-1").expect_partial()

    copies = [one + other for one, other in zip(*(r["saved"][1] for r in round_trip), strict=True)]
    assert model.copies() == copies


def test_states_that_differ_between_workers_fit_only_as_many_workers(other_layout, folder):
    for result in other_layout:
        assert "own: 3 independent copies here, 4 in the checkpoint" in result["misfit"]
        assert "chance: Chance had another state on each of 2 workers" in result["misfit"]


# -- killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "victim"), [("async", 1), ("sync", 0), full_only("async", 0), full_only("sync", 1)]
)
def test_a_worker_killed_in_mid_save_leaves_a_whole_latest_checkpoint(how, victim, tmp_path):
    chance = random.Random(2 * victim + (how == "async"))
    saves = tmp_path / "saves"
    with start("save_for_ever", tmp_path, how) as cluster:
        cluster.wait_for(f"saved-1-{chance.randint(2, 4)}")
        writer = cluster.processes[0]
        stop_in_mid_save(writer, saves, chance.randint(0, 60))
        os.kill(cluster.processes[victim].pid, signal.SIGKILL)
        if victim:
            os.kill(writer.pid, signal.SIGCONT)
        codes = cluster.wait(60)
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] != 0
        if victim:  # the coordination service is in the chief here, and its loss ends the rest
            lost = (cluster.folder / "lost-0").read_text()
            assert re.match(r"worker 1 \(.*\) has gone or does not answer", lost)

    variables = [rx.Variable(np.zeros((256, 256), np.float32)) for _ in range(6)]
    checkpoint = rx.Checkpoint(variables=variables, n=0)
    assert latest_checkpoint(saves) is not None
    manager = rx.CheckpointManager(checkpoint, saves, 2)  # removes what is half written
    assert not half_written(saves)
    path = manager.restore_or_initialize()
    assert path == latest_checkpoint(saves)
    assert checkpoint.n >= 1 + (how == "sync")
    assert all((v.numpy() == checkpoint.n).all() for v in variables)
    assert pathlib.Path(path).name == f"ckpt-{checkpoint.n}"
