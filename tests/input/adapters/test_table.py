"""The table of adapters: which row answers, and the errors for what no row can answer."""

import importlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.core.errors import BatchError
from replicax.input.adapters import table
from replicax.input.adapters.arrays import ArraySource
from replicax.input.adapters.iterables import BatchListSource, IterableSource, OneShotSource
from replicax.input.adapters.table import ROWS, Row, source_of


def class_of(module, name, bases=()):
    return type(name, bases, {"__module__": module})


def row_for(kind):
    return next(row for row in ROWS if row.matches(kind))


def test_a_class_is_known_by_the_root_of_its_module_and_its_name():
    row = Row("grain", "MapDataset", "grain_map")
    assert row.matches(class_of("grain._src.somewhere", "MapDataset"))
    assert not row.matches(class_of("grains.dataset", "MapDataset"))
    assert not row.matches(class_of("grain", "Dataset"))


def test_a_class_is_known_by_what_it_derives_from():
    library = class_of("torch.utils.data.dataloader", "DataLoader")
    assert row_for(class_of("my.project", "Loader", (library,))).adapter == "torch_loader"


def test_hugging_face_comes_before_torch():
    torch = class_of("torch.utils.data", "DataLoader")
    both = class_of("datasets.iterable_dataset", "IterableDataset", (torch,))
    assert row_for(both).adapter == "hugging_face"


def test_importing_the_table_imports_no_optional_library():
    code = (
        "import sys, replicax, replicax.input.adapters.table as t, numpy\n"
        "t.source_of([numpy.zeros(3)]), t.source_of(numpy.zeros(3), batch_size=2)\n"
        "libraries = {'grain', 'torch', 'tensorflow', 'keras', 'datasets', 'pyarrow'}\n"
        "print(*libraries & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.split()) == (0, [])


def test_every_row_names_an_adapter():
    for row in ROWS:
        adapter = importlib.import_module(f"{table.__package__}.{row.adapter}")
        assert callable(adapter.source_of)


@pytest.mark.parametrize(
    ("dataset", "batch_size", "kind"),
    [
        (np.zeros((4, 2)), 2, ArraySource),
        (jnp.zeros((4, 2)), 2, ArraySource),
        ({"x": np.zeros(4), "y": (np.zeros(4), [1, 2, 3, 4])}, 2, ArraySource),
        ((np.zeros(4), np.zeros(4)), 2, ArraySource),
        ([1, 2, 3], 2, ArraySource),
        ([np.zeros(4), np.zeros(4)], None, BatchListSource),
        (lambda: [np.zeros(4)], None, IterableSource),
        ({1: 2}.values(), None, IterableSource),
        (iter([np.zeros(4)]), None, OneShotSource),
        ((x for x in [np.zeros(4)]), None, OneShotSource),
    ],
)
def test_what_no_row_knows_is_arrays_or_plain_python(dataset, batch_size, kind):
    assert type(source_of(dataset, batch_size=batch_size)) is kind


class DistributedDataset:
    pass


@pytest.mark.parametrize(
    ("dataset", "batch_size", "message"),
    [
        (None, None, r"None was given as a dataset.*return it\?"),
        (DistributedDataset(), None, r"a DistributedDataset is distributed already"),
        (5, None, r"5 cannot be distributed as a dataset; expected a pipeline"),
        (object, 3, r"batch_size=3 was given with a type, which makes its own batches"),
        ([np.zeros(4)], 2, r"batch_size=2 was given with a list"),
        (np.zeros(4), 0, r"batch_size is 0; expected an int, 1 or more"),
        (np.zeros(4), True, r"batch_size is True; expected"),
        (np.zeros(4), 2.0, r"batch_size is 2\.0; expected"),
        (np.zeros((4, 2)), None, r"shapes \(4, 2\).*Pass batch_size=, or a list of batches"),
        ({"x": np.zeros(4), "y": 3}, 2, r"leaf \['y'\] .* is a scalar, 3"),
        ({"x": np.zeros(4), "y": np.zeros(3)}, 2, r"\['x'\]: 4, \['y'\]: 3"),
        ({}, 2, r"gave \{\}, which has no arrays in it"),
        ((), 2, r"gave \(\), which has no arrays in it"),
        (lambda x: x, None, r"cannot be called without arguments \(missing.*'x'.*partial"),
    ],
)
def test_what_cannot_be_a_dataset_is_refused(dataset, batch_size, message):
    with pytest.raises(BatchError, match=message):
        source_of(dataset, batch_size=batch_size)
