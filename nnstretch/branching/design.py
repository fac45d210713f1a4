"""Designs: which blocks and how much width every branch of a branched network keeps. Data, written as JSON.

A design fits the network that it was made for, and none else: its weights and structure are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import DesignError, FileError
from nnstretch.settings import atomic_write

FORMAT_VERSION = 1
CONCAT = "concat"


@dataclass(frozen=True)
class BranchDesign:
    """One scaled copy of a segment.

    Attributes:
        processor: index in the list of processors that the design is for.
        blocks: positions in the segment of the blocks that are kept, ascending.
        depth: blocks kept over blocks there, counting those with a convolution or dense layer.
        width: ratio by which all layers were scaled.
        channels: channels that the branch adds to the meeting point.
        macs: multiply-accumulates for one sample.
        predicted_ms: predicted latency on its processor alone; None if nobody asked.
    """

    processor: int
    blocks: tuple[int, ...]
    depth: float
    width: float
    channels: int
    macs: int
    predicted_ms: float | None = None


@dataclass(frozen=True)
class SegmentDesign:
    """The branches of a segment, in the order in which they are concatenated; one branch: not branched."""

    segment: int
    branches: tuple[BranchDesign, ...]


@dataclass(frozen=True)
class Design:
    """A branched network.

    Attributes:
        id: short name made of what decides the network's structure.
        segments: one for every segment of the traced network, in order.
        multiple: layers have multiples of so many channels where they are wide enough.
        original_macs: of the network as it was, for one sample.
        original_params: of the network as it was.
        macs: of the branched network, for one sample.
        params: of the branched network.
        predicted_ms: predicted latency of the whole network; None if nobody asked.
        merge: how branches meet; "concat".
    """

    id: str
    segments: tuple[SegmentDesign, ...]
    multiple: int
    original_macs: int
    original_params: int
    macs: int
    params: int
    predicted_ms: float | None = None
    merge: str = CONCAT

    @property
    def meeting_points(self) -> int:
        """Segments whose branches meet, that is those with two or more."""
        return sum(len(segment.branches) > 1 for segment in self.segments)

    @property
    def processors(self) -> tuple[int, ...]:
        """Indices of the processors that run branches, ascending."""
        return tuple(sorted({branch.processor for segment in self.segments for branch in segment.branches}))

    def to_json(self) -> str:
        """The design as one JSON object; `from_json` gives back an equal one."""
        segments = [
            {"segment": segment.segment, "branches": [_branch_object(branch) for branch in segment.branches]}
            for segment in self.segments
        ]
        fields = {
            "format": FORMAT_VERSION,
            "id": self.id,
            "merge": self.merge,
            "multiple": self.multiple,
            "original_macs": self.original_macs,
            "original_params": self.original_params,
            "macs": self.macs,
            "params": self.params,
            "predicted_ms": self.predicted_ms,
            "segments": segments,
        }
        return json.dumps(fields, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Design:
        """The design that `to_json` wrote.

        Raises:
            DesignError: it is no design, damaged, or of a newer format.
        """
        try:
            return _design(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DesignError(
                f"not a whole design ({type(error).__name__}: {error}); make it again with nnstretch stretch"
            ) from error


def design_id(segments: Sequence[SegmentDesign], multiple: int) -> str:
    """Short name for a structure: equal for equal ones, whatever was predicted of them."""
    structure = [
        [[branch.processor, branch.blocks, branch.width] for branch in segment.branches] for segment in segments
    ]
    digest = hashlib.sha256(json.dumps([multiple, structure]).encode()).hexdigest()
    return f"d{digest[:10]}"


def save_design(design: Design, path: Path) -> None:
    """Writes `design` to `path`, complete or not at all.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(design.to_json().encode())


def load_design(path: Path) -> Design:
    """Reads the design at `path`.

    Raises:
        FileError: there is no such file, or it cannot be read.
        DesignError: it is no design, damaged, or of a newer format.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise FileError(f"cannot read design {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DesignError(
            f"{path} is not a design: it is not text; give a file that nnstretch stretch wrote"
        ) from error
    try:
        return Design.from_json(text)
    except DesignError as error:
        raise DesignError(f"{path}: {error}") from error


def _branch_object(branch: BranchDesign) -> dict[str, Any]:
    return {
        "processor": branch.processor,
        "blocks": list(branch.blocks),
        "depth": branch.depth,
        "width": branch.width,
        "channels": branch.channels,
        "macs": branch.macs,
        "predicted_ms": branch.predicted_ms,
    }


def _design(fields: Mapping[str, Any]) -> Design:
    version = _whole(fields, "format")
    if version > FORMAT_VERSION:
        raise DesignError(f"design format {version}, this nnstretch reads up to {FORMAT_VERSION}; upgrade it")
    merge, name = fields["merge"], fields["id"]
    if merge != CONCAT or not isinstance(name, str):
        raise ValueError(f"merge is {merge!r} and id {name!r}")
    segments = tuple(
        SegmentDesign(_whole(segment, "segment"), tuple(_branch(branch) for branch in _list(segment, "branches")))
        for segment in _list(fields, "segments")
    )
    if [segment.segment for segment in segments] != list(range(len(segments))):
        raise ValueError("segments are not numbered from 0 on")
    if not all(segment.branches for segment in segments):
        raise ValueError("a segment has no branch")
    return Design(
        id=name,
        segments=segments,
        multiple=_whole(fields, "multiple", at_least=1),
        original_macs=_whole(fields, "original_macs"),
        original_params=_whole(fields, "original_params"),
        macs=_whole(fields, "macs"),
        params=_whole(fields, "params"),
        predicted_ms=_time(fields),
    )


def _branch(fields: Mapping[str, Any]) -> BranchDesign:
    blocks = tuple(_list(fields, "blocks"))
    ascending = all(type(block) is int and block >= 0 for block in blocks) and list(blocks) == sorted(set(blocks))
    if not blocks or not ascending:
        raise ValueError(f"blocks of a branch are {list(blocks)}")
    return BranchDesign(
        processor=_whole(fields, "processor"),
        blocks=blocks,
        depth=_ratio(fields, "depth"),
        width=_ratio(fields, "width"),
        channels=_whole(fields, "channels", at_least=1),
        macs=_whole(fields, "macs"),
        predicted_ms=_time(fields),
    )


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {value!r}, not a list of things")
    return value


def _whole(fields: Mapping[str, Any], name: str, at_least: int = 0) -> int:
    value = fields[name]
    if type(value) is not int or value < at_least:
        raise ValueError(f"{name} is {value!r}, not a whole number from {at_least} on")
    return value


def _ratio(fields: Mapping[str, Any], name: str) -> float:
    value = fields[name]
    if type(value) not in (int, float) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value!r}, not above 0 and up to 1")
    return float(value)


def _time(fields: Mapping[str, Any]) -> float | None:
    value = fields["predicted_ms"]
    if value is None:
        return None
    if type(value) not in (int, float) or not 0.0 <= value < float("inf"):
        raise ValueError(f"predicted_ms is {value!r}, not a time")
    return float(value)
