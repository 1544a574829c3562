"""Saved models: compiled functions and the variables they use, for any strategy and any process.

Its own facade: ``rx.saved_model.save(model, path)`` and ``rx.saved_model.load(path)``.
"""

from replicax.checkpoint.errors import SavedModelError
from replicax.saved_model.loaded import LoadedModel
from replicax.saved_model.loading import load
from replicax.saved_model.saving import save

__all__ = ["LoadedModel", "SavedModelError", "load", "save"]
