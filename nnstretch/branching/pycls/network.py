"""Published NN-Stretch networks as data: what section `ANYNET` of a pycls file describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    def processors(self) -> tuple[str, ...]:
        """Names of all devices in the order in which a design numbers its processors: those with branches first."""
        return tuple(dict.fromkeys([*self.devices, self.stem_device, self.head_device]))
