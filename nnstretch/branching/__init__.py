"""Branching: gives a trained network parallel, scaled branches with inherited weights (NN-Stretch)."""

from nnstretch.branching.control import single_branch_control
from nnstretch.branching.design import BranchDesign, Design, SegmentDesign, load_design, save_design
from nnstretch.branching.export import export_branched
from nnstretch.branching.network import BranchedNetwork
from nnstretch.branching.options import SearchLimits
from nnstretch.branching.predictor import LatencyPredictor
from nnstretch.branching.search import SearchReport, search
from nnstretch.branching.stretch import StretchResult, rebuild, stretch

__all__ = [
    "BranchDesign",
    "BranchedNetwork",
    "Design",
    "LatencyPredictor",
    "SearchLimits",
    "SearchReport",
    "SegmentDesign",
    "StretchResult",
    "export_branched",
    "load_design",
    "rebuild",
    "save_design",
    "search",
    "single_branch_control",
    "stretch",
]
