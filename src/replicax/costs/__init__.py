"""What a step sends, keeps and computes, told from its program without running it.

Its own facade: ``rx.costs.Topology(hosts=64, machine="dgx-h100")``. The package itself imports the
modules.
"""

from replicax.costs.machines import MACHINES, Curve, Link, Machine, Topology
from replicax.costs.search_layout import LayoutSearch
from replicax.costs.simulate import Prediction, Simulation

__all__ = [
    "Curve",
    "LayoutSearch",
    "Link",
    "MACHINES",
    "Machine",
    "Prediction",
    "Simulation",
    "Topology",
]
