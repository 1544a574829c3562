"""The libraries whose models Replicax trains as they are: one row each.

A row says what ``docs/your_model_library.md`` must show (`test_libraries`), and has the models
whose training is compared with that of the library itself on one device (`test_equivalence`, and
``tests/multiprocess/test_model_libraries.py``). A new library is a row, a program on the page, and,
if its objects are changed in place, a package in ``replicax.integrations``.
"""

import dataclasses
import importlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Library:
    """One library.

    Attributes:
        title: The heading of its program on the page.
        module: What is imported.
        integration: The package that connects it; None where trees of variables are the way.
        models: The module with an MLP, a ConvNet with BatchNorm and a small GPT of the library.
    """

    title: str
    module: str
    integration: str | None = None
    models: str | None = None

    def __str__(self) -> str:
        return self.module


def models_of(library: Library) -> Any:
    """The module with the models of a library."""
    assert library.models is not None
    return importlib.import_module(library.models)


LIBRARIES = [
    Library("Flax NNX", "flax.nnx", "replicax.integrations.flax", "tests.integrations.flax.models"),
    Library("Equinox", "equinox", models="tests.integrations.equinox_models"),
    Library("Flax Linen", "flax.linen", models="tests.integrations.linen_models"),
    Library("Haiku", "haiku", models="tests.integrations.haiku_models"),
    Library("Plain functions", "jax"),
]

WITH_MODELS = [library for library in LIBRARIES if library.models is not None]
