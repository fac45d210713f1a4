"""Options and stages of the job that branches, retrains and compares a network (`transform_and_train`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize

BASELINE, DESIGNS, RETRAIN, INT8, MEASURE = "baseline", "designs", "retrain", "int8", "measure"
STAGES = (BASELINE, DESIGNS, RETRAIN, INT8, MEASURE)
SKIPPABLE = (RETRAIN, INT8, MEASURE)
"""Stages that a job can leave out. Without retraining, designs keep their inherited weights."""


@dataclass(frozen=True)
class TransformOptions:
    """What `scripts/transform_and_train.py` takes.

    Attributes:
        model: an ONNX or TFLite file, a zoo name or `module.py:factory`.
        data: as `load_dataset` reads it.
        processors: one branch per processor, as in `cpu:0,opencl:0@1`.
        folder: for all that is written.
        weights: of the trained model; None: those of the model's file, or else it is trained.
        recipe: of that training.
        retrain_recipe: of the retraining.
        changes: fields of both recipes, replaced, as JSON values.
        device: that trains, such as `cuda:0`; None: the first CUDA device if there is one, else the CPU.
        search: fields of `StretchOptions`, as JSON values; `designs` is the number of designs that are retrained.
        max_drop: percent points of the measure on validation images that a chosen design may be below the model.
        int8: whether networks are quantised.
        head: of a detector, as `nnstretch train --head` takes it.
        at_once: trainings that run at the same time on a CPU, each on its share of the cores.
        turn: seconds for which one of a dozen candidates runs in a round of the measurement.
        coordinate_descent: tune measured networks beyond the routines' short lists.
        int8_recipe: of quantisation-aware training, with the original in float32 as the teacher; None: calibration alone.
        image_size: of the images; None: that of the weights, the factory or the recipe.
        skip: stages that are left out.
        redo: the first stage whose products are given up.
        design: file of the design that is retrained; None: designs are searched.
    """

    model: str
    data: str
    processors: str
    folder: Path
    weights: Path | None = None
    recipe: str = "nnstretch"
    retrain_recipe: str = "finetune"
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    max_drop: float = 0.2
    int8: bool = False
    image_size: ImageSize | None = None
    skip: frozenset[str] = frozenset()
    redo: str | None = None
    design: Path | None = None
    int8_recipe: str | None = None
    turn: float = 0.1
    coordinate_descent: bool = True
    at_once: int = 2
    head: str | None = None

    def __post_init__(self) -> None:
        """Check the names of stages.

        Raises:
            UsageError: there is no such stage, or it cannot be left out, or nothing is quantised by a recipe.
        """
        if self.int8_recipe is not None and not self.int8:
            raise UsageError("--int8-recipe trains networks in int8; give --int8, too")
        for name in self.skip - set(SKIPPABLE):
            raise UsageError(f"--skip {name}: the stages that can be left out are {', '.join(SKIPPABLE)}")
        if self.redo is not None and self.redo not in STAGES:
            raise UsageError(f"--redo {self.redo}: the stages are {', '.join(STAGES)}")
        if self.at_once < 1:
            raise UsageError(f"--at-once {self.at_once}: at least one training runs at a time")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        return {**values, "skip": sorted(self.skip)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TransformOptions:
        """The options that `to_json` has written."""
        paths = {name: Path(values[name]) for name in ("folder", "weights", "design") if values[name] is not None}
        return cls(**{**values, **paths, "skip": frozenset(values["skip"])})
