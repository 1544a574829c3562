"""torch's DataLoader: worker processes, random order by the epoch, kinds of tensors."""

import itertools
import multiprocessing
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from replicax.core.errors import BatchError
from replicax.input.adapters.table import source_of
from tests.input.adapters.contract import wait_until

NUMBERS = TensorDataset(torch.arange(10))


def values(reading):
    return [batch[0].tolist() for batch in reading]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def test_random_order_depends_on_the_seed_and_the_epoch_alone():
    loader = DataLoader(NUMBERS, batch_size=4, shuffle=True)
    source = source_of(loader)
    epochs = [values(source.open(epoch=epoch, start=0)) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(sorted(flat(epoch)) == list(range(10)) for epoch in epochs)
    torch.rand(5)  # the state of torch's own generator has no say
    assert values(source.open(epoch=1, start=0)) == epochs[1]
    assert values(source.open(epoch=2, start=1)) == epochs[2][1:]


def test_the_generator_of_the_loader_decides_the_order():
    def order(seed):
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(NUMBERS, batch_size=4, shuffle=True, generator=generator)
        return values(source_of(loader).open(epoch=0, start=0))

    assert order(1) == order(1) != order(2)


def test_a_sampler_is_told_the_epoch():
    class Rotated(SequentialSampler):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([(i + self.epoch) % 10 for i in range(10)])

    loader = DataLoader(NUMBERS, batch_size=4, sampler=Rotated(NUMBERS))
    source = source_of(loader)
    assert values(source.open(epoch=2, start=0))[0] == [2, 3, 4, 5]
    assert loader.sampler.epoch == 0


def test_a_batch_sampler_of_the_users_is_used():
    sampler = BatchSampler(SequentialSampler(NUMBERS), batch_size=3, drop_last=True)
    source = source_of(DataLoader(NUMBERS, batch_sampler=sampler))
    assert values(source.open(epoch=0, start=1)) == [[3, 4, 5], [6, 7, 8]]
    assert (source.cardinality, source.batch_size) == (3, 3)


def test_starting_late_fetches_nothing_before():
    fetched = []

    class Recording(TensorDataset):
        def __getitem__(self, index):
            fetched.append(index)
            return super().__getitem__(index)

    source = source_of(DataLoader(Recording(torch.arange(10)), batch_size=4))
    assert values(source.open(epoch=0, start=2)) == [[8, 9]]
    assert fetched == [8, 9]


class StartMethod(torch.utils.data.Dataset):
    """Its examples tell how the process was started that made them."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        process = multiprocessing.current_process()
        return np.array([index, type(process).__name__ == "SpawnProcess"])


def test_workers_are_spawned_and_end_with_the_pass():
    loader = DataLoader(StartMethod(), batch_size=2, num_workers=1, persistent_workers=True)
    source = source_of(loader)
    reading = source.open(epoch=0, start=0)
    assert next(reading).tolist() == [[0, 1], [1, 1]]
    assert len(multiprocessing.active_children()) == 1
    reading.close()
    assert wait_until(lambda: not multiprocessing.active_children())
    assert loader.multiprocessing_context is None


@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")])
def test_forking_workers_is_refused(context):
    loader = DataLoader(NUMBERS, batch_size=2, num_workers=1, multiprocessing_context=context)
    with pytest.raises(BatchError, match=r"fork its workers.*multiprocessing_context='spawn'"):
        source_of(loader)


def test_a_loader_without_a_batch_size_is_refused_where_batches_are_needed():
    source = source_of(DataLoader(NUMBERS, batch_size=None, shuffle=True))
    with pytest.raises(BatchError, match=r"batch_size=None.*DataLoader\(dataset, batch_size="):
        source.open(epoch=0, start=0)
    whole = [int(x) for (x,) in source.open_elements(epoch=1, start=0)]
    assert sorted(whole) == list(range(10))
    assert [int(x) for (x,) in source.open_elements(epoch=1, start=4)] == whole[4:]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3),
        torch.ones(2, 3, dtype=torch.float16),
        torch.ones(2, 3).T,
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.complex(torch.ones(3), torch.ones(3)).conj(),
    ],
)
def test_tensors_become_arrays(tensor):
    batch = next(source_of([tensor]).open(epoch=0, start=0))
    np.testing.assert_array_equal(batch, tensor.detach().resolve_conj().numpy())


def test_bfloat16_stays_bfloat16():
    batch = next(source_of([torch.arange(3).to(torch.bfloat16)]).open(epoch=0, start=0))
    assert batch.dtype == jnp.bfloat16
    assert batch.tolist() == [0, 1, 2]


def test_sparse_and_nested_tensors_are_refused_by_name():
    with pytest.raises(BatchError, match=r"leaf \['x'\] .* is sparse .*to_dense"):
        next(source_of([{"x": torch.eye(3).to_sparse()}]).open(epoch=0, start=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(BatchError, match=r"leaf \['x'\] .* is ragged"):
        next(source_of([{"x": nested}]).open(epoch=0, start=0))


def test_tensors_can_be_given_as_arrays():
    source = source_of({"x": torch.arange(5)}, batch_size=2)
    assert [batch["x"].tolist() for batch in source.open(epoch=0, start=1)] == [[2, 3], [4]]
