"""What Replicax does for models of other libraries: Flax NNX and Keras, and batch norms of others.

Each is imported when it is first used, or by itself once a program uses the library and has
entered a strategy's scope.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from replicax.integrations import flax, keras

__all__ = ["flax", "keras"]


def __getattr__(name: str) -> typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
