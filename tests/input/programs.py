"""Random pipelines for property tests, and what the workers of a cluster read of them."""

import contextlib
import dataclasses
import itertools

import grain
import jax
import numpy as np
from hypothesis import strategies as st

import replicax as rx
from replicax.core.enums import AutoShardPolicy
from replicax.core.options import InputOptions
from replicax.data import Dataset
from replicax.input.adapters.table import source_of
from replicax.input.dataset import DistributedDataset
from replicax.input.global_batches import GlobalBatches
from replicax.input.sharding import plan_shards
from replicax.input.topology import InputTopology

LIMIT = 30
"""How many steps are looked at, of pipelines that may be endless."""

NUM_DEVICES = 8

counts = st.integers(0, 9)
seeds = st.integers(0, 2**31 - 1)
# Often more examples than replicas, and seldom a multiple of them.
batch_sizes = st.one_of(st.integers(1, 6), st.integers(5, 20))

# -- what pipelines are made of: a name, then a function of the pipeline and a number ----------

OWN_EXAMPLES = {
    "take": lambda d, n: d.take(4 * n),
    "skip": lambda d, n: d.skip(n),
    "shard": lambda d, n: d.shard(n % 3 + 1, n % 2 if n % 3 else 0),
    "repeat": lambda d, n: d.repeat(n % 3 + 1),
    "map": lambda d, n: d.map(lambda x: x * 3 + n),
    "threads": lambda d, n: d.map(lambda x: x - n, num_parallel_calls=2),
    "concatenate": lambda d, n: d.concatenate(Dataset.range(n)),
    "zip": lambda d, n: Dataset.zip(d, Dataset.range(5 * n)).map(lambda a, b: a * 7 + b),
    "enumerate": lambda d, n: d.enumerate(n).map(lambda i, x: i * 100 + x),
    "cache": lambda d, n: d.cache(),
    "shuffle": lambda d, n: d.shuffle(n + 2, seed=n),
    "fixed shuffle": lambda d, n: d.shuffle(100, seed=n, reshuffle_each_iteration=False),
    "prefetch": lambda d, n: d.prefetch(n % 3),
    "nest": lambda d, n: d.map(lambda x: {"x": x, "y": np.full(n % 3, x)}).map(lambda e: e["x"]),
}
OWN_STREAMS = {
    "filter": lambda d, n: d.filter(lambda x: x % (n + 2) != 0),
    "unbatch": lambda d, n: d.batch(n + 1).unbatch(),
    "interleave": lambda d, n: d.interleave(
        lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=n % 3 + 1
    ),
}
OWN_BATCHES = {
    "map": lambda d, n: d.map(lambda x: x + n),
    "repeat": lambda d, n: d.repeat(n % 3 + 1),
    "endless": lambda d, n: d.repeat(),
    "shuffle": lambda d, n: d.shuffle(n + 2, seed=n),
    "take": lambda d, n: d.take(n),
    "skip": lambda d, n: d.skip(n % 4),
    "cache": lambda d, n: d.cache(),
    "prefetch": lambda d, n: d.prefetch(n % 3),
}
GRAIN_EXAMPLES = {
    "slice": lambda d, n: d[n % 3 :],
    "shuffle": lambda d, n: d.shuffle(seed=n),
    "repeat": lambda d, n: d.repeat(n % 3 + 1),
    "map": lambda d, n: d.map(lambda x: x * 3 + n),
    "random map": lambda d, n: d.random_map(lambda x, rng: x + rng.integers(1000), seed=n),
    "windows": lambda d, n: grain.experimental.WindowShuffleMapDataset(d, window_size=4, seed=n),
}
GRAIN_BATCHES = {
    "map": lambda d, n: d.map(lambda x: x + n),
    "repeat": lambda d, n: d.repeat(n % 3 + 1),
    "shuffle": lambda d, n: d.shuffle(seed=n),
    "slice": lambda d, n: d[n % 3 :],
}
KINDS = {
    "dataset": (OWN_EXAMPLES, OWN_BATCHES),
    "stream": ({**OWN_EXAMPLES, **OWN_STREAMS}, OWN_BATCHES),
    "grain": (GRAIN_EXAMPLES, GRAIN_BATCHES),
    "grain iter": (GRAIN_EXAMPLES, GRAIN_BATCHES),
    "arrays": ({}, {}),
}


def nested(batch):
    return {"x": batch, "y": (batch * 2.0, np.stack([batch, -batch], axis=1))}


@dataclasses.dataclass(frozen=True)
class Program:
    """A pipeline of global batches that can be made again and again.

    Attributes:
        kind: Which library it is of.
        size: How many examples it begins with.
        batch_size: The global batch size.
        drop_remainder: Whether a last short batch is left out.
        examples: The steps before the batch step, each a name and a number.
        batches: The steps after it.
        is_nested: Whether every batch becomes a nest in the end.
    """

    kind: str
    size: int
    batch_size: int
    drop_remainder: bool = False
    examples: tuple[tuple[str, int], ...] = ()
    batches: tuple[tuple[str, int], ...] = ()
    is_nested: bool = False

    def make(self):
        """The pipeline, or None for arrays, which have none."""
        if self.kind == "arrays":
            return None
        is_own = self.kind in ("dataset", "stream")
        on_examples, on_batches = KINDS[self.kind]
        pipeline = Dataset.range(self.size) if is_own else grain.MapDataset.range(self.size)
        for name, n in self.examples:
            pipeline = on_examples[name](pipeline, n)
        pipeline = pipeline.batch(self.batch_size, drop_remainder=self.drop_remainder)
        for name, n in self.batches:
            pipeline = on_batches[name](pipeline, n)
        if self.is_nested:
            pipeline = pipeline.map(nested)
        return pipeline.to_iter_dataset() if self.kind == "grain iter" else pipeline

    def source(self):
        """The same as a source."""
        if self.kind != "arrays":
            return source_of(self.make())
        x = np.arange(self.size)
        return source_of({"x": x, "y": np.stack([x, -x], axis=1)}, batch_size=self.batch_size)


@st.composite
def programs(draw, kinds=tuple(KINDS), max_size=60):
    """Any pipeline of the given kinds."""
    kind = draw(st.sampled_from(kinds))
    size = draw(st.integers(1 if kind.startswith("grain") else 0, max_size))
    lists = []
    for table in KINDS[kind]:
        names = st.sampled_from([*sorted(table), *["shuffle"] * 4])  # what is hardest to divide
        lists.append(tuple(draw(st.lists(st.tuples(names, counts), max_size=3)) if table else ()))
    return Program(
        kind,
        size,
        draw(batch_sizes),
        draw(st.booleans()) if kind != "arrays" else False,
        *lists,
        draw(st.booleans()),
    )


# -- what is read ------------------------------------------------------------------------------


def cluster(num_workers, replicas_per_worker):
    """The topologies of all workers, for rules that need no agreement."""
    return [InputTopology(num_workers, w, replicas_per_worker) for w in range(num_workers)]


def parts_read(source, topology, *, epoch=0, start=0, limit=LIMIT):
    """For each step, for each leaf, the parts of the replicas of one worker."""
    plan = plan_shards(AutoShardPolicy.DATA, source, topology)
    opened = GlobalBatches(plan, topology).open(epoch=epoch, start=start)
    with contextlib.closing(opened):
        return [
            [share.local_parts() for share in step.shares]
            for step in itertools.islice(opened, limit)
        ]


def batches_read(source, *, epoch=0, start=0, limit=LIMIT):
    """For each step, the leaves of the global batch, as one worker with one replica reads it."""
    steps = parts_read(source, cluster(1, 1)[0], epoch=epoch, start=start, limit=limit)
    return [[parts[0] for parts in leaves] for leaves in steps]


def assert_same_batches(got, expected):
    assert len(got) == len(expected)
    for leaves, wanted in zip(got, expected, strict=True):
        for leaf, want in zip(leaves, wanted, strict=True):
            assert (leaf.shape, leaf.dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(leaf, want)


MESHES = {}


def mesh_of(num_replicas):
    if num_replicas not in MESHES:
        devices = [f"CPU:{i}" for i in range(num_replicas)]
        MESHES[num_replicas] = rx.MirroredStrategy(devices).extended.mesh
    return MESHES[num_replicas]


def dataset_of(source, topology, *, buffer_size=0, policy=AutoShardPolicy.DATA):
    """The distributed dataset of one worker, whose batches stay on the host."""
    options = InputOptions(
        experimental_fetch_to_device=False, experimental_per_replica_buffer_size=buffer_size
    )
    reading = GlobalBatches(plan_shards(policy, source, topology), topology)
    return DistributedDataset(reading, mesh_of(topology.num_replicas), topology, options)


def leaves_of(value):
    """The parts of this worker put together, leaf by leaf."""
    leaves = jax.tree_util.tree_leaves(value, is_leaf=lambda x: isinstance(x, rx.PerReplica))
    return [np.concatenate(getattr(leaf, "values", (leaf,))) for leaf in leaves]


def together(workers):
    """The steps of all workers as global batches; all must have made as many."""
    return [
        [np.concatenate(parts) for parts in zip(*step, strict=True)]
        for step in zip(*workers, strict=True)
    ]


@st.composite
def layouts(draw, max_replicas=NUM_DEVICES):
    """Workers (1 to 4) and replicas of each, as many as there are devices at most."""
    num_workers = draw(st.integers(1, 4))
    return num_workers, draw(st.integers(1, max_replicas // num_workers))
