"""Options of `nnstretch stretch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_LIMITS = "Limits"
_BOUNDS = "Learning bounds"
_ELSEWHERE = "Processors that are not here"

DesignsFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Write designs, weights, ONNX files and a page that shows why there.",
        show_default=False,
    ),
]
Top = Annotated[int, typer.Option("--top", min=1, metavar="K", help="How many designs to keep.")]
LatencyTarget = Annotated[
    str | None,
    typer.Option(
        "--latency-target",
        metavar="TIME",
        help="Give the designs with the most MACs that take at most so long, as in 12ms.",
        show_default=False,
    ),
]
Pareto = Annotated[bool, typer.Option("--pareto", help="Spread the designs over the front of latency and MACs.")]
Alpha = Annotated[
    float,
    typer.Option(
        "--alpha",
        min=0.0,
        help="A meeting point may cost this share of the segment before it.",
        rich_help_panel=_LIMITS,
    ),
]
Beta = Annotated[
    float,
    typer.Option(
        "--beta",
        min=0.0,
        help="A branch may take this share of the segment on the fastest processor.",
        rich_help_panel=_LIMITS,
    ),
]
MinDepth = Annotated[
    float | None,
    typer.Option(
        "--min-depth",
        help="A branch keeps this share of the segment's blocks, or more.",
        show_default="by the network's family",
        rich_help_panel=_LIMITS,
    ),
]
MinWidth = Annotated[
    float | None,
    typer.Option(
        "--min-width",
        help="A branch has this share of the segment's width, or more.",
        show_default="by the network's family",
        rich_help_panel=_LIMITS,
    ),
]
MinMacs = Annotated[
    float | None,
    typer.Option(
        "--min-macs",
        help="The branches of a segment have this share of its MACs, or more.",
        show_default="0.8",
        rich_help_panel=_LIMITS,
    ),
]
MaxSegment = Annotated[
    float,
    typer.Option(
        "--max-segment",
        help="A segment has this share of the network's MACs, or less; then branches must meet.",
        rich_help_panel=_LIMITS,
    ),
]
KnownBounds = Annotated[
    Path | None,
    typer.Option(
        "--bounds",
        metavar="FILE",
        help="Take depth, width and MACs that are not given from what --learn-bounds found.",
        show_default=False,
        rich_help_panel=_LIMITS,
    ),
]
LearnBounds = Annotated[
    bool,
    typer.Option(
        "--learn-bounds",
        help="First find the least depth, width and MACs that keep the accuracy, by short trainings; kept in --bounds.",
        rich_help_panel=_BOUNDS,
    ),
]
LearningData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SET",
        help="To learn from: digits or folder:PATH.",
        show_default=False,
        rich_help_panel=_BOUNDS,
    ),
]
LearningRecipe = Annotated[
    str, typer.Option("--recipe", metavar="NAME", help="A preset, or a JSON file.", rich_help_panel=_BOUNDS)
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="POINTS",
        help="Top-1 that may be lost; or the standard error on the test images, if that is more.",
        rich_help_panel=_BOUNDS,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=1,
        metavar="N",
        help="Trainings at most; about twelve are enough.",
        show_default=False,
        rich_help_panel=_BOUNDS,
    ),
]
PredictOnly = Annotated[
    bool,
    typer.Option(
        "--predict-only",
        help="Run nothing: predict all layers from profiles, and say what that may miss by.",
        rich_help_panel=_ELSEWHERE,
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="What `nnstretch profiles export` wrote on the machine of the processors.",
        show_default="this machine's",
        rich_help_panel=_ELSEWHERE,
    ),
]
HowToMerge = Annotated[
    str, typer.Option("--merge", metavar="HOW", help="How branches meet: concat, concat+1x1 or add.")
]
Published = Annotated[
    Path | None,
    typer.Option(
        "--published",
        metavar="FILE",
        help="Make the branching of a YAML file of NN-Stretch's authors instead of searching.",
        show_default=False,
    ),
]
Yaml = Annotated[bool, typer.Option("--yaml", help="Write designs as such YAML files, too, where these can say them.")]
FromScratch = Annotated[bool, typer.Option("--from-scratch", help="Begin with new weights instead of inherited ones.")]
Learned = Annotated[
    bool | None,
    typer.Option(
        "--learned/--measure-all",
        help="Predict layers from those measured before and measure those of the best designs, or measure every one.",
        show_default="learned where xgboost is installed",
    ),
]
Trials = Annotated[bool, typer.Option("--trials/--no-trials", help="Run the best design and share its work out anew.")]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", min=8, metavar="PIXELS", help="Side of the input.", show_default=False)
]
