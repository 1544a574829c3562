"""Whenever a process ends, the last checkpoint that a save has returned can be read."""

import pytest

from replicax.checkpoint.checkpoint import Checkpoint
from tests.backend.fresh_process import run_fresh
from tests.checkpoint.kills import end_at, saved_value


class Killed(BaseException):
    """The process has ended: nothing is done after it."""


def test_a_path_that_is_written_again_is_readable_after_every_operation(tmp_path):
    path = tmp_path / "best"
    Checkpoint(n=0).write(path)
    known, number, is_over = 0, 0, False

    def end():
        raise Killed

    while not is_over:
        number += 1
        with pytest.MonkeyPatch.context() as patches:
            end_at(number, end, patches.setattr)
            try:
                Checkpoint(n=number).write(path)
                is_over = True
            except Killed:
                pass
        found = saved_value(path)
        assert found == number or (not is_over and found == known), number
        known = found
    assert number > 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one", "numbered"])
def test_a_process_killed_at_any_operation_loses_nothing_and_leaves_nothing(how, tmp_path):
    printed = run_fresh(
        f"""
        import pathlib, warnings
        from tests.checkpoint import kills
        warnings.simplefilter("ignore")  # JAX warns of forks, which come before it starts
        kills.import_orbax()
        kills.kill_everywhere(kills.SAVES[{how!r}](), pathlib.Path({str(tmp_path)!r}))
        """
    )
    assert int(printed.split()[0]) > 30
