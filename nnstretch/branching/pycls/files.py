"""pycls YAML files with published NN-Stretch networks: section `ANYNET`, with a list entry per branch.

A published network is a stem, stages of blocks and a head. A stage may have branches, which meet at its end.
In the first version (`MB_VER: 1`) branches have 1x1 convolutions at their ends; in the second their channels
are only concatenated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nnstretch.branching.design.design import Merge
from nnstretch.errors import DesignError, FileError
from nnstretch.support.settings import atomic_write

BASIC, BOTTLENECK, INVERTED = "res_basic_block", "res_bottleneck_block", "mbconv"
BLOCKS = (BASIC, BOTTLENECK, INVERTED)
STEM_KERNELS = {"res_stem_in": 7, "simple_stem_in": 3}
STEMS = tuple(STEM_KERNELS)


@dataclass(frozen=True)
class PublishedStage:
    """A stage; values per branch are in the order of the devices.

    Attributes:
        depths: number of blocks of every branch.
        widths: channels that the blocks of every branch write.
        stride: of the first block of every branch.
        bottlenecks: for every branch, inner channels over those that a block writes (inverted bottlenecks:
            that it reads).
        group_widths: for every branch, channels per group; empty if unspecified.
        kernel: side of the depthwise kernels; None if unspecified.
        original_width: version 1: channels of the unbranched stage; version 2: the sum of `widths`.
    """

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stride: int
    bottlenecks: tuple[float, ...]
    group_widths: tuple[int, ...] = ()
    kernel: int | None = None
    original_width: int = 0

    def inner_width(self, branch: int) -> int:
        """Inner channels of the residual bottlenecks of a branch."""
        return round(self.widths[branch] * self.bottlenecks[branch])


@dataclass(frozen=True)
class PublishedNetwork:
    """The validated content of section `ANYNET`.

    Attributes:
        stem: one of `STEMS`.
        stem_width: channels that the stem writes.
        stem_kernel: side of its kernel.
        block: one of `BLOCKS`.
        stages: from the stem to the head.
        devices: names of the processors that run branches; a stage with fewer branches uses the first ones.
        stem_device: name of the processor that runs the stem.
        head_device: name of the processor that runs the head.
        merge_device: name of the processor that concatenates.
        head_width: channels of the head's 1x1 convolution; 0 if there is none.
        squeeze: inner channels of squeeze-and-excitation over the block's input channels; 0 if there is none.
        version: `MB_VER`, 1 or 2.
        activations: names of the activations of every device's blocks; empty if unspecified.
        sections: the file's other sections, unchanged.
    """

    stem: str
    stem_width: int
    stem_kernel: int
    block: str
    stages: tuple[PublishedStage, ...]
    devices: tuple[str, ...]
    stem_device: str
    head_device: str
    merge_device: str
    head_width: int = 0
    squeeze: float = 0.0
    version: int = 2
    activations: tuple[str, ...] = ()
    sections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merge(self) -> Merge:
        """How its branches are merged."""
        return Merge.CONCAT_1X1 if self.version == 1 else Merge.CONCAT

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of all devices in the order in which a design numbers its processors: those with branches first."""
        return tuple(dict.fromkeys([*self.devices, self.stem_device, self.head_device]))


_REQUIRED = (
    *("STEM_TYPE", "STEM_W", "BLOCK_TYPE", "DEPTHS", "WIDTHS", "STRIDES", "DEVICES", "ORIGINAL_WIDTHS"),
    *("STEM_DEVICE", "HEAD_DEVICE", "MERGE_DEVICE"),
)
_OPTIONAL = (
    *("STEM_K", "BOT_MULS", "GROUP_WS", "KERNELS", "HEAD_W", "SE_ON", "SE_R", "MB_VER", "MB_DOWNSAMPLE"),
    "ACTIVATION_FUN",
)


def parse_published(text: str) -> PublishedNetwork:
    """Parses the text of a pycls file.

    Raises:
        DesignError: it is no such file, or its content is invalid.
    """
    try:
        sections = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DesignError(f"not YAML ({first}); give a file with an ANYNET section") from error
    fields = sections.get("ANYNET") if isinstance(sections, dict) else None
    if not isinstance(fields, dict):
        raise DesignError("it has no section ANYNET; give a file as NN-Stretch's are published")
    return _Parser(fields).network({name: value for name, value in sections.items() if name != "ANYNET"})


class _Parser:
    """Validates the fields of section `ANYNET`."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    def network(self, sections: Mapping[str, Any]) -> PublishedNetwork:
        self._check_names()
        stem, block = self._choice("STEM_TYPE", STEMS), self._choice("BLOCK_TYPE", BLOCKS)
        version = self._choice("MB_VER", (1, 2), 2)
        devices = self._names("DEVICES")
        if not self.fields.get("MB_DOWNSAMPLE", True):
            raise DesignError("MB_DOWNSAMPLE is false: branches after a common first block are not supported")
        squeeze = self._number("SE_R", 0.25) if self._choice("SE_ON", (True, False), False) and block != BASIC else 0.0
        stages = self._stages(block)
        for number, stage in enumerate(stages, 1):
            if len(stage.depths) > len(devices):
                raise DesignError(f"stage {number} has {len(stage.depths)} branches, DEVICES has {len(devices)} names")
            _check_widths(number, stage, block, version)
        return PublishedNetwork(
            stem=stem,
            stem_width=self._count("STEM_W", self.fields["STEM_W"]),
            stem_kernel=self._count("STEM_K", self.fields.get("STEM_K", STEM_KERNELS[stem])),
            block=block,
            stages=stages,
            devices=devices,
            stem_device=self._name("STEM_DEVICE"),
            head_device=self._name("HEAD_DEVICE"),
            merge_device=self._name("MERGE_DEVICE"),
            head_width=self._count("HEAD_W", self.fields.get("HEAD_W", 0), least=0),
            squeeze=squeeze,
            version=version,
            activations=self._names("ACTIVATION_FUN") if self.fields.get("ACTIVATION_FUN") else (),
            sections=sections,
        )

    def _check_names(self) -> None:
        missing = [name for name in _REQUIRED if name not in self.fields]
        if missing:
            raise DesignError(f"ANYNET lacks {', '.join(missing)}")
        unknown = sorted(str(name) for name in self.fields if name not in (*_REQUIRED, *_OPTIONAL))
        if unknown:
            raise DesignError(f"ANYNET has unknown fields {', '.join(unknown)}; take them out")

    def _stages(self, block: str) -> tuple[PublishedStage, ...]:
        depths, widths, strides = (self._lists(name) for name in ("DEPTHS", "WIDTHS", "STRIDES"))
        count = len(depths)
        for name, per_stage in (("WIDTHS", widths), ("STRIDES", strides)):
            self._check_length(name, per_stage, count)
        original = self._per_stage("ORIGINAL_WIDTHS", count, required=True)
        groups = self._per_stage("GROUP_WS", count, required=block == BOTTLENECK)
        kernels = self._per_stage("KERNELS", count, required=block == INVERTED)
        bottlenecks = self._per_stage("BOT_MULS", count, required=block != BASIC)
        assert original is not None
        stages = []
        for i, (own, wide, stride) in enumerate(zip(depths, widths, strides, strict=True)):
            number, branches = i + 1, len(own)
            self._check_length(f"WIDTHS of stage {number}", wide, branches)
            self._check_length(f"STRIDES of stage {number}", stride, branches)
            if len(set(stride)) != 1:
                raise DesignError(f"STRIDES of stage {number} are {list(stride)}; its branches must have the same one")
            group = (
                () if groups is None or groups[i] is None else self._counts(f"GROUP_WS of stage {number}", groups[i])
            )
            if group:
                self._check_length(f"GROUP_WS of stage {number}", group, branches)
            stages.append(
                PublishedStage(
                    depths=own,
                    widths=wide,
                    stride=stride[0],
                    bottlenecks=self._bottlenecks(number, 1 if bottlenecks is None else bottlenecks[i], branches),
                    group_widths=group,
                    kernel=None if kernels is None else self._count(f"KERNELS of stage {number}", kernels[i]),
                    original_width=self._count(f"ORIGINAL_WIDTHS of stage {number}", original[i]),
                )
            )
        return tuple(stages)

    def _bottlenecks(self, number: int, value: Any, branches: int) -> tuple[float, ...]:
        name = f"BOT_MULS of stage {number}"
        values = value if isinstance(value, list) else [value] * branches
        self._check_length(name, values, branches)
        valid = all(type(ratio) in (int, float) and 0 < ratio < 1e6 for ratio in values)
        _check(name, value, valid, "a ratio above 0")
        return tuple(float(ratio) for ratio in values)

    def _per_stage(self, name: str, count: int, *, required: bool) -> list[Any] | None:
        """A list with one entry per stage; None if it is absent and not required."""
        value = self.fields.get(name)
        if value is None or value == []:
            if required:
                raise DesignError(f"ANYNET lacks {name}, which blocks of type {self.fields['BLOCK_TYPE']} need")
            return None
        _check(name, value, isinstance(value, list), "a list")
        self._check_length(name, value, count)
        return list(value)

    def _check_length(self, name: str, values: Sequence[Any], count: int) -> None:
        if len(values) != count:
            wanted = "branches" if "stage" in name else "stages"
            raise DesignError(f"{name} has {len(values)} entries, DEPTHS has {count} {wanted}; give one for each")

    def _lists(self, name: str) -> list[tuple[int, ...]]:
        value = self.fields[name]
        _check(name, value, isinstance(value, list) and value, "a list with a list for every stage")
        return [self._counts(f"{name} of stage {number}", entry) for number, entry in enumerate(value, 1)]

    def _counts(self, name: str, value: Any) -> tuple[int, ...]:
        _check(name, value, isinstance(value, list) and value, "a list with a number for every branch")
        return tuple(self._count(name, entry) for entry in value)

    def _count(self, name: str, value: Any, least: int = 1) -> int:
        if type(value) is not int or not least <= value < 1 << 20:
            raise DesignError(f"{name} holds {value!r}, not a whole number from {least} on")
        return value

    def _number(self, name: str, usual: float) -> float:
        value = self.fields.get(name, usual)
        _check(name, value, type(value) in (int, float) and 0 < value <= 1, "above 0 and up to 1")
        return float(value)

    def _choice(self, name: str, known: tuple[Any, ...], usual: Any = None) -> Any:
        value = self.fields.get(name, usual)
        if value not in known or type(value) is not type(known[0]):
            raise DesignError(f"{name} is {value!r}; known are {', '.join(map(str, known))}")
        return value

    def _name(self, name: str) -> str:
        value = self.fields[name]
        _check(name, value, isinstance(value, str) and value, "a name")
        return str(value)

    def _names(self, name: str) -> tuple[str, ...]:
        value = self.fields[name]
        named = isinstance(value, list) and value and all(isinstance(entry, str) and entry for entry in value)
        _check(name, value, named, "a list of names")
        if name == "DEVICES" and len(set(value)) < len(value):
            raise DesignError(f"DEVICES is {value}; name every processor once")
        return tuple(value)


def _check(name: str, value: Any, valid: Any, wanted: str) -> None:
    if not valid:
        raise DesignError(f"{name} is {value!r}, not {wanted}")


def _check_widths(number: int, stage: PublishedStage, block: str, version: int) -> None:
    """Checks that channels divide into groups and shares, and add up."""
    if block == BOTTLENECK:
        for branch, group in enumerate(stage.group_widths):
            inner = stage.inner_width(branch)
            if inner % group:
                raise DesignError(
                    f"stage {number} has {inner} inner channels in a branch, which groups of {group} do not divide"
                )
    total, branches = stage.original_width, len(stage.depths)
    if version == 1 and total % branches:
        raise DesignError(
            f"ORIGINAL_WIDTHS of stage {number} is {total}, which {branches} branches cannot share equally"
        )
    if version == 2 and total != sum(stage.widths):
        raise DesignError(
            f"ORIGINAL_WIDTHS of stage {number} is {total}, its branches write {sum(stage.widths)} channels together; "
            "make the two agree"
        )


_LARGEST = 1 << 20  # maximum bytes; published files have about a thousand


def read_published(path: Path) -> PublishedNetwork:
    """Reads the pycls file at `path`.

    Raises:
        FileError: the file does not exist or cannot be read.
        DesignError: it is no such file, or its content is invalid; the message says what.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > _LARGEST:
        raise DesignError(f"{path} has more than {_LARGEST} bytes; give a file with an ANYNET section")
    try:
        return parse_published(text.decode())
    except UnicodeDecodeError as error:
        raise DesignError(f"{path} is not text; give a YAML file with an ANYNET section") from error
    except DesignError as error:
        raise DesignError(f"{path}: {error}") from error


def write_published(network: PublishedNetwork, path: Path) -> None:
    """Writes `network` to `path` as a pycls file, completely or not at all; `read_published` restores an equal one.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(published_text(network).encode())


def published_text(network: PublishedNetwork) -> str:
    """The text of a pycls file."""
    stages = network.stages
    fields: dict[str, Any] = {
        "STEM_TYPE": network.stem,
        "STEM_W": network.stem_width,
        "STEM_K": network.stem_kernel,
        "BLOCK_TYPE": network.block,
        "STRIDES": [[stage.stride] * len(stage.depths) for stage in stages],
        "DEPTHS": [stage.depths for stage in stages],
        "WIDTHS": [stage.widths for stage in stages],
        "BOT_MULS": [_one_or_all(stage.bottlenecks) for stage in stages],
        "GROUP_WS": [stage.group_widths for stage in stages] if any(s.group_widths for s in stages) else None,
        "KERNELS": [stage.kernel for stage in stages] if any(s.kernel for s in stages) else None,
        "HEAD_W": network.head_width or None,
        "DEVICES": network.devices,
        "HEAD_DEVICE": network.head_device,
        "STEM_DEVICE": network.stem_device,
        "MERGE_DEVICE": network.merge_device,
        "ORIGINAL_WIDTHS": [stage.original_width for stage in stages],
        "SE_ON": network.squeeze > 0 if network.block != BASIC else None,
        "SE_R": network.squeeze or None,
        "MB_VER": network.version,
        "ACTIVATION_FUN": network.activations or None,
    }
    # JSON is YAML; it keeps the lists of a stage on one line, as in published files.
    lines = [f"  {name}: {json.dumps(value)}" for name, value in fields.items() if value is not None]
    others = yaml.safe_dump(dict(network.sections), sort_keys=False) if network.sections else ""
    return others + "\n".join(["ANYNET:", *lines, ""])


def _one_or_all(values: Sequence[float]) -> float | list[float]:
    plain = [int(value) if value == int(value) else value for value in values]
    return plain[0] if len(set(plain)) == 1 else plain
