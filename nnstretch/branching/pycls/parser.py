"""Parses and validates section `ANYNET` of pycls files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from nnstretch.branching.pycls.network import (
    BASIC,
    BLOCKS,
    BOTTLENECK,
    INVERTED,
    STEM_KERNELS,
    STEMS,
    PublishedNetwork,
    PublishedStage,
)
from nnstretch.errors import DesignError

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
        squeeze = self._number("SE_R", 0.25) if self._flag("SE_ON") and block != BASIC else 0.0
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
        for ratio in values:
            if type(ratio) not in (int, float) or not 0 < ratio < 1e6:
                raise DesignError(f"{name} is {value!r}, not a ratio above 0")
        return tuple(float(ratio) for ratio in values)

    def _per_stage(self, name: str, count: int, *, required: bool) -> list[Any] | None:
        """A list with one entry per stage; None if it is absent and not required."""
        value = self.fields.get(name)
        if value is None or value == []:
            if required:
                raise DesignError(f"ANYNET lacks {name}, which blocks of type {self.fields['BLOCK_TYPE']} need")
            return None
        if not isinstance(value, list):
            raise DesignError(f"{name} is {value!r}, not a list")
        self._check_length(name, value, count)
        return value

    def _check_length(self, name: str, values: Sequence[Any], count: int) -> None:
        if len(values) != count:
            wanted = "branches" if "stage" in name else "stages"
            raise DesignError(f"{name} has {len(values)} entries, DEPTHS has {count} {wanted}; give one for each")

    def _lists(self, name: str) -> list[tuple[int, ...]]:
        value = self.fields[name]
        if not isinstance(value, list) or not value:
            raise DesignError(f"{name} is {value!r}, not a list with a list for every stage")
        return [self._counts(f"{name} of stage {number}", entry) for number, entry in enumerate(value, 1)]

    def _counts(self, name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not value:
            raise DesignError(f"{name} is {value!r}, not a list with a number for every branch")
        return tuple(self._count(name, entry) for entry in value)

    def _count(self, name: str, value: Any, least: int = 1) -> int:
        if type(value) is not int or not least <= value < 1 << 20:
            raise DesignError(f"{name} holds {value!r}, not a whole number from {least} on")
        return value

    def _number(self, name: str, usual: float) -> float:
        value = self.fields.get(name, usual)
        if type(value) not in (int, float) or not 0 < value <= 1:
            raise DesignError(f"{name} is {value!r}, not above 0 and up to 1")
        return float(value)

    def _flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise DesignError(f"{name} is {value!r}, neither true nor false")
        return value

    def _choice(self, name: str, known: tuple[Any, ...], usual: Any = None) -> Any:
        value = self.fields.get(name, usual)
        if isinstance(value, bool) or value not in known:
            raise DesignError(f"{name} is {value!r}; known are {', '.join(map(str, known))}")
        return value

    def _name(self, name: str) -> str:
        value = self.fields[name]
        if not isinstance(value, str) or not value:
            raise DesignError(f"{name} is {value!r}, not a name")
        return value

    def _names(self, name: str) -> tuple[str, ...]:
        value = self.fields[name]
        if not isinstance(value, list) or not value or not all(isinstance(entry, str) and entry for entry in value):
            raise DesignError(f"{name} is {value!r}, not a list of names")
        if name == "DEVICES" and len(set(value)) < len(value):
            raise DesignError(f"DEVICES is {value}; name every processor once")
        return tuple(value)


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
