"""Notices: each is said once, at the user's line."""

import inspect
import threading
import warnings

import pytest

import replicax as rx
from replicax.core import notices


def this_line():
    return inspect.currentframe().f_back.f_lineno


@pytest.fixture
def key():
    """A key that is forgotten again."""
    made = ("test notice", object())
    yield made
    notices.forget(made)


def test_a_notice_is_shown_once(key):
    with pytest.warns(rx.ReplicaxWarning, match="mind the gap") as caught:
        notices.notify_once(key, "mind the gap")
        notices.notify_once(key, "mind the gap")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notices.notify_once(key, "mind the gap")


def test_another_key_is_another_notice(key):
    other = (*key, "other")
    with pytest.warns(rx.ReplicaxWarning, match="mind") as caught:
        notices.notify_once(key, "mind the gap")
        notices.notify_once(other, "mind the gap")
    notices.forget(other)
    assert len(caught) == 2


def test_a_forgotten_notice_is_shown_again(key):
    for _ in range(2):
        with pytest.warns(rx.ReplicaxWarning, match="mind the gap"):
            notices.notify_once(key, "mind the gap")
        notices.forget(key)


def test_a_notice_points_to_the_users_line(key):
    with pytest.warns(rx.ReplicaxWarning, match="mind the gap") as caught:
        notices.notify_once(key, "mind the gap")
        line = this_line() - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_a_notice_from_deep_inside_points_to_the_users_line_too():
    notices.forget("bucketizing")
    strategy = rx.MirroredStrategy(["CPU:0"])
    options = rx.RunOptions(experimental_bucketizing_dynamic_shape=True)
    with pytest.warns(rx.ReplicaxWarning, match="changes nothing here") as caught:
        strategy.run(lambda: 1, options=options)
        line = this_line() - 1
    notices.forget("bucketizing")
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_a_notice_may_have_its_own_category(key):
    with pytest.warns(DeprecationWarning, match="old"):
        notices.notify_once(key, "old", category=DeprecationWarning)


def test_the_warning_is_a_user_warning():
    assert issubclass(rx.ReplicaxWarning, UserWarning)


def test_several_threads_show_a_notice_once(key):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [
            threading.Thread(target=notices.notify_once, args=(key, "mind the gap"))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(caught) == 1


def test_line_of_an_error_is_the_last_line_of_the_user():
    def raising():
        raising.line = this_line() + 1
        rx.Variable(None)

    with pytest.raises(ValueError, match="needs an initial_value") as caught:
        raising()
    assert notices.line_of(caught.value) == f"{__file__}:{raising.line}"
    assert notices.line_of(ValueError("never raised")) == "an unknown line"


def test_user_line_is_the_innermost_frame_outside_of_the_package():
    assert notices.user_line() == (__file__, this_line())


def test_a_deprecation_is_shown_in_a_program_by_pythons_own_filters():
    notices.forget(("deprecated", "old"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
        exec("deprecate('old', 'new')", {"__name__": "__main__", "deprecate": notices.deprecate})
    assert [str(warning.message) for warning in caught] == ["old is deprecated. Use new instead."]
    notices.forget(("deprecated", "old"))
