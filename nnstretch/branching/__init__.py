"""Branching: gives a trained network parallel, scaled branches with inherited weights (NN-Stretch)."""

from nnstretch.branching.design.design import BranchDesign, Design, Merge, SegmentDesign, load_design, save_design
from nnstretch.branching.latency.predictor import LatencyPredictor
from nnstretch.branching.pycls.files import read_published, write_published
from nnstretch.branching.pycls.from_design import published_of
from nnstretch.branching.pycls.network import PublishedNetwork
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.stretch import PublishedResult, StretchResult, published, rebuild, stretch
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.export import export_branched
from nnstretch.branching.transform.network import BranchedNetwork

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
