"""The tree in the docstring of `core.errors` is the tree of the classes, wherever they are."""

import importlib
import pkgutil
import re

import pytest

import replicax
import replicax as rx
from replicax.core import errors


def all_errors():
    for module in pkgutil.walk_packages(replicax.__path__, "replicax."):
        importlib.import_module(module.name)
    found, waiting = [], [rx.ReplicaxError]
    while waiting:
        cls = waiting.pop()
        found.append(cls)
        waiting += [sub for sub in cls.__subclasses__() if sub.__module__.startswith("replicax")]
    return set(found)


def drawn_tree():
    """Name to (parent, built-in named in the docstring or None)."""
    drawn, parents = {}, {}
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│ ]*)(?:[├└]── )?([A-Z]\w+)(?: \((\w+)\))?(?:\s{2,}\S.*)?$", line)
        if found is None:
            continue
        depth = 0 if "──" not in line else 1 + len(found[1]) // 4
        parents[depth] = found[2]
        drawn[found[2]] = (parents.get(depth - 1), found[3])
    return drawn


def test_the_drawing_has_every_error_and_no_other():
    assert sorted(drawn_tree()) == sorted(cls.__name__ for cls in all_errors())


@pytest.mark.parametrize("cls", sorted(all_errors(), key=lambda c: c.__name__))
def test_the_drawing_shows_the_parents(cls):
    parent, builtin = drawn_tree()[cls.__name__]
    if cls is rx.ReplicaxError:
        assert (parent, cls.__bases__) == (None, (Exception,))
        return
    assert cls.__bases__[0].__name__ == parent
    assert [base.__name__ for base in cls.__bases__[1:]] == ([] if builtin is None else [builtin])


@pytest.mark.parametrize("cls", sorted(all_errors() - {rx.ReplicaxError}, key=lambda c: c.__name__))
def test_every_error_is_also_a_built_in_one(cls):
    built_in = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    assert built_in[0] not in (Exception, BaseException)
    assert cls.__doc__
