"""Options of `nnstretch stretch` that `nnstretch.api.options.StretchOptions` does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnstretch.training.data import usage

_LIMITS = "Limits"
_BOUNDS = "Learning bounds"
_ELSEWHERE = "Processors of another machine"

DesignsFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the designs, their weights and ONNX files, and a page that explains them.",
        show_default=False,
    ),
]
KnownBounds = Annotated[
    Path | None,
    typer.Option(
        "--bounds",
        metavar="FILE",
        help="File of bounds that --learn-bounds wrote; the options above override it.",
        show_default=False,
        rich_help_panel=_LIMITS,
    ),
]
LearnBounds = Annotated[
    bool,
    typer.Option(
        "--learn-bounds",
        help="Find the smallest depth, width and MACs that keep the accuracy by short trainings, and write them to --bounds.",
        rich_help_panel=_BOUNDS,
    ),
]
LearningData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SET",
        help=f"Images to train and test on: {usage()}.",
        show_default=False,
        rich_help_panel=_BOUNDS,
    ),
]
LearningRecipe = Annotated[
    str,
    typer.Option(
        "--recipe", metavar="NAME", help="Recipe of the trainings: a preset or a JSON file.", rich_help_panel=_BOUNDS
    ),
]
MaxDrop = Annotated[
    float,
    typer.Option(
        "--max-drop",
        metavar="POINTS",
        help="Largest drop in top-1 accuracy, or its standard error on the test images if that is larger.",
        rich_help_panel=_BOUNDS,
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=1,
        metavar="N",
        help="Maximum number of trainings; about twelve are enough.",
        show_default=False,
        rich_help_panel=_BOUNDS,
    ),
]
PredictOnly = Annotated[
    bool,
    typer.Option(
        "--predict-only",
        help="Predict all layers from profiles without running anything, and report the uncertainty.",
        rich_help_panel=_ELSEWHERE,
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Profiles that `nnstretch profiles export` wrote on the other machine.",
        show_default="this machine's",
        rich_help_panel=_ELSEWHERE,
    ),
]
Published = Annotated[
    Path | None,
    typer.Option(
        "--published",
        metavar="FILE",
        help="Build the design of a YAML file in the format of NN-Stretch's authors instead of searching.",
        show_default=False,
    ),
]
Yaml = Annotated[
    bool, typer.Option("--yaml", help="Also write each design in that YAML format, if the format can describe it.")
]
FromScratch = Annotated[bool, typer.Option("--from-scratch", help="Write new weights instead of inherited ones.")]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", min=8, metavar="PIXELS", help="Side of the input.", show_default=False)
]
