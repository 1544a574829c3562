"""Names that the documents place under ``tf.compat.v1``."""

from replicax.core.enums import VariableAggregation, VariableSynchronization
from replicax.tf.compat.v1 import distribute
from replicax.variables.creation import variable_creator_scope
from replicax.variables.variable import Variable

__all__ = [
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "distribute",
    "variable_creator_scope",
]
