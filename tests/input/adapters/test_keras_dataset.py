"""Keras' PyDataset: calls between passes, and datasets without end."""

import itertools

import keras
import numpy as np
import pytest

from replicax.core.errors import BatchError
from replicax.input.adapters.table import source_of
from replicax.input.source import INFINITE


class Counting(keras.utils.PyDataset):
    """Its batches hold how often an epoch has ended."""

    def __init__(self):
        super().__init__(workers=4, use_multiprocessing=True)
        self.ended = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.full(3, self.ended)

    def on_epoch_end(self):
        self.ended += 1


def first(reading):
    return next(reading).tolist()


def test_the_end_of_an_epoch_is_told_between_passes():
    dataset = Counting()
    source = source_of(dataset)
    for epoch in range(3):
        assert [batch[0] for batch in source.open(epoch=epoch, start=0)] == [epoch, epoch]
    assert dataset.ended == 2


def test_a_run_that_resumes_in_a_later_epoch_has_seen_the_ends_of_the_earlier_ones():
    assert first(source_of(Counting()).open(epoch=3, start=1)) == [3, 3, 3]


def test_the_same_epoch_again_is_not_another_epoch():
    source = source_of(Counting())
    for _ in range(2):
        assert first(source.open(epoch=1, start=0)) == [1, 1, 1]


def test_a_dataset_without_a_number_of_batches_has_no_end():
    class Endless(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return None

        def __getitem__(self, index):
            return np.full(2, index)

    source = source_of(Endless())
    assert source.cardinality == INFINITE
    reading = source.open(epoch=0, start=5)
    assert [batch[0] for batch in itertools.islice(reading, 3)] == [5, 6, 7]


def test_an_example_instead_of_a_batch_is_refused():
    class Examples(Counting):
        def __getitem__(self, index):
            return np.zeros(3), 1

    with pytest.raises(
        BatchError, match=r"leaf \[1\] of a Keras PyDataset is a scalar.*__getitem__"
    ):
        next(source_of(Examples()).open(epoch=0, start=0))
