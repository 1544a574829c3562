"""Every public name of TensorFlow exists in `replicax.tf`, or its error says what to write.

`tensorflow_names.txt` has the names, so that TensorFlow need not be installed. What an error
names, a function or a page of the documentation, must exist.
"""

import functools
import importlib
import pathlib
import re

import pytest

import replicax as rx
import replicax.tf as tf
from replicax.tf.replacements import REPLACEMENTS

ROOT = pathlib.Path(__file__).parents[2]
NAMES = pathlib.Path(__file__).with_name("tensorflow_names.txt")

# A text may name what is in one of these, by its full path.
LIBRARIES = (
    *("jax", "numpy", "optax", "replicax", "scipy"),
    *("base64", "csv", "glob", "hashlib", "logging", "pathlib", "queue", "shutil", "threading"),
    *("time", "zlib"),
)
PATH = re.compile(rf"\b(?:{'|'.join(LIBRARIES)})(?:\.[a-zA-Z_]\w*)+")
PAGE = re.compile(r"\b(?:docs|examples)/[\w/]+\.(?:md|py)\b")


def tensorflow_names():
    """The names of each module: ``{"tf.nn": ["relu", ...]}``."""
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    names, module = {}, ""
    for line in lines:
        if line.startswith("tf"):
            module = line.removesuffix(":")
        elif line.startswith(" "):
            names.setdefault(module, []).extend(line.split())
    return names


@functools.cache
def resolved(path):
    """What a dotted path names; raises if it does not exist."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return functools.reduce(getattr, parts[length:], found)
    raise AttributeError(f"no module of {path!r} can be imported")


def alternatives_in(text):
    """The paths and pages that a text names; fails for one that does not exist."""
    named = PATH.findall(text)
    for path in named:
        resolved(path)
    pages = PAGE.findall(text)
    missing = [page for page in pages if not (ROOT / page).is_file()]
    assert not missing, f"{missing} of {text!r}"
    return [*named, *pages]


def error_of(path):
    """What the first part of `path` that does not exist says, or None."""
    found = tf
    for part in path.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError as error:
            return str(error)
    return None


def test_the_list_has_the_names_of_all_modules():
    names = tensorflow_names()
    assert {"tf", "tf.nn", "tf.math", "tf.keras", "tf.io", "tf.data", "tf.distribute"} <= set(names)
    assert {"tf.saved_model", "tf.summary", "tf.keras.layers", "tf.keras.losses"} <= set(names)
    assert sum(map(len, names.values())) > 1500


# What is in the modules of tf.keras is Keras's own, and so are its errors.
OURS = [module for module in tensorflow_names() if not module.startswith("tf.keras.")]


@pytest.mark.parametrize("module", OURS)
def test_a_name_exists_or_its_error_names_what_does(module):
    unhelpful = {}
    for name in tensorflow_names()[module]:
        text = error_of(f"{module}.{name}")
        if text is None:
            continue
        said = text.partition(". ")[2]
        try:
            if not alternatives_in(said):
                unhelpful[name] = text
        except AttributeError as error:
            unhelpful[name] = f"{text} [{error}]"
    assert not unhelpful


def test_every_row_of_the_table_names_what_exists():
    for name, text in REPLACEMENTS.items():
        assert alternatives_in(text), f"{name}: {text}"


def test_no_row_is_for_a_name_that_exists():
    there = [name for name in REPLACEMENTS if "*" not in name and "[" not in name]
    assert [name for name in there if error_of(name) is None] == []


def test_every_row_is_for_a_name_of_tensorflow():
    names = {f"{module}.{name}" for module, names in tensorflow_names().items() for name in names}
    plain = {name for name in REPLACEMENTS if "*" not in name and "[" not in name}
    older = {"tf.image", "tf.string"}
    assert plain - names - older == set()


SAID = {
    "tf.clip_by_value": "replicax.tf has no 'clip_by_value'. Write jax.numpy.clip.",
    "tf.leaky": "replicax.tf has no 'leaky'. JAX has no function of that name either.",
    "tf.nn.leaky_relu": (
        "replicax.tf.nn has no 'leaky_relu'. Write jax.nn.leaky_relu with negative_slope=0.2, "
        "which is not the default there."
    ),
    "tf.summary.trace_on": "replicax.tf.summary has no 'trace_on'. Write jax.profiler.trace.",
    "tf.keras.wrong": (
        "replicax.tf.keras has no 'wrong'. Write what Keras 3 has instead: docs/keras.md."
    ),
    "tf.distribute.MirorredStrategy": "replicax.tf.distribute has no 'MirorredStrategy'.",
    "tf.io.gfile.GFile": (
        "replicax.tf.io has no 'gfile'. Write pathlib.Path, shutil.copy and shutil.rmtree."
    ),
    "tf.math.segment_sum": "replicax.tf.math has no 'segment_sum'. Write jax.ops.segment_sum.",
}


@pytest.mark.parametrize("path", SAID)
def test_an_error_is_short_and_says_what_to_write(path):
    assert error_of(path) == SAID[path]


def test_python_suggests_the_nearest_name_for_a_misspelt_one():
    with pytest.raises(AttributeError, match="has no 'MirorredStrategy'") as raised:
        tf.distribute.MirorredStrategy  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("MirorredStrategy", tf.distribute)


def test_tf_distribute_experimental_has_all_that_replicax_experimental_has():
    ours, documented = rx.experimental, tf.distribute.experimental
    assert ours.__all__ == documented.__all__
    assert all(getattr(ours, name) is getattr(documented, name) for name in ours.__all__)
    assert tf.compat.v1.distribute.experimental is documented
