"""Designs: which blocks and which width every branch of a branched network keeps; data, stored as JSON.

A design fits only the network that it was made for: neither weights nor the network's structure are part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from nnstretch.errors import DesignError, FileError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size
from nnstretch.support.json_text import DAMAGED, json_fault
from nnstretch.support.settings import atomic_write
from nnstretch.support.words import counted

FORMAT_VERSION = 3
"""Version of designs whose head has branches."""
_WHOLE_HEAD = 2  # version of all others, which earlier nnstretch read as well


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
        split: indices of the processors over which the scheduler is predicted to split the layers of a single branch,
            ascending; empty if all layers stay on the branch's processor.
    """

    first: int
    stop: int
    branches: tuple[BranchDesign, ...]
    split: tuple[int, ...] = ()


@dataclass(frozen=True)
class HeadBranch:
    """Some towers of a head (`tracing.towers`) on one processor.

    Attributes:
        processor: index in the list of processors that the design is for.
        towers: their numbers, ascending.
        width: width ratio of their inner layers; what they hand to the rest of the head keeps all channels.
        macs: multiply-accumulates for one sample.
        predicted_ms: predicted latency on its processor alone; None if not predicted.
    """

    processor: int
    towers: tuple[int, ...]
    width: float
    macs: int
    predicted_ms: float | None = None


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
        image_size: of the images that it was made for; None for other inputs and in older files.
        head: branches of the head, each tower in one of them; empty: the head is not branched.
        pool: whether all CPU cores that the processors compute on work as one processor, with number 0; only without branches.
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
    image_size: ImageSize | None = None
    head: tuple[HeadBranch, ...] = ()
    pool: bool = False

    @property
    def meeting_points(self) -> int:
        """Number of segments with two or more branches; a head with two or more counts as one."""
        return sum(len(branches) > 1 for branches in self.branches)

    @property
    def is_original(self) -> bool:
        """Whether it is the original network: without branches and with all MACs."""
        return not self.meeting_points and self.macs == self.original_macs

    @property
    def branches(self) -> tuple[tuple[BranchDesign | HeadBranch, ...], ...]:
        """The branches of every segment, then those of the head, if it has any."""
        return (*(segment.branches for segment in self.segments), *([self.head] if self.head else []))

    @property
    def processors(self) -> tuple[int, ...]:
        """Indices of the processors that run branches or layers of split segments, ascending."""
        branches = {branch.processor for some in self.branches for branch in some}
        return tuple(sorted(branches.union(*(segment.split for segment in self.segments))))

    def __str__(self) -> str:
        """One line, such as "design 1a2b3c: 4 meeting points, 98.9 % of the MACs, predicted 5.31 ms"."""
        points = self.meeting_points
        said = [f"{counted(points, 'meeting point')}" if points else "without branches"]
        if self.original_macs:
            said.append(f"{100 * self.macs / self.original_macs:.1f} % of the MACs")
        if self.predicted_ms is not None:
            said.append(f"predicted {self.predicted_ms:.2f} ms")
        return f"design {self.id}: {', '.join(said)}"

    def to_json(self) -> str:
        """The design as one JSON object; `from_json` restores an equal one."""
        fields = asdict(self)
        segments, head, pool = (fields.pop(name) for name in ("segments", "head", "pool"))
        for segment in segments:
            if not segment["split"]:
                del segment["split"]
            for branch in segment["branches"]:
                branch["exit"], branch["spaces"] = branch.pop("has_exit"), branch.pop("explicit_channels")
        version = FORMAT_VERSION if head else _WHOLE_HEAD
        whole = {"format": version, "id": self.id, "merge": self.merge, **fields, "segments": segments}
        whole |= {"head": head} if head else {}
        whole |= {"pool": pool} if pool else {}
        return json.dumps(whole, indent=1, default=lambda member: member.value) + "\n"

    @staticmethod
    def from_json(text: str) -> Design:
        """Parses what `to_json` wrote.

        Raises:
            DesignError: the text is not a design, is damaged, or has an unsupported format version.
        """
        try:
            return _design(json.loads(text))
        except (UsageError, *DAMAGED) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else json_fault(error)
            raise DesignError(f"not a whole design ({reason}); make it again with `nnstretch stretch`") from error


def design_id(
    segments: Sequence[SegmentDesign],
    multiple: int,
    merge: Merge = Merge.CONCAT,
    head: Sequence[HeadBranch] = (),
    *,
    pool: bool = False,
) -> str:
    """Short name of a structure: equal structures have equal names, whatever their predictions."""
    structure = [
        [segment.first, segment.stop, [*map(_structure, segment.branches)], *filter(None, [segment.split])]
        for segment in segments
    ]
    whole = [multiple, structure] if merge is Merge.CONCAT else [multiple, structure, merge.value]
    whole += [[branch.processor, branch.towers, branch.width] for branch in head]
    whole += ["pool"] if pool else []
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


def _design(fields: Mapping[str, Any]) -> Design:
    version = whole_of(fields, "format")
    if version > FORMAT_VERSION:
        raise DesignError(f"design format {version}, this nnstretch reads {FORMAT_VERSION}; upgrade it")
    if version < _WHOLE_HEAD:
        raise DesignError(
            f"design format {version} is of an earlier nnstretch, this one reads {_WHOLE_HEAD} and {FORMAT_VERSION}; "
            "make the design again with nnstretch stretch"
        )
    segments = tuple(_segment(segment) for segment in _list(fields, "segments"))
    if [segment.first for segment in segments] != [0, *(segment.stop for segment in segments[:-1])]:
        raise ValueError("segments do not follow one another from block 0 on")
    made = Design(
        id=text_of(fields, "id"),
        segments=segments,
        multiple=whole_of(fields, "multiple", least=1),
        original_macs=whole_of(fields, "original_macs"),
        original_params=whole_of(fields, "original_params"),
        macs=whole_of(fields, "macs"),
        params=whole_of(fields, "params"),
        predicted_ms=_ms(fields),
        merge=Merge(fields["merge"]),
        image_size=None if fields.get("image_size") is None else as_image_size(fields["image_size"]),
        head=tuple(_head_branch(branch) for branch in _list(fields, "head")) if "head" in fields else (),
        pool=_flag(fields, "pool"),
    )
    if made.pool and (made.meeting_points or made.processors != (0,)):
        raise ValueError("pool is true, but several processors have layers")
    return made


def _head_branch(fields: Mapping[str, Any]) -> HeadBranch:
    towers = tuple(_list(fields, "towers"))
    if not all(type(tower) is int and tower >= 0 for tower in towers) or list(towers) != sorted(set(towers)):
        raise ValueError(f"towers of a branch are {list(towers)}")
    return HeadBranch(
        processor=whole_of(fields, "processor"),
        towers=towers,
        width=number_of(fields, "width", 1.0, positive=True),
        macs=whole_of(fields, "macs"),
        predicted_ms=_ms(fields),
    )


def _segment(fields: Mapping[str, Any]) -> SegmentDesign:
    first = whole_of(fields, "first")
    stop = whole_of(fields, "stop", least=first + 1)
    branches = tuple(_branch(branch) for branch in _list(fields, "branches"))
    if any(branch.blocks[0] < first or branch.blocks[-1] >= stop for branch in branches):
        raise ValueError(f"a branch has blocks outside those from {first} up to {stop}")
    split = fields.get("split", [])
    if not isinstance(split, list) or len(split) == 1 or (split and len(branches) > 1):
        raise ValueError(f"split is {split!r}, not two processors or more of a segment with one branch")
    if not all(type(one) is int and one >= 0 for one in split) or split != sorted(set(split)):
        raise ValueError(f"split is {split!r}, not processors, ascending, each once")
    return SegmentDesign(first, stop, branches, tuple(split))


def _branch(fields: Mapping[str, Any]) -> BranchDesign:
    blocks = tuple(_list(fields, "blocks"))
    ascending = all(type(block) is int and block >= 0 for block in blocks) and list(blocks) == sorted(blocks)
    if not blocks or not ascending:
        raise ValueError(f"blocks of a branch are {list(blocks)}")
    explicit_channels, has_exit = _explicit_channels(fields), _flag(fields, "exit")
    return BranchDesign(
        processor=whole_of(fields, "processor"),
        blocks=blocks,
        depth=number_of(fields, "depth", math.inf if len(set(blocks)) < len(blocks) else 1.0, positive=True),
        width=number_of(fields, "width", 1.0 if explicit_channels is None else math.inf, positive=True),
        channels=whole_of(fields, "channels", least=1),
        macs=whole_of(fields, "macs"),
        predicted_ms=_ms(fields),
        entry=Entry(fields.get("entry", Entry.AS_NEEDED.value)),
        has_exit=has_exit,
        explicit_channels=explicit_channels,
    )


def _explicit_channels(fields: Mapping[str, Any]) -> tuple[int, ...] | None:
    value = fields.get("spaces")
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(channels) is int and channels > 0 for channels in value):
        raise ValueError(f"spaces is {value!r}, not numbers of channels")
    return tuple(value)


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} is {value!r}, not a list with entries")
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, neither true nor false")
    return value


def _ms(fields: Mapping[str, Any]) -> float | None:
    return None if fields["predicted_ms"] is None else number_of(fields, "predicted_ms")


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """A text of a JSON object.

    Raises:
        KeyError: the object lacks it.
        TypeError: it is something else.
    """
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a text")
    return value


def whole_of(fields: Mapping[str, Any], name: str, least: int = 0) -> int:
    """A whole number of a JSON object.

    Raises:
        KeyError: the object lacks it.
        ValueError: it is something else, or below `least`.
    """
    value = fields[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}, not a whole number from {least} on")
    return value


def number_of(fields: Mapping[str, Any], name: str, most: float = math.inf, *, positive: bool = False) -> float:
    """A finite number of a JSON object, from 0 or, if `positive`, above 0.

    Raises:
        KeyError: the object lacks it.
        ValueError: it is something else, or above `most`.
    """
    value = fields[name]
    if type(value) not in (int, float) or not 0.0 <= value <= most or value == math.inf or (positive and not value):
        raise ValueError(f"{name} is {value!r}, not a number {'above' if positive else 'from'} 0 and up to {most:g}")
    return float(value)
