"""Designs: which blocks and which width every branch of a branched network keeps; data, stored as JSON.

A design fits only the network that it was made for: neither weights nor the network's structure are part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from nnstretch.errors import DesignError, FileError
from nnstretch.support.settings import atomic_write

FORMAT_VERSION = 2


class Merge(Enum):
    """How the branches of a segment are merged at their meeting point."""

    CONCAT = "concat"
    """Concatenation. The total of channels may differ from the original's."""
    CONCAT_1X1 = "concat+1x1"
    """NN-Stretch's first version: a 1x1 convolution with batch norm makes each branch's share of the original channels,
    and the shares are concatenated in order.
    """
    ADD = "add"
    """A 1x1 convolution with batch norm makes all original channels in each branch; the branches are summed."""


def parse_merge(text: str) -> Merge:
    """The merge mode with this name.

    Raises:
        DesignError: there is none.
    """
    try:
        return Merge(text)
    except ValueError:
        known = ", ".join(merge.value for merge in Merge)
        raise DesignError(f"branches cannot be merged by {text!r}; give one of {known}") from None


class Entry(Enum):
    """What a branch begins with."""

    AS_NEEDED = "as needed"
    """A bare 1x1 convolution where the input meets operators other than convolutions."""
    PROJECTION = "projection"
    """Shortcuts of the first block read a 1x1 convolution with batch norm; its convolutions read the branch's input."""
    FIRST = "first"
    """A 1x1 convolution with batch norm in front of everything else."""


@dataclass(frozen=True)
class BranchDesign:
    """One scaled copy of a segment.

    Attributes:
        processor: index in the list of processors that the design is for.
        blocks: numbers of the kept blocks in the chain, ascending; a repeated number runs again with weights
            of its own.
        depth: kept blocks over the segment's blocks, counting those with a convolution or dense layer.
        width: width ratio of all layers.
        channels: channels that the branch writes to the meeting point.
        macs: multiply-accumulates for one sample.
        predicted_ms: predicted latency on its processor alone; None if not predicted.
        entry: what it begins with.
        has_exit: it ends with the 1x1 convolution and batch norm of the merge mode.
        explicit_channels: channels of every dependency group (in the layer that writes fewest), in the order
            in which they are first written; None: those that `width` gives. Called "spaces" in JSON.
    """

    processor: int
    blocks: tuple[int, ...]
    depth: float
    width: float
    channels: int
    macs: int
    predicted_ms: float | None = None
    entry: Entry = Entry.AS_NEEDED
    has_exit: bool = False
    explicit_channels: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SegmentDesign:
    """A range of the chain of blocks and its branches.

    Attributes:
        first: number of its first block.
        stop: number of the block after its last one.
        branches: in merge order; a single one means that the segment is not branched.
    """

    first: int
    stop: int
    branches: tuple[BranchDesign, ...]


@dataclass(frozen=True)
class Design:
    """A branched network.

    Attributes:
        id: short name derived from the structure.
        segments: consecutive segments that cover the chain of blocks.
        multiple: scaled layers have multiples of this many channels, unless the layer is narrower.
        original_macs: MACs of the original network for one sample.
        original_params: learnable scalars of the original network.
        macs: MACs of the branched network for one sample.
        params: learnable scalars of the branched network.
        predicted_ms: predicted latency of the network; None if not predicted.
        merge: how branches are merged.
    """

    id: str
    segments: tuple[SegmentDesign, ...]
    multiple: int
    original_macs: int
    original_params: int
    macs: int
    params: int
    predicted_ms: float | None = None
    merge: Merge = Merge.CONCAT

    @property
    def meeting_points(self) -> int:
        """Number of segments with two or more branches."""
        return sum(len(segment.branches) > 1 for segment in self.segments)

    @property
    def processors(self) -> tuple[int, ...]:
        """Indices of the processors that run branches, ascending."""
        return tuple(sorted({branch.processor for segment in self.segments for branch in segment.branches}))

    def to_json(self) -> str:
        """The design as one JSON object; `from_json` restores an equal one."""
        segments = [
            {
                "first": segment.first,
                "stop": segment.stop,
                "branches": [_branch_object(branch) for branch in segment.branches],
            }
            for segment in self.segments
        ]
        fields = {
            "format": FORMAT_VERSION,
            "id": self.id,
            "merge": self.merge.value,
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
        """Parses what `to_json` wrote.

        Raises:
            DesignError: the text is not a design, is damaged, or has an unsupported format version.
        """
        try:
            return _design(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DesignError(
                f"not a whole design ({type(error).__name__}: {error}) ; make it again with nnstretch stretch"
            ) from error


def design_id(segments: Sequence[SegmentDesign], multiple: int, merge: Merge = Merge.CONCAT) -> str:
    """Short name of a structure: equal structures have equal names, whatever their predictions."""
    structure = [
        [segment.first, segment.stop, [_structure(branch) for branch in segment.branches]] for segment in segments
    ]
    whole = [multiple, structure] if merge is Merge.CONCAT else [multiple, structure, merge.value]
    digest = hashlib.sha256(json.dumps(whole).encode()).hexdigest()
    return f"d{digest[:10]}"


def _structure(branch: BranchDesign) -> list[Any]:
    """What determines a branch; defaults are left out, so that ids of plain branches do not change."""
    ends = [branch.entry.value, branch.has_exit, branch.explicit_channels]
    plain = ends == [Entry.AS_NEEDED.value, False, None]
    return [branch.processor, branch.blocks, branch.width, *([] if plain else ends)]


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
        "entry": branch.entry.value,
        "exit": branch.has_exit,
        "spaces": None if branch.explicit_channels is None else list(branch.explicit_channels),
    }


def _design(fields: Mapping[str, Any]) -> Design:
    version = _whole(fields, "format")
    if version > FORMAT_VERSION:
        raise DesignError(f"design format {version}, this nnstretch reads {FORMAT_VERSION}; upgrade it")
    if version < FORMAT_VERSION:
        raise DesignError(
            f"design format {version} is of an earlier nnstretch, this one reads {FORMAT_VERSION}; "
            "make the design again with nnstretch stretch"
        )
    name = fields["id"]
    if not isinstance(name, str):
        raise ValueError(f"id is {name!r}")
    segments = tuple(_segment(segment) for segment in _list(fields, "segments"))
    if [segment.first for segment in segments] != [0, *(segment.stop for segment in segments[:-1])]:
        raise ValueError("segments do not follow one another from block 0 on")
    return Design(
        id=name,
        segments=segments,
        multiple=_whole(fields, "multiple", at_least=1),
        original_macs=_whole(fields, "original_macs"),
        original_params=_whole(fields, "original_params"),
        macs=_whole(fields, "macs"),
        params=_whole(fields, "params"),
        predicted_ms=_time(fields),
        merge=Merge(fields["merge"]),
    )


def _segment(fields: Mapping[str, Any]) -> SegmentDesign:
    first = _whole(fields, "first")
    stop = _whole(fields, "stop", at_least=first + 1)
    branches = tuple(_branch(branch) for branch in _list(fields, "branches"))
    if any(branch.blocks[0] < first or branch.blocks[-1] >= stop for branch in branches):
        raise ValueError(f"a branch has blocks outside those from {first} up to {stop}")
    return SegmentDesign(first, stop, branches)


def _branch(fields: Mapping[str, Any]) -> BranchDesign:
    blocks = tuple(_list(fields, "blocks"))
    ascending = all(type(block) is int and block >= 0 for block in blocks) and list(blocks) == sorted(blocks)
    if not blocks or not ascending:
        raise ValueError(f"blocks of a branch are {list(blocks)}")
    explicit_channels = _explicit_channels(fields)
    return BranchDesign(
        processor=_whole(fields, "processor"),
        blocks=blocks,
        depth=_ratio(fields, "depth", math.inf if len(set(blocks)) < len(blocks) else 1.0),
        width=_ratio(fields, "width", 1.0 if explicit_channels is None else math.inf),
        channels=_whole(fields, "channels", at_least=1),
        macs=_whole(fields, "macs"),
        predicted_ms=_time(fields),
        entry=Entry(fields.get("entry", Entry.AS_NEEDED.value)),
        has_exit=_flag(fields, "exit"),
        explicit_channels=explicit_channels,
    )


def _explicit_channels(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = fields.get("spaces")
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(channels) is int and channels > 0 for channels in value):
        raise ValueError(f"spaces is {value!r}, not numbers of channels")
    return tuple(value)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, neither true nor false")
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {value!r}, not a list with entries")
    return value


def _whole(fields: Mapping[str, Any], name: str, at_least: int = 0) -> int:
    value = fields[name]
    if type(value) is not int or value < at_least:
        raise ValueError(f"{name} is {value!r}, not a whole number from {at_least} on")
    return value


def _ratio(fields: Mapping[str, Any], name: str, most: float) -> float:
    value = fields[name]
    if type(value) not in (int, float) or not 0.0 < value <= most or value == math.inf:
        raise ValueError(f"{name} is {value!r}, not above 0 and up to {most:g}")
    return float(value)


def _time(fields: Mapping[str, Any]) -> float | None:
    value = fields["predicted_ms"]
    if value is None:
        return None
    if type(value) not in (int, float) or not 0.0 <= value < float("inf"):
        raise ValueError(f"predicted_ms is {value!r}, not a time")
    return float(value)
