"""The files that a Grain stream reads, and the same stream over some of them.

Grain does not say which files a stream reads, so this and `grain_nodes` are the only modules that
look at private attributes of Grain. A node that names files is made again by its public
constructor. ArrayRecord files have no place here: they are read by index, and divided by record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from replicax.core.errors import BatchError
from replicax.input.adapters.grain_nodes import Node, kind_of, with_parents

# Nodes that mean the same over fewer files. A slice, a limit, a mixture or a zip does not.
_OVER_ANY_FILES = frozenset(
    {
        "BatchIterDataset",
        "CacheIterDataset",
        "FilterIterDataset",
        "FilterMapDataset",
        "FlatMapIterDataset",
        "MapIterDataset",
        "MapMapDataset",
        "MapWithIndexIterDataset",
        "MapWithIndexMapDataset",
        "PrefetchIterDataset",
        "RandomMapIterDataset",
        "RandomMapMapDataset",
        "RebatchIterDataset",
        "RepeatIterDataset",
        "RepeatMapDataset",
        "ShuffleMapDataset",
        "ThreadPrefetchIterDataset",
        "WindowShuffleIterDataset",
        "WindowShuffleMapDataset",
        "WithOptionsIterDataset",
        "_WithSeedIterDataset",
        "_WithSeedMapDataset",
    }
)


def files_of(dataset: Node) -> tuple[str, ...]:
    """The files of a pipeline, in the order in which they were given.

    Empty if it reads none that can be told, if one is read twice, or if a node of it
    means something else over fewer files.
    """
    files = _files_below(dataset)
    return tuple(files) if len(set(files)) == len(files) else ()


def over_files(dataset: Node, files: Sequence[str]) -> Node:
    """The same pipeline over some of its files.

    Raises:
        BatchError: If there are none, or one that the pipeline does not read.
    """
    known = files_of(dataset)
    if not files or not set(files) <= set(known):
        raise BatchError(
            f"a Grain pipeline over the files {list(known)} was asked to read {list(files)}; "
            "expected at least one of its own files."
        )
    return _over(dataset, frozenset(files))


def _files_below(node: Node) -> list[str]:
    kind = kind_of(node)
    if kind == "ParquetIterDataset":
        return _names(node._paths)
    if kind == "TFRecordIterDataset":
        return _names([node._path])
    if kind == "InterleaveIterDataset":
        return _files_interleaved(node._datasets)
    if kind in _OVER_ANY_FILES:
        return _files_below(node.parents[0])
    return []


def _files_interleaved(datasets: Any) -> list[str]:
    if not isinstance(datasets, (list, tuple)):  # a MapDataset that makes a dataset of each name
        return _names(_listed(datasets))
    files = [_files_below(dataset) for dataset in datasets]
    return [name for names in files for name in names] if all(files) else []


def _listed(node: Node) -> Sequence[Any]:
    """The list at the source of a `MapDataset`."""
    while kind_of(node) in _OVER_ANY_FILES:
        node = node.parents[0]
    source = node._source if kind_of(node) == "SourceMapDataset" else ()
    return source if isinstance(source, (list, tuple)) else ()


def _names(paths: Sequence[Any]) -> list[str]:
    """File names as strings; none if one of them is no file name."""
    if not all(isinstance(path, (str, bytes, os.PathLike)) for path in paths):
        return []
    return [os.fsdecode(path) for path in paths]


def _over(node: Node, files: frozenset[str]) -> Node:
    kind = kind_of(node)
    if kind == "SourceMapDataset":
        return type(node)(_kept(node._source, files))
    if kind == "ParquetIterDataset":
        return type(node)(_kept(node._paths, files), **node._read_kwargs)
    if kind == "TFRecordIterDataset":
        return node
    if kind == "InterleaveIterDataset":
        return type(node)(
            _interleaved_over(node._datasets, files),
            cycle_length=node._cycle_length,
            num_make_iter_threads=node._num_make_iter_threads,
            make_iter_buffer_size=node._make_iter_buffer_size,
            iter_buffer_size=node._iter_buffer_size,
        )
    parent = _over(node.parents[0], files)
    if kind == "RepeatMapDataset":
        return type(node)(parent, node._num_epochs, reseed_each_epoch=node._reseed_each_epoch)
    return with_parents(node, [parent])


def _interleaved_over(datasets: Any, files: frozenset[str]) -> Any:
    if isinstance(datasets, (list, tuple)):
        return [_over(each, files) for each in datasets if not files.isdisjoint(_files_below(each))]
    return _over(datasets, files)


def _kept(paths: Sequence[Any], files: frozenset[str]) -> list[Any]:
    return [path for path in paths if os.fsdecode(path) in files]
