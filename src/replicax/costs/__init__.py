"""What a step sends, keeps and computes, told from its program without running it.

Its own facade: ``rx.costs.ClusterTopology(hosts=64, machine="dgx-h100")``. The package itself
imports the modules.
"""

from replicax.costs.machines import MACHINES, ClusterTopology, Curve, Link, Machine
from replicax.costs.search_layout import LayoutSearch
from replicax.costs.simulate import Simulation, StepPrediction

__all__ = [
    "ClusterTopology",
    "Curve",
    "LayoutSearch",
    "Link",
    "MACHINES",
    "Machine",
    "Simulation",
    "StepPrediction",
]
