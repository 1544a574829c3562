"""Hugging Face datasets: formats, epochs, and the errors of their kinds."""

import itertools

import datasets
import numpy as np
import pytest

from replicax.core.errors import BatchError
from replicax.input.adapters.table import source_of
from tests.input.adapters.contract import part_for


def table(**columns):
    return datasets.Dataset.from_dict(columns or {"x": list(range(10)), "name": list("abcdefghij")})


def xs(reading):
    return [batch["x"].tolist() for batch in reading]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def test_columns_become_arrays_and_strings_stay_strings():
    batch = next(source_of(table(), batch_size=4).open(epoch=0, start=0))
    assert batch["x"].tolist() == [0, 1, 2, 3]
    assert batch["name"].tolist() == list("abcd")


def test_the_users_choice_of_columns_and_format_is_kept():
    chosen = table().with_format("numpy", columns=["x"])
    assert set(next(source_of(chosen, batch_size=4).open(epoch=0, start=0))) == {"x"}
    chosen = table().with_format(None, columns=["name"])
    assert set(next(source_of(chosen, batch_size=4).open(epoch=0, start=0))) == {"name"}


def test_a_transform_of_batches_sees_whole_batches_and_parts_are_exact():
    def centred(rows):
        x = np.asarray(rows["x"])
        return {"x": x - x.mean()}

    source = source_of(table().with_transform(centred), batch_size=4)
    whole = next(source.open(epoch=0, start=0))["x"]
    parts = [next(source.open_parts(part_for(w, 2), epoch=0, start=0)).batch["x"] for w in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole.tolist() == [-1.5, -0.5, 0.5, 1.5]


def test_a_shuffled_table_is_read_in_its_order():
    shuffled = table().shuffle(seed=3)
    source = source_of(shuffled, batch_size=4)
    assert flat(xs(source.open(epoch=0, start=0))) == shuffled["x"][:]


def test_a_stream_is_shuffled_anew_in_each_epoch_and_only_by_it():
    stream = table().to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=5).batch(3)
    source = source_of(stream)
    epochs = [xs(source.open(epoch=epoch, start=0)) for epoch in (0, 1, 2)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(sorted(flat(epoch)) == list(range(10)) for epoch in epochs)
    assert xs(source.open(epoch=1, start=0)) == epochs[1]
    assert xs(source.open(epoch=2, start=2)) == epochs[2][2:]
    assert stream.epoch == 0


def test_a_stream_can_be_given_a_batch_size():
    source = source_of(table().to_iterable_dataset(), batch_size=4)
    assert xs(source.open(epoch=0, start=1)) == [[4, 5, 6, 7], [8, 9]]


def test_a_table_whose_rows_are_batches_can_be_read_as_a_stream():
    source = source_of(table().batch(4).to_iterable_dataset())
    assert xs(source.open(epoch=0, start=0)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_table_without_a_batch_size_is_refused():
    with pytest.raises(BatchError, match=r"of 10 rows .* Pass batch_size=.*to_iterable_dataset"):
        source_of(table())


def test_a_stream_of_examples_is_refused():
    with pytest.raises(BatchError, match=r"leaf \['\w+'\] of a Hugging Face Iter.* is a scalar"):
        next(source_of(table().to_iterable_dataset()).open(epoch=0, start=0))


def test_a_dict_of_splits_is_refused():
    splits = datasets.DatasetDict({"train": table(), "test": table()})
    with pytest.raises(BatchError, match=r"\['train', 'test'\].*dataset\['train'\]"):
        source_of(splits, batch_size=2)


def test_a_column_of_lists_of_different_lengths_is_named():
    source = source_of(table(x=[[1], [1, 2]]), batch_size=2)
    with pytest.raises(BatchError, match=r"leaf \['x'\] of a Hugging Face Dataset"):
        next(source.open(epoch=0, start=0))
