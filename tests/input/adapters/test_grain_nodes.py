"""The private attributes of Grain that are relied on, each with what it must mean.

When a release of Grain moves one, a test here says which.
"""

import pathlib
import re

import grain
import numpy as np
import pytest

import replicax.input.adapters
from replicax.input.adapters import grain_nodes
from replicax.input.adapters.grain_nodes import BatchStep

RANGE = grain.MapDataset.range(10)
STREAM = RANGE.to_iter_dataset()
OPTIONS = grain.ReadOptions(num_threads=3, prefetch_buffer_size=7)


def double(x):
    return 2 * x


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        (RANGE.batch(3), "_parents", (RANGE,)),
        (RANGE.batch(3), "_parent", RANGE),
        (RANGE.batch(3), "_batch_size", 3),
        (RANGE.batch(3, drop_remainder=True), "_drop_remainder", True),
        (RANGE.batch(3, batch_fn=np.stack), "_batch_fn", np.stack),
        (STREAM.batch(3), "_parent", STREAM),
        (STREAM.batch(3), "_batch_size", 3),
        (STREAM.batch(3, drop_remainder=True), "_drop_remainder", True),
        (STREAM.batch(3, batch_fn=np.stack), "_batch_fn", np.stack),
        (STREAM.map(double), "_transform", double),
        (RANGE.to_iter_dataset(OPTIONS), "_read_options", OPTIONS),
        (RANGE.repeat(2), "_num_epochs", 2),
        (RANGE.repeat(2, reseed_each_epoch=False), "_reseed_each_epoch", False),
        (grain.experimental.RepeatIterDataset(STREAM, 2), "_num_epochs", 2),
        (grain.experimental.RebatchIterDataset(STREAM.batch(2), 5), "_batch_size", 5),
        (grain.MapDataset.source([1, 2]), "_source", [1, 2]),
        (grain.experimental.ParquetIterDataset(["a", "b"]), "_paths", ["a", "b"]),
        (
            grain.experimental.ParquetIterDataset("a", buffer_size=1),
            "_read_kwargs",
            {"buffer_size": 1},
        ),
        (grain.experimental.TFRecordIterDataset("a"), "_path", "a"),
        (
            grain.experimental.InterleaveIterDataset([STREAM], cycle_length=1),
            "_datasets",
            [STREAM],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_node_keeps_what_it_was_given(node, name, value):
    assert getattr(node, name) == value


@pytest.mark.parametrize("dataset", [RANGE.batch(3), STREAM.batch(3)])
def test_the_default_way_to_batch_is_known_by_name(dataset):
    assert BatchStep(dataset).only_stacks
    assert not BatchStep(RANGE.batch(3, batch_fn=np.stack)).only_stacks


def test_the_length_of_a_batch_node_can_be_computed_again():
    node = RANGE.batch(3)
    assert node._length == node._get_length() == 4


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        (RANGE.seed(1), "_WithSeedMapDataset"),
        (RANGE.shuffle(seed=1), "ShuffleMapDataset"),
        (RANGE.repeat(2), "RepeatMapDataset"),
        (RANGE[1:3], "SliceMapDataset"),
        (RANGE.filter(bool), "FilterMapDataset"),
        (RANGE.batch(3), "BatchMapDataset"),
        (RANGE.map(double), "MapMapDataset"),
        (grain.MapDataset.mix([RANGE, RANGE]), "MixedMapDataset"),
        (grain.MapDataset.concatenate([RANGE, RANGE]), "ConcatenateMapDataset"),
        (grain.experimental.ZipMapDataset([RANGE, RANGE]), "ZipMapDataset"),
        (STREAM, "PrefetchIterDataset"),
        (STREAM.batch(3), "BatchIterDataset"),
        (STREAM.map(double), "MapIterDataset"),
        (STREAM.filter(bool), "FilterIterDataset"),
        (STREAM.seed(1), "_WithSeedIterDataset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_kinds_of_nodes_have_the_names_they_are_known_by(dataset, kind):
    assert grain_nodes.kind_of(dataset) == kind


def test_a_node_of_the_users_has_no_kind():
    class BatchMapDataset(grain.MapDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.arange(3)

    assert grain_nodes.kind_of(BatchMapDataset()) == ""
    assert not grain_nodes.is_unbatched(BatchMapDataset())
    assert grain_nodes.batch_steps(BatchMapDataset()) is None


def test_a_loader_keeps_what_it_was_given():
    sampler = grain.samplers.SequentialSampler(10, grain.sharding.NoSharding())
    loader = grain.DataLoader(
        data_source=RANGE, sampler=sampler, operations=[grain.transforms.Batch(3)]
    )
    assert loader._sampler is sampler
    assert loader._shard_options.shard_count == 1
    assert [type(op).__name__ for op in loader._operations] == ["Batch"]
    assert isinstance(loader._dataset, grain.IterDataset)


def test_no_other_module_touches_private_attributes_of_grain():
    folder = pathlib.Path(replicax.input.adapters.__path__[0])
    outside = [folder / name for name in ("grain_map.py", "grain_iter.py", "grain_loader.py")]
    private = re.compile(r"(?<!self)\._(?!_)\w+")
    assert {path.name: private.findall(path.read_text()) for path in outside} == {
        path.name: [] for path in outside
    }
