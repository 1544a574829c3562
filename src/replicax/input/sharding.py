"""Decides what each worker reads of a pipeline of global batches.

Pure: a function of the policy, of what the source can do and of the topology,
so that what all workers of a cluster would read can be computed on one machine.
"""

from __future__ import annotations

import dataclasses
import enum

from replicax.core import notices
from replicax.core.enums import AutoShardPolicy
from replicax.core.errors import ShardingError
from replicax.input.source import FileSource, IndexedSource, Source
from replicax.input.topology import InputTopology

STREAM_NOTICE = "every worker reads the whole stream"
"""The key of the notice about a pipeline that cannot be divided."""

_KEEP_SIZE = (AutoShardPolicy.OFF, AutoShardPolicy.FILE, AutoShardPolicy.HINT)


class Reads(enum.Enum):
    """What a worker reads."""

    EVERYTHING = "all batches, of which it keeps its part"
    ITS_PART = "its part of every batch"
    ITS_OWN_STREAM = "a stream of its own, of which it takes its share in every step"


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPlan:
    """What one worker reads.

    Attributes:
        source: The pipeline, over this worker's files if files are divided.
        policy: The policy in force; never AUTO.
        reads: What is read of the source.
        keeps_size: Whether a short batch is divided by the per-replica sizes of a full
            one, instead of evenly.
    """

    source: Source
    policy: AutoShardPolicy
    reads: Reads
    keeps_size: bool


def parse_policy(policy: object) -> AutoShardPolicy | None:
    """The policy that was asked for, by its value or name; None if none was.

    Raises:
        ShardingError: If it is no policy.

    Example:
        >>> parse_policy("data")
        <AutoShardPolicy.DATA: 2>
    """
    if policy is None or isinstance(policy, AutoShardPolicy):
        return policy
    if isinstance(policy, str) and policy.upper() in AutoShardPolicy.__members__:
        return AutoShardPolicy[policy.upper()]
    names = [f"AutoShardPolicy.{member.name}" for member in AutoShardPolicy]
    raise ShardingError(f"auto_shard_policy is {policy!r}; expected one of {names}, or None.")


def plan_shards(
    policy: AutoShardPolicy | None, source: Source, topology: InputTopology
) -> ShardPlan:
    """What the worker of this topology reads of `source`.

    Args:
        policy: What the caller asked for. None: what the source asks for, else AUTO.
        source: The pipeline.
        topology: The workers, and which of them this is.

    Raises:
        ShardingError: If whole files were asked for and there is not one for every worker.
    """
    if policy is None:
        policy = source.auto_shard_policy
    if policy is None:
        policy = AutoShardPolicy.AUTO
    if topology.num_workers == 1:
        chosen = AutoShardPolicy.DATA if policy is AutoShardPolicy.AUTO else policy
        return ShardPlan(source, chosen, Reads.EVERYTHING, policy in _KEEP_SIZE)
    asked = policy
    if policy is AutoShardPolicy.AUTO:
        policy = _automatic(source, topology)
    if policy is AutoShardPolicy.FILE:
        return ShardPlan(_of_own_files(source, topology), policy, Reads.ITS_OWN_STREAM, True)
    if policy is AutoShardPolicy.DATA:
        if isinstance(source, IndexedSource):
            return ShardPlan(source, policy, Reads.ITS_PART, False)
        if asked is AutoShardPolicy.AUTO and topology.is_chief:
            _tell_of_stream(source, topology)
        return ShardPlan(source, policy, Reads.EVERYTHING, False)
    return ShardPlan(source, policy, Reads.ITS_OWN_STREAM, True)


def _automatic(source: Source, topology: InputTopology) -> AutoShardPolicy:
    if isinstance(source, IndexedSource):  # the same sequence with any number of workers
        return AutoShardPolicy.DATA
    if isinstance(source, FileSource) and len(source.files) >= topology.num_workers:
        return AutoShardPolicy.FILE
    return AutoShardPolicy.DATA


def _of_own_files(source: Source, topology: InputTopology) -> Source:
    instead = "Use AutoShardPolicy.DATA, which gives every worker a part of each batch"
    if not isinstance(source, FileSource):
        raise ShardingError(
            f"AutoShardPolicy.FILE divides files among the workers, but {source.description} is "
            f"not read file by file. {instead}."
        )
    files, num_workers = source.files, topology.num_workers
    if len(files) < num_workers:
        raise ShardingError(
            f"AutoShardPolicy.FILE needs a file for every worker: {source.description} reads "
            f"{len(files)}, and there are {num_workers} workers. {instead}, or write at least "
            f"{num_workers} files."
        )
    return source.of_files(tuple(files[topology.worker_id :: num_workers]))


def _tell_of_stream(source: Source, topology: InputTopology) -> None:
    notices.notify_once(
        STREAM_NOTICE,
        f"{source.description} is a stream that cannot be read in part: each of the "
        f"{topology.num_workers} workers reads all of it and keeps its part of every batch. Use a "
        "pipeline that can be indexed (a Grain MapDataset, arrays) or has a file for every worker, "
        "or divide it yourself in distribute_datasets_from_function; AutoShardPolicy.DATA says "
        "that this is what you want.",
    )
