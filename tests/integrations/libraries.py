"""The libraries whose models Replicax trains as they are: one row each.

A row drives `test_libraries` (the program of the page trains, and does what one device does) and
says what ``docs/your_model_library.md`` must show. A new library is a row, a program on the page,
and, if its objects are changed in place, a package in ``replicax.integrations``.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Library:
    """One library.

    Attributes:
        title: The heading of its program on the page.
        module: What is imported.
        integration: The package that connects it; None where trees of variables are the way.
    """

    title: str
    module: str
    integration: str | None = None


LIBRARIES = [
    Library("Flax NNX", "flax.nnx", "replicax.integrations.flax"),
    Library("Equinox", "equinox"),
    Library("Flax Linen", "flax.linen"),
    Library("Haiku", "haiku"),
    Library("Plain functions", "jax"),
]
