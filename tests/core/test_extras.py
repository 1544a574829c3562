"""What is optional says how to install it."""

import sys

import pytest

import replicax as rx

NEEDS = {
    "optax": (
        lambda folder: rx.optimizers.SGD(0.1),
        r"Optimizer needs optax.*replicax\[optimizers\]",
    ),
    "orbax": (
        lambda folder: rx.Checkpoint(w=rx.Variable(1.0)).write(str(folder / "ckpt")),
        r"Checkpoint needs orbax.*replicax\[checkpoint\]",
    ),
    "grain": (
        lambda folder: rx.data.Dataset.range(3),
        r"data\.Dataset needs grain.*replicax\[data\]",
    ),
}


@pytest.mark.parametrize("library", NEEDS)
def test_a_library_that_is_not_installed_is_named_with_the_way_to_get_it(
    library, monkeypatch, tmp_path
):
    use, text = NEEDS[library]
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    with pytest.raises(ImportError, match=text):
        use(tmp_path)
