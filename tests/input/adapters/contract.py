"""What every adapter must do, for the rows of a table.

A test file derives its classes from these and gives them the fixture `row`. They are
here because the rows of the large libraries are tested in another environment.
"""

import gc
import os
import threading
import time

import numpy as np
import pytest

from replicax.core.spec import TensorSpec
from replicax.input.source import UNKNOWN, IndexedSource, Source
from tests.input.adapters.row import cut, x_of

NUM_EXAMPLES = 11
BATCH_SIZE = 4
DEADLINE_SECONDS = 10.0


def examples_of(num_examples=NUM_EXAMPLES):
    """Examples of two numbers, no two alike; the first number is the index."""
    index = np.arange(num_examples, dtype=np.int32)
    return np.stack([index, 100 + 7 * index], axis=1)


def values(batches):
    return [np.asarray(x_of(batch)).tolist() for batch in batches]


def expected(start=0):
    return values(cut(examples_of(), BATCH_SIZE))[start:]


def part_for(worker, num_workers):
    """Contiguous parts of ceil(size / workers), the last ones short or empty."""

    def part_of(size):
        chunk = -(-size // num_workers)
        return slice(min(worker * chunk, size), min((worker + 1) * chunk, size))

    return part_of


def num_open_files():
    return len(os.listdir("/proc/self/fd"))


def wait_until(is_true):
    """Whether `is_true` becomes so before the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        gc.collect()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class SourceContract:
    """For every row."""

    def source(self, row) -> Source:
        return row.source(examples_of(), BATCH_SIZE)

    def test_a_pass_gives_all_examples_in_order_in_batches_of_the_size(self, row):
        assert values(self.source(row).open(epoch=0, start=0)) == expected()

    def test_elements_that_need_not_be_batches_are_the_batches_if_they_are(self, row):
        assert values(self.source(row).open_elements(epoch=0, start=1)) == expected(1)

    def test_the_source_can_be_read_again_and_again(self, row):
        source = self.source(row)
        for epoch in range(3):
            assert values(source.open(epoch=epoch, start=0)) == expected()

    @pytest.mark.parametrize("start", [1, 2, 3, 5])
    def test_a_pass_can_begin_at_any_batch(self, row, start):
        assert values(self.source(row).open(epoch=0, start=start)) == expected(start)

    def test_two_passes_do_not_disturb_each_other(self, row):
        source = self.source(row)
        one = source.open(epoch=0, start=0)
        first = [next(one)]
        other = source.open(epoch=0, start=1)
        second = [next(other)]
        assert values(first + list(one)) == expected()
        assert values(second + list(other)) == expected(1)

    def test_the_number_of_batches_is_right_or_unknown(self, row):
        assert self.source(row).cardinality == (3 if row.knows_cardinality else UNKNOWN)

    def test_the_batch_size_is_right_or_unknown(self, row):
        assert self.source(row).batch_size == (BATCH_SIZE if row.knows_batch_size else None)

    @pytest.mark.parametrize("num_examples", [8, 11])
    def test_the_spec_fits_every_batch_or_is_unknown(self, row, num_examples):
        source = row.source(examples_of(num_examples), BATCH_SIZE)
        spec = source.element_spec
        assert (spec is not None) == row.knows_spec
        if spec is not None:
            leaf = x_of(spec)
            assert isinstance(leaf, TensorSpec)
            for batch in source.open(epoch=0, start=0):
                assert leaf.is_compatible_with(x_of(batch).shape, x_of(batch).dtype)
            if num_examples % BATCH_SIZE:
                assert leaf.shape == (None, 2)

    def test_batches_are_arrays_on_the_host(self, row):
        for batch in self.source(row).open(epoch=0, start=0):
            assert isinstance(x_of(batch), np.ndarray)

    def test_a_source_without_examples_has_no_batches(self, row):
        source = row.source(examples_of(0), BATCH_SIZE)
        assert list(source.open(epoch=0, start=0)) == []
        assert source.cardinality == (0 if row.knows_cardinality else UNKNOWN)

    def test_it_says_what_it_is(self, row):
        assert self.source(row).description != Source.description

    def test_the_end_stays_the_end(self, row):
        reading = self.source(row).open(epoch=0, start=2)
        next(reading)
        assert [next(reading, "end") for _ in range(2)] == ["end", "end"]

    def test_closing_ends_a_pass_at_once_and_may_be_repeated(self, row):
        reading = self.source(row).open(epoch=0, start=0)
        next(reading)
        for _ in range(2):
            reading.close()
        assert list(reading) == []

    @pytest.mark.parametrize("ending", ["closed", "dropped", "read to the end"])
    def test_a_pass_leaves_no_thread_and_no_open_file(self, row, ending):
        source = self.source(row)
        list(source.open(epoch=0, start=0))  # what the library starts once, it may keep
        gc.collect()
        threads, files = threading.active_count(), num_open_files()
        for _ in range(5):
            reading = source.open(epoch=0, start=0)
            next(reading)
            if ending == "closed":
                reading.close()
            elif ending == "read to the end":
                list(reading)
            del reading
        assert wait_until(lambda: threading.active_count() <= threads)
        assert wait_until(lambda: num_open_files() <= files)


class FunctionContract:
    """For rows in which a function of the user's sees each example."""

    def test_an_error_in_a_function_of_the_users_arrives_as_it_is(self, row):
        class OwnError(Exception):
            pass

        def fail_at_five(example):
            if example[0] == 5:
                raise OwnError("number five")
            return example

        reading = row.source(examples_of(), BATCH_SIZE, fail_at_five).open(epoch=0, start=0)
        with pytest.raises(OwnError, match="number five"):
            list(reading)
        assert list(reading) == []


class IndexedContract:
    """For rows whose batches can be read in parts."""

    def source(self, row) -> IndexedSource:
        source = row.source(examples_of(), BATCH_SIZE)
        assert isinstance(source, IndexedSource)
        return source

    @pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
    @pytest.mark.parametrize("start", [0, 1, 2])
    def test_the_parts_of_all_workers_are_the_batches(self, row, num_workers, start):
        source = self.source(row)
        readings = [
            source.open_parts(part_for(worker, num_workers), epoch=0, start=start)
            for worker in range(num_workers)
        ]
        whole = source.open(epoch=0, start=start)
        for batch, *parts in zip(whole, *readings, strict=True):
            together = np.concatenate([x_of(part.batch) for part in parts])
            np.testing.assert_array_equal(together, x_of(batch))
            for part in parts:
                assert part.global_size == len(x_of(batch))
                assert x_of(part.batch).dtype == x_of(batch).dtype

    def test_a_part_may_be_empty_and_keeps_dtype_and_shape(self, row):
        whole = next(self.source(row).open(epoch=0, start=0))
        for part in self.source(row).open_parts(lambda size: slice(0, 0), epoch=0, start=0):
            assert x_of(part.batch).shape == (0, *x_of(whole).shape[1:])
            assert x_of(part.batch).dtype == x_of(whole).dtype

    def test_closing_ends_a_pass_over_parts(self, row):
        reading = self.source(row).open_parts(part_for(0, 2), epoch=0, start=0)
        next(reading)
        reading.close()
        assert list(reading) == []


class FrugalContract:
    """For rows in which reading a part reads no other example, and a function can see it."""

    @pytest.mark.parametrize("worker", [0, 1, 2])
    def test_a_worker_reads_its_own_examples_and_no_others(self, row, worker):
        read = []

        def record(example):
            read.append(int(example[0]))
            return example

        source = row.source(examples_of(), BATCH_SIZE, record)
        parts = source.open_parts(part_for(worker, 3), epoch=0, start=0)
        own = [[int(x) for x in x_of(part.batch)[:, 0]] for part in parts]
        # A worker whose first part is empty looks at the first example, for its shape.
        looked_at = [] if own[0] else [0]
        assert sorted(read) == looked_at + [x for part in own for x in part]

    def test_a_pass_that_begins_late_reads_nothing_before(self, row):
        read = []

        def record(example):
            read.append(int(example[0]))
            return example

        source = row.source(examples_of(), BATCH_SIZE, record)
        list(source.open(epoch=0, start=2))
        assert sorted(read) == [8, 9, 10]

    def test_the_spec_costs_one_example(self, row):
        read = []

        def record(example):
            read.append(int(example[0]))
            return example

        source = row.source(examples_of(), BATCH_SIZE, record)
        assert source.element_spec is not None
        assert source.element_spec is not None
        assert read == [0]
