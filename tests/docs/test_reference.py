"""Every public name has a page in the reference, and a docstring with an example."""

import inspect

import pytest

from tests.docs.pages import ROOT
from website.names import GROUPS, LAST_GROUP, documented_names, public_names

OWN = public_names()
DESCRIBED = {
    name: thing
    for name, thing in [*((each.name, each.thing) for each in OWN), *documented_names()]
    if callable(thing) and getattr(thing, "__module__", "").startswith("replicax.")
}


def test_every_public_name_is_in_the_reference_once():
    names = [each.name for each in OWN]
    assert len(names) == len(set(names))
    # Spelled out, to show that the search finds what is nested, and takes the shortest spelling.
    assert {
        "replicax.MirroredStrategy",
        "replicax.REPLICA_AXIS",
        "replicax.experimental.partitioners.MinSizePartitioner",
        "replicax.metrics.Mean",
        "replicax.random.Generator",
    } <= set(names)
    assert "replicax.experimental.TPUStrategy" in names  # another class than replicax.TPUStrategy
    assert "replicax.optimizers.Optimizer" not in names  # it is replicax.Optimizer


def test_every_public_name_has_a_group_that_says_what_it_is_for():
    lost = [each.name for each in OWN if each.group == LAST_GROUP]
    assert not lost, "give where these are defined a row in website.names.GROUPS"
    assert {each.group for each in OWN} <= set(GROUPS)


@pytest.mark.parametrize("name", ["docstring", "example"])
def test_every_public_name_has_a(name):
    docstrings = {name: inspect.cleandoc(thing.__doc__ or "") for name, thing in DESCRIBED.items()}
    mark = "." if name == "docstring" else ">>> "
    lacking = sorted(each for each, text in docstrings.items() if mark not in text)
    assert not lacking


def test_a_name_has_the_documented_one_beside_it():
    beside = {each.name: each.documented for each in OWN}
    assert beside["replicax.MirroredStrategy"] == ("tf.distribute.MirroredStrategy",)
    assert beside["replicax.data.AUTOTUNE"] == ("tf.data.AUTOTUNE",)
    assert beside["replicax.visualize_value"] == ()


def test_the_pages_are_made_at_each_build_and_not_kept():
    assert "\n/docs/reference/\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")
