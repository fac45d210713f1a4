"""Files of learned bounds, with the trainings that led to them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnstretch.branching.design.design import number_of, text_of, whole_of
from nnstretch.branching.search.bounds import Bounds, ShortTraining
from nnstretch.errors import FileError, UsageError
from nnstretch.support.json_text import DAMAGED
from nnstretch.support.settings import atomic_write

NAME = "nnstretch-bounds"
VERSION = 1


@dataclass(frozen=True)
class BoundsSetup:
    """What bounds were learned with; trainings with different setups are never mixed.

    Attributes:
        model: a zoo name or `module.py:factory`.
        weights: digest of the original's weights.
        data: name of the data set.
        recipe: of the trainings, as `Recipe.to_json` gives it.
        merge: how branches are merged.
        multiple: scaled layers have multiples of this many channels, unless the layer is narrower.
    """

    model: str
    weights: str
    data: str
    recipe: Mapping[str, Any]
    merge: str
    multiple: int


@dataclass(frozen=True)
class LearnedBounds:
    """Bounds and the setup that they were learned with."""

    setup: BoundsSetup
    bounds: Bounds

    def save(self, path: Path) -> None:
        """Writes the file at `path`, completely or not at all.

        Raises:
            FileError: the place is not writable or the disk is full.
        """
        fields = {
            "format": NAME,
            "version": VERSION,
            **asdict(self.setup),
            "margin": self.bounds.margin,
            **asdict(self.bounds),
        }
        with atomic_write(path) as file:
            file.write((json.dumps(fields, indent=1, allow_nan=False) + "\n").encode())

    def resumed(self, earlier: LearnedBounds, path: Path) -> LearnedBounds:
        """These bounds with the trainings of `earlier`, which was read from `path`.

        Raises:
            UsageError: the setups differ.
        """
        mine, other = asdict(self.setup), asdict(earlier.setup)
        different = [name for name in mine if mine[name] != other[name]]
        if different or self.bounds.images != earlier.bounds.images:
            what = ", ".join(different) or "validation images"
            raise UsageError(
                f"{path} holds trainings of another kind: {what} {'are' if len(different) > 1 else 'is'} not the same; repeat "
                "the options that it was made with, or give another --bounds"
            )
        return replace(self, bounds=replace(self.bounds, trainings=earlier.bounds.trainings))


def weights_digest(module: nn.Module) -> str:
    """A short hash of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}\0".encode())
        # As bytes, because NumPy lacks some of torch's element types.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def load_bounds(path: Path) -> LearnedBounds:
    """Reads and checks the bounds at `path`, which may be incomplete (`Bounds.complete`).

    Raises:
        FileError: the file cannot be read, or holds no bounds.
    """
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read bounds {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is no JSON: {error}; give a file that --learn-bounds wrote") from error
    if not isinstance(raw, dict) or raw.get("format") != NAME:
        raise FileError(f"{path} holds no bounds; give a file that --learn-bounds wrote")
    if raw.get("version") != VERSION:
        raise FileError(f"{path} is of version {raw.get('version')!r}, this nnstretch reads {VERSION}; learn it again")
    try:
        return _bounds(raw)
    except DAMAGED as error:
        raise FileError(f"{path} is damaged ({type(error).__name__}: {error}); learn the bounds again") from error


def _bounds(raw: Mapping[str, Any]) -> LearnedBounds:
    texts = {name: text_of(raw, name) for name in ("model", "weights", "data", "merge")}
    if not isinstance(raw["recipe"], dict):
        raise TypeError("recipe is no object")
    setup = BoundsSetup(**texts, recipe=raw["recipe"], multiple=whole_of(raw, "multiple", 1))
    least = {
        name: None if raw[name] is None else number_of(raw, name, 1.0 if name != "min_macs" else math.inf)
        for name in ("min_depth", "min_width", "min_macs")
    }
    trainings = tuple(map(_training, raw["trainings"]))
    bounds = Bounds(number_of(raw, "tolerance"), whole_of(raw, "images", 1), **least, trainings=trainings)
    return LearnedBounds(setup, bounds)


def _training(raw: Mapping[str, Any]) -> ShortTraining:
    ratios = {name: number_of(raw, name) for name in ("depth", "width", "macs", "seconds")}
    return ShortTraining(design=text_of(raw, "design"), top1=number_of(raw, "top1", 100.0), **ratios)
