"""Names that the documents place under ``tf.compat.v1``."""

import typing

from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.tf.compat.v1 import distribute
from replicax.tf.equivalents import missing as _missing
from replicax.variables.creators import variable_creator_scope
from replicax.variables.variable import Variable

__all__ = [
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "distribute",
    "variable_creator_scope",
]


def __getattr__(name: str) -> typing.Any:
    raise _missing("tf.compat.v1", name)
