"""An iterator continues where another one stood, with any number of workers and replicas."""

import json

import numpy as np
import pytest

import replicax as rx
from replicax.core.enums import AutoShardPolicy
from replicax.core.options import InputOptions
from replicax.input.dataset import DistributedDataset
from replicax.input.global_batches import GlobalBatches
from replicax.input.sharding import plan_shards
from tests.input.pipelines import Indexed, OneShot, Stream, batches_of, topologies, values_of


def mirrored(count):
    return rx.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def source(kind=Stream):
    return kind(batches_of(range(26), 4), shuffled=True)


def globally(values):
    """The examples of each step, whoever has them."""
    return [np.concatenate(values_of(value)).tolist() for value in values]


def through_json(state):
    assert len(json.dumps(state)) < 200
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("buffer_size", [0, 3])
@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_it_continues_with_the_rest_of_the_pass_and_the_passes_after(replicas, buffer_size, taken):
    options = InputOptions(experimental_per_replica_buffer_size=buffer_size)
    expected = mirrored(2).distribute_dataset(source())
    next(iter(expected))  # pass 0
    expected = [globally(expected) for _ in range(3)]  # passes 1, 2 and 3

    dataset = mirrored(2).distribute_dataset(source(), options)
    next(iter(dataset))
    iterator = iter(dataset)
    before = globally([next(iterator) for _ in range(taken)])
    state = through_json(iterator.get_state())
    assert state == {"version": 1, "epoch": 1, "position": taken}

    resumed = mirrored(replicas).distribute_dataset(source(), options)
    iterator = iter(resumed)
    iterator.set_state(state)
    assert iterator.get_state() == state
    assert before + globally(iterator) == expected[0]
    assert [globally(resumed), globally(resumed)] == expected[1:]


@pytest.mark.parametrize("kind", [Stream, Indexed])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_it_continues_with_another_number_of_workers(kind, num_workers):
    host = InputOptions(experimental_fetch_to_device=False)
    mesh = mirrored(6).extended.mesh

    def dataset(topology):
        plan = plan_shards(AutoShardPolicy.DATA, source(kind), topology)
        return DistributedDataset(GlobalBatches(plan, topology), mesh, topology, host)

    def resumed(topology, state):
        iterator = iter(dataset(topology))
        iterator.set_state(state)
        return [values_of(value) for value in iterator]

    whole = [np.concatenate(values_of(v)).tolist() for v in dataset(topologies(1, 6)[0])]
    saved = iter(dataset(topologies(2, 3)[1]))
    for _ in range(3):
        next(saved)
    state = through_json(saved.get_state())
    workers = [resumed(t, state) for t in topologies(num_workers, 6 // num_workers)]
    together = [
        np.concatenate([np.concatenate(parts) for parts in step]).tolist()
        for step in zip(*workers, strict=True)
    ]
    assert together == whole[3:]


def test_what_was_read_ahead_is_not_lost_when_the_state_is_set_back():
    dataset = mirrored(2).distribute_dataset(
        source(), InputOptions(experimental_per_replica_buffer_size=4)
    )
    iterator = iter(dataset)
    states, values = [], []
    for value in iterator:
        values.append(globally([value]))
        states.append(iterator.get_state())
    for index, state in enumerate(states):
        iterator.set_state(state)
        assert [globally([value]) for value in iterator] == values[index + 1 :]


def test_a_source_for_one_pass_can_be_continued_once_in_that_pass():
    two = mirrored(2)
    dataset = two.distribute_dataset(OneShot(batches_of(range(12), 4)))
    iterator = iter(dataset)
    iterator.set_state({"version": 1, "epoch": 0, "position": 1})
    assert globally(iterator) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    # also when its first batch was read for the spec
    dataset = two.distribute_dataset(OneShot(batches_of(range(12), 4)))
    assert dataset.element_spec is not None
    iterator = iter(dataset)
    iterator.set_state({"version": 1, "epoch": 0, "position": 2})
    assert globally(iterator) == [[8, 9, 10, 11]]


def test_what_was_read_for_the_spec_is_closed_when_another_pass_is_continued():
    own = source()
    dataset = mirrored(2).distribute_dataset(own)
    assert dataset.element_spec is not None
    iter(dataset).set_state({"version": 1, "epoch": 4, "position": 1})
    assert (own.opened, own.closed) == ([(0, 0)], 1)


def test_a_state_after_the_end_gives_nothing_more():
    dataset = mirrored(2).distribute_dataset(source())
    iterator = iter(dataset)
    assert len(list(iterator)) == 7
    state = iterator.get_state()
    resumed = mirrored(2).distribute_dataset(source())
    iterator = iter(resumed)
    iterator.set_state(state)
    assert list(iterator) == []
    assert globally(resumed) == globally(dataset)


def test_a_state_of_functions_continues_with_as_many_replicas():
    def dataset(count):
        return mirrored(count).distribute_datasets_from_function(
            lambda _: Stream(batches_of(range(20), 2))
        )

    iterator = iter(dataset(2))
    next(iterator)
    state = through_json(iterator.get_state())
    resumed = iter(dataset(2))
    resumed.set_state(state)
    assert [values_of(v) for v in resumed] == [values_of(v) for v in iterator]
    with pytest.raises(ValueError, match="saved with num_replicas=2, and here it is 3"):
        iter(dataset(3)).set_state(state)


@pytest.mark.parametrize("policy", ["OFF", "FILE", "HINT"])
def test_a_state_under_a_policy_that_keeps_the_size_continues_with_it(policy):
    def dataset(count=2):
        return mirrored(count).distribute_dataset(
            Stream(batches_of(range(14), 8)), auto_shard_policy=policy
        )

    iterator = iter(dataset())
    next(iterator)
    state = through_json(iterator.get_state())
    resumed = iter(dataset())
    resumed.set_state(state)
    assert [values_of(value) for value in resumed] == [[[8, 9, 10, 11], [12, 13]]]


BAD = {
    "no dict": (3, "set_state got 3; expected the dict that get_state returned"),
    "no version": ({"epoch": 0}, "a state of version None; this release reads version 1"),
    "new version": ({"version": 2}, "a state of version 2"),
    "no position": ({"version": 1, "epoch": 0}, "expected epoch and position to be ints"),
    "negative": ({"version": 1, "epoch": 0, "position": -1}, "expected epoch and position to be"),
    "bool": ({"version": 1, "epoch": True, "position": 0}, "expected epoch and position to be"),
    "other policy": (
        {"version": 1, "epoch": 0, "position": 0, "num_workers": 2, "batch_size": 4},
        "where 2 workers read streams of their own; here all workers share every batch",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_state_is_refused_and_changes_nothing(case):
    state, text = BAD[case]
    iterator = iter(mirrored(2).distribute_dataset(source()))
    next(iterator)
    with pytest.raises(ValueError, match=text):
        iterator.set_state(state)
    assert iterator.get_state() == {"version": 1, "epoch": 0, "position": 1}
