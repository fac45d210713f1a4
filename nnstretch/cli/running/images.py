"""`nnstretch run --image`: an image as the input of a network, and what the outputs say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from nnstretch.cli.models.sources import Source
    from nnstretch.vision.answer import Answer, ImageInput

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of files that an answer is drawn into."""
_ROWS = 20


@dataclass(frozen=True)
class ImageRequest:
    """How an image is read, and its boxes chosen.

    Attributes:
        path: the image.
        confidence: least probability of a box; None: not given.
        overlap: largest intersection over union of two boxes of a class; None: not given.
        drawn: the picture that is to be made of it, if any.
    """

    path: Path
    confidence: float | None
    overlap: float | None
    drawn: Path | None

    def read(
        self, source: Source, inputs: Sequence[tuple[str, Sequence[int]]], outputs: Mapping[str, Sequence[int]]
    ) -> ImageInput:
        """The image for the inputs of a network.

        Args:
            source: the network.
            inputs: names and shapes of its inputs.
            outputs: shapes by name.

        Raises:
            NNStretchError: the network does not read one image, or the image cannot be read.
        """
        from nnstretch.vision.answer import ImageInput, image_model, read_image

        model = image_model(inputs, outputs, source.metadata, source.preprocessing)
        if model.detector is None and (self.confidence, self.overlap) != (None, None):
            raise UsageError(
                f"--conf and --iou choose boxes, and the outputs of {source.model} are {model.kind.value}; leave them out"
            )
        if self.drawn is not None and not model.kind.is_drawn:
            raise UsageError(
                f"-o {self.drawn}: the outputs are {model.kind.value}, which are not drawn; write them as .npz"
            )
        return ImageInput(model, read_image(self.path, model.shape[1]))

    def answer(self, image: ImageInput, outputs: Mapping[str, np.ndarray]) -> Answer:
        """What the outputs say of the image."""
        from nnstretch.vision.detection import CONFIDENCE, OVERLAP

        return image.answer(
            outputs,
            CONFIDENCE if self.confidence is None else self.confidence,
            OVERLAP if self.overlap is None else self.overlap,
        )


def image_request(
    path: Path | None, confidence: float | None, overlap: float | None, output: Path | None, *, has_inputs: bool
) -> ImageRequest | None:
    """What the options say of an image; None without `--image`.

    Raises:
        UsageError: they contradict each other.
    """
    if path is None:
        if confidence is not None or overlap is not None:
            raise UsageError("--conf and --iou choose boxes on an image; add --image FILE")
        if output is not None and output.suffix.lower() in PICTURES:
            raise UsageError(f"-o {output}: a picture is drawn of an image; add --image FILE, or write outputs as .npz")
        return None
    if has_inputs:
        raise UsageError("--image is the input; leave --input out")
    for name, value in (("--conf", confidence), ("--iou", overlap)):
        if value is not None and not 0 <= value <= 1:
            raise UsageError(f"{name} is {value:g}; 0 to 1 is wanted")
    return ImageRequest(
        path,
        confidence,
        overlap,
        output if output is not None and output.suffix.lower() in PICTURES else None,
    )


def answer_table(answer: Answer) -> Table | str:
    """A row per box or class, the first ones; or a line."""
    if answer.detections is not None:
        rows = answer.to_json()["detections"]
        if not rows:
            return "no box is as probable as --conf asks"
        table = plain_table("class", ">probability", ">left", ">top", ">right", ">bottom")
        for row in rows[:_ROWS]:
            table.add_row(row["name"], f"{row['score']:.2f}", *(f"{side:.0f}" for side in row["box"]))
        if len(rows) > _ROWS:
            table.add_row(f"and {len(rows) - _ROWS} more")
        return table
    if answer.classes:
        table = plain_table("class", ">share of pixels" if answer.picture is not None else ">probability")
        for row in answer.to_json()["classes"]:
            table.add_row(row["name"], f"{row['share']:.4f}")
        return table
    return ""


def answer_json(answer: Answer | None) -> dict[str, Any]:
    """The answer's fields of a command's JSON."""
    return {} if answer is None else answer.to_json()
