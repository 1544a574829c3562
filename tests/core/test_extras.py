"""What is optional says how to install it."""

import sys

import pytest

import replicax as rx

NEEDS = {
    "orbax": (
        lambda folder: rx.Checkpoint(w=rx.Variable(1.0)).write(str(folder / "ckpt")),
        r"Checkpoint needs orbax.*replicax\[checkpoint\]",
    ),
    "grain": (
        lambda folder: next(iter(rx.data.Dataset.range(3).filter(lambda x: x > 0))),
        r"data\.Dataset that reads a stream, .* needs grain.*replicax\[data\]",
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


def test_a_dataset_of_arrays_needs_no_grain(monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    dataset = rx.data.Dataset.range(8).shuffle(8).map(lambda x: x + 1).batch(4).repeat(2)
    assert sum(int(batch.sum()) for batch in dataset) == 72
    batches = rx.get_strategy().experimental_distribute_dataset(dataset)
    assert sum(int(batch.sum()) for batch in batches) == 72
