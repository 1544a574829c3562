"""The private names of Keras that this package uses; no other file has one.

Keras has no public way to ask whether it is only computing shapes, or to say what its loss
functions divide by. ``tests/integrations/keras/test_hooks.py`` fails when one of these moves.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.config import is_nnx_enabled
from keras.src.losses import loss as loss_functions
from keras.src.trainers import data_adapters
from keras.src.utils import file_utils

__all__ = [
    "data_adapters",
    "defining_class",
    "file_utils",
    "flat_layers",
    "in_stateless_scope",
    "in_symbolic_scope",
    "is_nnx_enabled",
    "iterator_class",
    "loss_functions",
    "weights_made_trainable",
]


def defining_class(cls: type, method: str) -> type:
    """The class of the ancestry of `cls` that defines `method`.

    Keras compares methods of that class with those of subclasses to see what a user overrode.
    """
    for parent in cls.__mro__:
        if method in vars(parent):
            return parent
    raise AttributeError(f"{cls.__name__} of Keras {keras.__version__} has no method {method!r}.")


def iterator_class() -> type:
    """What gives the batches of an epoch to `fit`, `evaluate` and `predict`."""
    return _trainer_module().JAXEpochIterator


def _trainer_module() -> Any:
    function: Callable[..., Any] = vars(defining_class(keras.Model, "fit"))["fit"]
    return _module_of(function)


def _module_of(function: Any) -> ModuleType:
    import importlib

    return importlib.import_module(function.__module__)


def flat_layers(model: Any) -> list[Any]:
    """The model and all layers in it."""
    return list(model._flatten_layers())


def weights_made_trainable(layer: Any) -> list[Any]:
    """The variables of one layer that were created trainable, also while it is frozen."""
    return list(layer._trainable_variables)
