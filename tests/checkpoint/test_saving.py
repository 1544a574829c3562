"""Saving: numbers, contexts, the background, and what is in the files."""

import contextlib
import os
import pickletools
import resource
import threading

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import files
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.latest import latest_checkpoint
from replicax.checkpoint.options import CheckpointOptions
from replicax.core.errors import ContextError
from tests.backend.fresh_process import run_fresh


def test_save_numbers_checkpoints_and_write_does_not(tmp_path):
    checkpoint = Checkpoint(n=1)

    paths = [checkpoint.save(tmp_path / "c"), checkpoint.save(str(tmp_path / "c"))]
    written = checkpoint.write(tmp_path / "w")

    assert paths == [str(tmp_path / "c-1"), str(tmp_path / "c-2")]
    assert written == str(tmp_path / "w")
    assert int(checkpoint.save_counter) == 2
    assert latest_checkpoint(tmp_path) == paths[1]


def test_restore_continues_the_numbers_and_read_does_not(tmp_path):
    checkpoint = Checkpoint(n=1)
    checkpoint.save(tmp_path / "c")
    last = checkpoint.save(tmp_path / "c")
    restored, read = Checkpoint(n=0), Checkpoint(n=0)

    restored.restore(last).assert_consumed()
    read.read(last).assert_consumed()

    assert (int(restored.save_counter), int(read.save_counter)) == (2, 0)
    assert restored.save(tmp_path / "c") == str(tmp_path / "c-3")


def test_the_latest_is_the_one_saved_last_not_the_highest_number(tmp_path):
    checkpoint = Checkpoint(n=1)
    first = checkpoint.save(tmp_path / "c")
    checkpoint.n = 2
    checkpoint.save(tmp_path / "c")
    checkpoint.save(tmp_path / "c")
    checkpoint.restore(first)
    checkpoint.n = 7

    again = checkpoint.save(tmp_path / "c")

    assert again == latest_checkpoint(tmp_path) == str(tmp_path / "c-2")
    checkpoint.restore(again)
    assert checkpoint.n == 7


def test_a_save_that_fails_is_not_counted(tmp_path):
    class Refuses:
        def state_dict(self):
            raise OSError("not now")

        def load_state_dict(self, state):
            pass

    checkpoint = Checkpoint(x=Refuses())

    with pytest.raises(OSError, match="not now"):
        checkpoint.save(tmp_path / "c")

    assert int(checkpoint.save_counter) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_save_counter_belongs_to_no_scope(two):
    with two.scope():
        checkpoint = Checkpoint(n=1)
        assert checkpoint.save_counter.strategy is None


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """Lets this process write no larger files, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("call", ["save", "write", "restore", "read"])
def test_a_checkpoint_is_of_all_replicas(call, two, tmp_path):
    checkpoint = Checkpoint(n=1)
    act = getattr(checkpoint, call)

    with pytest.raises(ContextError, match=f"Checkpoint.{call} was called inside"):
        two.run(lambda: act(tmp_path / "c"))
    with pytest.raises(ContextError, match="inside a function that is being compiled"):
        rx.function(lambda: act(tmp_path / "c"))()
    with pytest.raises(ContextError, match="inside a function that is being compiled"):
        jax.jit(lambda: act(tmp_path / "c"))()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_can_be_saved_and_restored_in_its_scope(strategy, tmp_path):
    with strategy.scope():
        w = rx.Variable([1.0, 2.0])
        checkpoint = Checkpoint(w=w)
        path = checkpoint.save(tmp_path / "c")
        w.assign([0.0, 0.0])
        checkpoint.restore(path)

    np.testing.assert_array_equal(w.numpy(), [1, 2])


# -- background --------------------------------------------------------------------------------


def test_a_background_save_is_there_after_sync_and_leaves_no_thread(two, tmp_path):
    with two.scope():
        w = rx.Variable(np.ones((256, 256), np.float32))
    checkpoint = Checkpoint(w=w)
    before = set(threading.enumerate())

    path = checkpoint.save_async(tmp_path / "c")
    w.assign(np.zeros((256, 256), np.float32))
    checkpoint.sync()

    assert latest_checkpoint(tmp_path) == path
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    checkpoint.restore(path)
    assert w.numpy().min() == 1


def test_the_next_call_awaits_a_background_save(tmp_path):
    checkpoint = Checkpoint(w=rx.Variable(1.0))
    options = CheckpointOptions(experimental_enable_async_checkpoint=True)

    paths = [checkpoint.save(tmp_path / "c", options) for _ in range(3)]
    checkpoint.restore(paths[-1])

    assert all(files.is_complete(tmp_path / f"c-{i}") for i in (1, 2, 3))


# Of several writes that fail, those after the first report to a loop that Orbax has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["sync", "save", "restore"])
def test_an_error_in_the_background_is_raised_once_by_the_next_call(call, tmp_path):
    noise = np.random.default_rng(0).random((256, 256), np.float32)
    checkpoint = Checkpoint(w=rx.Variable(noise))
    kept = checkpoint.save(tmp_path / "c")

    with files_of_at_most(65536):
        checkpoint.save_async(tmp_path / "c")
        with pytest.raises(OSError, match=r"c-2 could not be written: File too large") as raised:
            getattr(checkpoint, call)(*([] if call == "sync" else [kept]))

    assert any("c-2 was saved in the background" in note for note in raised.value.__notes__)
    checkpoint.sync()
    assert latest_checkpoint(tmp_path) == kept


def test_the_end_of_the_program_waits_for_a_background_save(tmp_path):
    run_fresh(
        f"""
        import numpy as np, replicax as rx
        from replicax.checkpoint.checkpoint import Checkpoint
        checkpoint = Checkpoint(w=rx.Variable(np.ones((512, 512), np.float32)))
        checkpoint.save_async({str(tmp_path / "c")!r})
        """
    )

    assert latest_checkpoint(tmp_path) == str(tmp_path / "c-1")
    w = rx.Variable(np.zeros((512, 512), np.float32))
    Checkpoint(w=w).restore(tmp_path / "c-1").assert_consumed()
    assert w.numpy().min() == 1


# -- files -------------------------------------------------------------------------------------


def is_pickle(data):
    try:
        return bool(list(pickletools.genops(data)))
    except ValueError:
        return False


def test_no_file_is_a_pickle(two, tmp_path):
    with two.scope():
        metric = rx.metrics.Mean()
    path = Checkpoint(metric=metric, state=np.random.RandomState(0), n=1).write(tmp_path / "c")

    checked = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            checked += 1
            assert not is_pickle(data), name
    assert checked > 3


def test_importing_the_library_does_not_import_orbax():
    run_fresh(
        """
        import sys
        import replicax.checkpoint.manager
        assert not any(name.partition(".")[0] == "orbax" for name in sys.modules)
        """
    )
