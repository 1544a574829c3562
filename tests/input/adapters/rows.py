"""A row for each kind of dataset: how it is made of examples, and what its adapter can do.

A new adapter gets a row here, and is tested by `contract.py` without a test of its own.
"""

import datasets
import grain
import jax
import keras

from replicax.input.pipeline.dataset import Dataset
from tests.input.adapters.row import Row, cut, mapped


def grain_map(examples, batch_size, each):
    return grain.MapDataset.source(examples).map(lambda x: {"x": each(x)}).batch(batch_size)


def grain_map_of_batches(examples, batch_size, each):
    return grain_map(examples, batch_size, each).map(lambda batch: {"x": batch["x"] + 0})


def grain_iter(examples, batch_size, each):
    return grain.MapDataset.source(examples).map(each).batch(batch_size).to_iter_dataset()


def grain_iter_batch(examples, batch_size, each):
    return grain.MapDataset.source(examples).map(each).to_iter_dataset().batch(batch_size)


def grain_iter_stream(examples, batch_size, each):
    stream = grain.MapDataset.source(examples).map(each).to_iter_dataset()
    return stream.filter(lambda x: True).batch(batch_size)


class OnEach(grain.transforms.Map):
    def __init__(self, each):
        self._each = each

    def map(self, element):
        return self._each(element)


class Keep(grain.transforms.Filter):
    def __init__(self, keep):
        self._keep = keep

    def filter(self, element):
        return self._keep


def grain_loader(examples, batch_size, each):
    records = list(examples) or [0]  # a sampler refuses a source without records
    keep = Keep(len(examples) > 0)
    return grain.DataLoader(
        data_source=records,
        sampler=grain.samplers.SequentialSampler(len(records), grain.sharding.NoSharding()),
        operations=[OnEach(each), keep, grain.transforms.Batch(batch_size)],
    )


def own_dataset(examples, batch_size, each):
    return Dataset.from_tensor_slices({"x": examples}).map(on_x(each)).batch(batch_size)


def on_x(each):
    return lambda example: {"x": each(example["x"])}


def hugging_face_table(examples, batch_size, each):
    return datasets.Dataset.from_dict({"x": examples}).with_format("numpy")


def hugging_face_stream(examples, batch_size, each):
    def generate():
        for x in examples:
            yield {"x": each(x)}

    features = datasets.Features({"x": datasets.List(datasets.Value("int64"))})
    stream = datasets.IterableDataset.from_generator(generate, features=features)
    return stream.batch(batch_size)


class Pairs(keras.utils.PyDataset):
    def __init__(self, examples, batch_size, each):
        super().__init__()
        self._batches = cut(examples, batch_size)
        self._each = each

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, index):
        x = mapped(self._batches[index], self._each)
        return x, x[:, 0]


class Again:
    """An iterable that is no sequence."""

    def __init__(self, examples, batch_size, each):
        self._batches = cut(examples, batch_size)
        self._each = each

    def __iter__(self):
        for batch in self._batches:
            yield {"x": mapped(batch, self._each)}


def generator_function(examples, batch_size, each):
    return lambda: iter(Again(examples, batch_size, each))


PARTS = {"is_indexed": True, "is_frugal": True}
UNKNOWN = {"knows_cardinality": False, "knows_batch_size": False, "knows_spec": False}
GIVEN = {"takes_batch_size": True, "has_function": False}

ROWS = (
    Row("a Dataset", own_dataset, **PARTS),
    Row("a Grain MapDataset", grain_map, **PARTS),
    Row(
        "a Grain MapDataset with a function on batches",
        grain_map_of_batches,
        is_indexed=True,
        knows_batch_size=False,
    ),
    Row("a Grain IterDataset of batches", grain_iter, **PARTS, reads_ahead=True),
    Row("a Grain IterDataset that batches", grain_iter_batch, **PARTS, reads_ahead=True),
    Row(
        "a Grain stream",
        grain_iter_stream,
        knows_cardinality=False,
        knows_spec=False,
        reads_ahead=True,
    ),
    Row(
        "a Grain DataLoader",
        grain_loader,
        knows_cardinality=False,
        knows_spec=False,
        reads_ahead=True,
    ),
    Row("a NumPy array", lambda examples, size, each: examples, **PARTS, **GIVEN),
    Row("a JAX array", lambda examples, size, each: jax.numpy.asarray(examples), **PARTS, **GIVEN),
    Row("a nest of arrays", lambda examples, size, each: {"x": examples}, **PARTS, **GIVEN),
    Row(
        "a list of batches",
        lambda examples, size, each: cut(examples, size),
        is_indexed=True,
        has_function=False,
        knows_batch_size=False,
        knows_spec=False,
    ),
    Row("an iterable", Again, **UNKNOWN),
    Row("a generator function", generator_function, **UNKNOWN),
    Row("a Hugging Face Dataset", hugging_face_table, **PARTS, **GIVEN),
    Row("a Hugging Face IterableDataset", hugging_face_stream, **UNKNOWN),
    Row("a Keras PyDataset", Pairs, knows_batch_size=False, knows_spec=False),
)
