"""Says what to write instead of a dataset method that is not here."""

from __future__ import annotations

__all__ = ["INSTEAD", "missing_method"]

INSTEAD = {
    "assert_cardinality": "take(count)",
    "batch_and_drop_remainder": "batch(batch_size, drop_remainder=True)",
    "bucket_by_sequence_length": "padded_batch, after sorting or filtering by length",
    "choose_from_datasets": "concatenate, interleave or zip",
    "counter": "range",
    "dense_to_ragged_batch": "padded_batch",
    "dense_to_sparse_batch": "padded_batch",
    "from_sparse_tensor_slices": "from_tensor_slices with dense arrays",
    "get_single_element": "next(iter(dataset))",
    "group_by_window": "filter once for each group, then batch",
    "ignore_errors": "a function for map that handles its errors, then filter",
    "list_files": "from_tensor_slices(sorted(glob.glob(pattern)))",
    "load": "TFRecordDataset, or from_tensor_slices(numpy.load(...))",
    "make_initializable_iterator": "iter(dataset)",
    "make_one_shot_iterator": "iter(dataset)",
    "ragged_batch": "padded_batch",
    "random": "range(n).map with a jax.random key folded with the number",
    "rebatch": "unbatch().batch(batch_size)",
    "rejection_resample": "filter",
    "sample_from_datasets": "concatenate followed by shuffle, or grain.MapDataset.mix",
    "save": "as_numpy_iterator() and numpy.savez",
    "scan": "a generator function with from_generator",
    "snapshot": "cache()",
    "sparse_batch": "padded_batch",
    "take_while": "a generator function with from_generator",
    "unique": "a generator function with from_generator",
    "window": "batch, whose elements are arrays of consecutive examples",
}
"""What does the work of a method that is not here."""


def missing_method(name: str) -> AttributeError:
    """The error for an attribute that `Dataset` does not have.

    Example:
        >>> missing_method("window").args[0]
        "Dataset has no 'window'. Use batch, whose elements are arrays of consecutive examples."
    """
    if name in INSTEAD:
        return AttributeError(f"Dataset has no {name!r}. Use {INSTEAD[name]}.")
    return AttributeError(
        f"Dataset has no {name!r}. Grain has more transformations: distribute a grain.MapDataset "
        "or grain.IterDataset in its place."
    )
