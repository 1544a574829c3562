"""The rows of the large libraries, which have an environment of their own."""

import tensorflow as tf
import torch

from tests.input.adapters.row import Row


class Examples(torch.utils.data.Dataset):
    def __init__(self, examples, each):
        self._examples = examples
        self._each = each

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index):
        return {"x": self._each(self._examples[index])}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, examples, each):
        self._examples = examples
        self._each = each

    def __iter__(self):
        return ({"x": self._each(x)} for x in self._examples)


def torch_loader(examples, batch_size, each):
    return torch.utils.data.DataLoader(Examples(examples, each), batch_size=batch_size)


def torch_stream(examples, batch_size, each):
    return torch.utils.data.DataLoader(Stream(examples, each), batch_size=batch_size)


def tensorflow(examples, batch_size, each):
    return tf.data.Dataset.from_tensor_slices({"x": examples}).batch(batch_size)


ROWS = (
    Row("a torch DataLoader", torch_loader, knows_spec=False),
    Row("a torch DataLoader of a stream", torch_stream, knows_cardinality=False, knows_spec=False),
    Row("a tf.data.Dataset", tensorflow, has_function=False),
)
