"""Names that the documents place under ``experimental``."""

from replicax.core.options import CommunicationImplementation, CommunicationOptions
from replicax.core.value_context import ValueContext
from replicax.strategies.central_storage import CentralStorageStrategy

__all__ = [
    "CentralStorageStrategy",
    "CommunicationImplementation",
    "CommunicationOptions",
    "ValueContext",
]
