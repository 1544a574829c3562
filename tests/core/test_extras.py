"""What is optional says how to install it."""

import sys

import pytest

import replicax as rx

NEEDS = {
    "optax": (lambda: rx.optimizers.SGD(0.1), r"Optimizer needs optax.*replicax\[optimizers\]"),
    "grain": (lambda: rx.data.Dataset.range(3), r"data\.Dataset needs grain.*replicax\[input\]"),
}


@pytest.mark.parametrize("library", NEEDS)
def test_a_library_that_is_not_installed_is_named_with_the_way_to_get_it(library, monkeypatch):
    use, text = NEEDS[library]
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    with pytest.raises(ImportError, match=text):
        use()
