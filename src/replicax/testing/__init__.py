"""For users' own tests: is the result independent of the replicas, are copies equal, NaN.

Its own facade: ``rx.testing.check_equivalence(train)``. The package itself imports the
modules.
"""

from replicax.testing.equivalence import EquivalenceReport, check_equivalence
from replicax.testing.mirrored import MirroredReport, check_mirrored
from replicax.testing.nans import NanFinding, find_nan, nan_checked

__all__ = [
    "EquivalenceReport",
    "MirroredReport",
    "NanFinding",
    "check_equivalence",
    "check_mirrored",
    "find_nan",
    "nan_checked",
]
