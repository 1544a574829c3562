"""Names that the documents place under ``experimental``."""

from replicax.core.value_context import ValueContext

__all__ = ["ValueContext"]
