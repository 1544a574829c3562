"""All pictures by name, and where they are kept."""

import pathlib

from website.pictures import (
    batch,
    benchmark,
    contexts,
    engine,
    logical_devices,
    parameter_servers,
    simulated_hosts,
    step,
    variables,
)
from website.pictures.svg import Picture

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "pictures"


def drawings() -> dict[str, Picture]:
    """Each picture by the name of its file."""
    modules = [
        batch, benchmark, contexts, engine, logical_devices, parameter_servers, simulated_hosts,
        step, variables,
    ]  # fmt: skip
    return {module.__name__.rpartition(".")[2]: module.draw() for module in modules}
