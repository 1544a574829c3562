"""What each worker reads, as a function of the policy, the source and the topology."""

import warnings

import pytest

from replicax.core import notices
from replicax.core.enums import AutoShardPolicy
from replicax.input.sharding import STREAM_NOTICE, Reads, parse_policy, plan_shards
from tests.input.pipelines import Files, Indexed, Stream, batches_of, topologies

OFF, AUTO, FILE = AutoShardPolicy.OFF, AutoShardPolicy.AUTO, AutoShardPolicy.FILE
DATA, HINT = AutoShardPolicy.DATA, AutoShardPolicy.HINT


@pytest.fixture(autouse=True)
def stream_notice():
    notices.forget(STREAM_NOTICE)


def stream(**known):
    return Stream(batches_of(range(8), 4), **known)


def indexed():
    return Indexed(batches_of(range(8), 4))


def files(count):
    return Files({f"file-{i}": [] for i in range(count)})


class IndexedFiles(Files, Indexed):
    """Files that can be indexed, such as ArrayRecord."""


def indexed_files():
    return IndexedFiles({f"file-{i}": [] for i in range(4)})


TABLE = {
    # case: (policy, source, workers) -> (policy in force, what is read, keeps the size)
    "one worker divides evenly": (AUTO, stream, 1, (DATA, Reads.EVERYTHING, False)),
    "one worker, DATA": (DATA, stream, 1, (DATA, Reads.EVERYTHING, False)),
    "one worker, OFF keeps the size": (OFF, stream, 1, (OFF, Reads.EVERYTHING, True)),
    "one worker, FILE keeps the size": (FILE, stream, 1, (FILE, Reads.EVERYTHING, True)),
    "one worker, HINT keeps the size": (HINT, stream, 1, (HINT, Reads.EVERYTHING, True)),
    "one worker with files shards nothing": (
        AUTO,
        lambda: files(4),
        1,
        (DATA, Reads.EVERYTHING, False),
    ),
    "an index is read in part": (AUTO, indexed, 2, (DATA, Reads.ITS_PART, False)),
    "an index is read in part, DATA": (DATA, indexed, 2, (DATA, Reads.ITS_PART, False)),
    "a stream is read whole": (DATA, stream, 2, (DATA, Reads.EVERYTHING, False)),
    "files": (AUTO, lambda: files(2), 2, (FILE, Reads.ITS_OWN_STREAM, True)),
    "files, FILE": (FILE, lambda: files(3), 2, (FILE, Reads.ITS_OWN_STREAM, True)),
    "files, DATA": (DATA, lambda: files(3), 2, (DATA, Reads.EVERYTHING, False)),
    "files with an index keep the sequence": (
        AUTO,
        indexed_files,
        2,
        (DATA, Reads.ITS_PART, False),
    ),
    "files with an index, FILE": (FILE, indexed_files, 2, (FILE, Reads.ITS_OWN_STREAM, True)),
    "an index, OFF": (OFF, indexed, 2, (OFF, Reads.ITS_OWN_STREAM, True)),
    "a stream, HINT": (HINT, stream, 2, (HINT, Reads.ITS_OWN_STREAM, True)),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_plan_is_the_same_on_every_worker(case):
    policy, make, num_workers, expected = TABLE[case]
    for topology in topologies(num_workers, 2):
        plan = plan_shards(policy, make(), topology)
        assert (plan.policy, plan.reads, plan.keeps_size) == expected


def test_whole_files_go_round():
    plans = [plan_shards(AUTO, files(5), topology) for topology in topologies(2)]
    assert [plan.source.files for plan in plans] == [
        ("file-0", "file-2", "file-4"),
        ("file-1", "file-3"),
    ]


def test_too_few_files_are_an_error_on_every_worker():
    for topology in topologies(3):
        with pytest.raises(
            ValueError, match=r"a test reader reads 2, and there are 3 workers\. Use AutoShardPol"
        ):
            plan_shards(FILE, files(2), topology)


def test_too_few_files_are_read_whole_under_auto():
    with pytest.warns(notices.ReplicaxWarning, match="each of the 3 workers reads all of it"):
        plan = plan_shards(AUTO, files(2), topologies(3)[0])
    assert (plan.policy, plan.reads) == (DATA, Reads.EVERYTHING)


def test_files_of_a_source_without_files_are_an_error():
    with pytest.raises(ValueError, match=r"a test stream is not read file by file\. Use Auto"):
        plan_shards(FILE, stream(), topologies(2)[1])


def test_only_the_chief_tells_of_a_stream_and_only_once():
    chief, other = topologies(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_shards(AUTO, stream(), other)
        plan_shards(DATA, stream(), chief)  # asked for by name
        plan_shards(AUTO, stream(), topologies(1)[0])
    with pytest.warns(notices.ReplicaxWarning, match="a test stream is a stream that cannot be"):
        plan_shards(AUTO, stream(), chief)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_shards(AUTO, stream(), chief)


def test_the_policy_of_the_pipeline_counts_unless_another_is_asked_for():
    topology = topologies(1)[0]
    source = stream(policy=OFF)
    assert plan_shards(None, source, topology).policy is OFF
    assert plan_shards(DATA, source, topology).policy is DATA
    assert plan_shards(None, stream(), topology).policy is DATA


def test_a_policy_may_be_given_by_name():
    assert parse_policy("off") is OFF
    assert parse_policy(DATA) is DATA
    assert parse_policy(None) is None
    with pytest.raises(ValueError, match=r"auto_shard_policy is 'all'; expected one of \['AutoSh"):
        parse_policy("all")
