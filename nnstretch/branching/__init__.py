"""Branching: gives a trained network parallel, scaled branches with inherited weights (NN-Stretch)."""

from nnstretch.branching.control import single_branch_control
from nnstretch.branching.design import BranchDesign, Design, Merge, SegmentDesign, load_design, save_design
from nnstretch.branching.export import export_branched
from nnstretch.branching.limits import SearchLimits
from nnstretch.branching.network import BranchedNetwork
from nnstretch.branching.predictor import LatencyPredictor
from nnstretch.branching.published import PublishedNetwork, read_published, write_published
from nnstretch.branching.publishing import published_of
from nnstretch.branching.search import search
from nnstretch.branching.search_report import SearchReport
from nnstretch.branching.stretch import PublishedResult, StretchResult, published, rebuild, stretch

__all__ = [
    "BranchDesign",
    "BranchedNetwork",
    "Design",
    "LatencyPredictor",
    "Merge",
    "PublishedNetwork",
    "PublishedResult",
    "SearchLimits",
    "SearchReport",
    "SegmentDesign",
    "StretchResult",
    "export_branched",
    "load_design",
    "published",
    "published_of",
    "read_published",
    "rebuild",
    "save_design",
    "search",
    "single_branch_control",
    "stretch",
    "write_published",
]
