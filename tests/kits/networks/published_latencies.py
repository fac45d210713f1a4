"""Networks, branchings and latencies that NN-Stretch published, as graphs, to fit the phone profile.

    python -m tests.kits.networks.published_latencies

writes the shipped profile, fitted to four of the six networks, and prints its errors on these and on the two held out.

Latencies are of a phone, int8, at 224×224, of graphs without squeeze-excite. C is the CPU, G the GPU, D the DSP. Stem,
head and stages with one branch run on the CPU. Weights are zeros that take no memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.devices.simulated.profile import SHIPPED, save_profile
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from nnstretch.scheduler.simulation.fit import Assumptions, Measurement, fit_profile
from scripts.studies.fit_profile import print_errors

PROCESSORS = {"C": "cpu", "G": "gpu", "D": "dsp"}

MEASURED_MS = {
    "R-34": {"C": 21.692, "G": 36.517, "D": 24.377, "CG": 15.315, "CD": 13.255},
    "R-50": {"C": 28.825, "G": 37.406, "D": 30.399, "CG": 25.020, "CD": 23.191},
    "RX-1.6": {"C": 27.450, "G": 45.078, "D": 32.626, "CG": 20.531, "CD": 16.999},
    "RX-4": {"C": 37.060, "G": 74.512, "D": 48.878, "CG": 31.690, "CD": 24.971},
    "EN-L4": {"C": 16.264, "G": 18.497, "D": 16.283, "CG": 14.114, "CD": 10.995},
    "EN-B5": {"C": 26.674, "G": 32.156, "D": 29.782, "CG": 24.583, "CD": 20.120},
}


@dataclass(frozen=True)
class Family:
    """An original network: stages of blocks.

    `group` is the channels of a group, 0 for as many as the bottleneck has; `stem` its channels; `kernel` of the stem.
    """

    block: str
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    strides: tuple[int, ...]
    stem: int
    bottleneck: float = 1.0
    group: int = 0
    kernels: tuple[int, ...] = (3, 3, 3, 3)
    head: int = 0


Setting = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]
"""Depths and widths of the branches of every stage."""


def _mobile(depths: tuple[int, ...], widths: tuple[int, ...], stem: int, head: int) -> Family:
    """An EfficientNet."""
    return Family("mobile", depths, widths, (1, 2, 2, 2, 1, 2, 1), stem, kernels=(3, 3, 5, 3, 5, 5, 3), head=head)


FAMILIES = {
    "R-34": Family("basic", (3, 4, 6, 3), (64, 128, 256, 512), (1, 2, 2, 2), 64),
    "R-50": Family("bottleneck", (3, 4, 6, 3), (256, 512, 1024, 2048), (1, 2, 2, 2), 64, bottleneck=0.25),
    "RX-1.6": Family("bottleneck", (2, 4, 10, 2), (72, 168, 408, 912), (2, 2, 2, 2), 32, group=24),
    "RX-4": Family("bottleneck", (2, 5, 14, 2), (80, 240, 560, 1360), (2, 2, 2, 2), 32, group=40),
    "EN-L4": _mobile((1, 4, 4, 6, 6, 8, 1), (24, 32, 56, 112, 160, 272, 448), stem=32, head=1280),
    "EN-B5": _mobile((3, 5, 5, 7, 7, 9, 3), (24, 40, 64, 128, 176, 304, 512), stem=48, head=2048),
}

_B5_WIDTHS = ([24, 24], [32, 32], [56, 48], [112, 96], [160, 136], [272, 232], [448, 384])

SETTINGS: dict[tuple[str, str], Setting] = {
    ("R-34", "CG"): ([[3, 2], [3, 3], [6, 4], [3, 2]], [[40, 56], [80, 64], [160, 144], [352, 224]]),
    ("R-34", "CD"): ([[3, 2], [3, 3], [6, 5], [3, 2]], [[32, 64], [80, 64], [144, 160], [256, 320]]),
    ("R-50", "CG"): ([[2, 3], [3, 4], [4, 6], [2, 2]], [[192, 192], [352, 288], [864, 480], [1696, 992]]),
    ("R-50", "CD"): ([[3, 2], [3, 4], [4, 6], [2, 2]], [[160, 224], [384, 256], [832, 512], [1632, 1184]]),
    ("RX-1.6", "CG"): ([[1, 2], [3, 3], [6, 10], [2, 1]], [[48, 24], [144, 72], [360, 192], [816, 648]]),
    ("RX-1.6", "CD"): ([[1, 2], [2, 4], [6, 10], [2, 1]], [[48, 24], [168, 96], [384, 192], [768, 720]]),
    ("RX-4", "CG"): ([[1, 2], [4, 3], [12, 9], [2, 1]], [[80, 40], [240, 160], [400, 280], [1120, 720]]),
    ("RX-4", "CD"): ([[1, 2], [3, 5], [8, 13], [2, 2]], [[80, 40], [200, 160], [480, 280], [1120, 720]]),
    ("EN-L4", "CG"): (
        [[1], [2, 3], [2, 3], [5, 5], [5, 4], [7, 5], [1]],
        [[24], [32, 32], [48, 48], [96, 96], [120, 128], [232, 176], [448]],
    ),
    ("EN-L4", "CD"): (
        [[1], [2, 3], [2, 3], [5, 5], [4, 5], [6, 6], [1]],
        [[24], [32, 24], [48, 40], [96, 88], [120, 128], [232, 176], [448]],
    ),
    ("EN-B5", "CG"): ([[3, 3], [4, 4], [3, 4], [6, 6], [4, 4], [7, 5], [3, 2]], _B5_WIDTHS),
    ("EN-B5", "CD"): ([[3, 2], [4, 3], [3, 3], [6, 5], [4, 5], [7, 6], [3, 2]], _B5_WIDTHS),
}


def network(name: str, processors: str, size: int = 224) -> ir.Model:
    """The graph that was measured on these processors: the original on one, the published branching on two.

    Nodes are placed on the processors by their number in `processors`.
    """
    family = FAMILIES[name]
    original = [[d] for d in family.depths], [[w] for w in family.widths]
    depths, widths = SETTINGS[name, processors] if len(processors) > 1 else original
    return _Builder(family).build(depths, widths, size)


def make_divisible(value: float, divisor: int = 8) -> int:
    """The multiple of `divisor` next to `value`, but at least 0.9 of it."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


@dataclass(frozen=True)
class _Tensor:
    value: ir.Value
    channels: int
    size: int


class _Builder:
    def __init__(self, family: Family) -> None:
        self._family = family
        self._nodes: list[ir.Node] = []
        self._weights: list[ir.Value] = []
        self._names = itertools.count()
        self._processor = 0
        self._enters = False

    def build(self, depths: Sequence[Sequence[int]], widths: Sequence[Sequence[int]], size: int) -> ir.Model:
        # What the published counts of MACs say: in a branched network stages of one branch have an entry too, but no exit.
        self._enters = self._is_mobile and any(len(stage) > 1 for stage in depths)
        image = _Tensor(self._value((1, 3, size, size)), 3, size)
        x = self._conv(image, self._family.stem, 3 if self._is_mobile or self._family.group else 7, 2)
        if not (self._is_mobile or self._family.group):
            x = self._pool(x)
        for stage in range(len(depths)):
            x = self._stage(x, stage, depths[stage], widths[stage])
        self._processor = 0
        if self._family.head:
            x = self._conv(x, self._family.head, 1)
        mean = self._node("GlobalAveragePool", [x.value], (1, x.channels, 1, 1))
        flat = self._node("Flatten", [mean], (1, x.channels), axis=1)
        weights = [self._weight((1000, x.channels)), self._weight((1000,))]
        result = self._node("Gemm", [flat, *weights], (1, 1000), transB=1)
        graph = ir.Graph(
            [image.value],
            [result],
            nodes=self._nodes,
            initializers=self._weights,
            opset_imports={"": 20},
            name="network",
        )
        return ir.Model(graph, ir_version=10)

    @property
    def _is_mobile(self) -> bool:
        return self._family.block == "mobile"

    def _stage(self, x: _Tensor, stage: int, depths: Sequence[int], widths: Sequence[int]) -> _Tensor:
        ends = []
        is_branched = len(depths) > 1
        for self._processor, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            y, full = x, self._family.widths[stage]
            if self._enters:
                y = self._conv(y, make_divisible(width / full * x.channels), 1, relu=False)
            for number in range(depth):
                y = self._block(y, stage, width, self._family.strides[stage] if number == 0 else 1)
            ends.append(self._conv(y, full // len(depths), 1, relu=False) if is_branched and self._is_mobile else y)
        self._processor = 0
        if len(ends) == 1:
            return ends[0]
        channels = sum(end.channels for end in ends)
        values = [end.value for end in ends]
        joined = self._node("Concat", values, (1, channels, ends[0].size, ends[0].size), placed=False, axis=1)
        return _Tensor(joined, channels, ends[0].size)

    def _block(self, x: _Tensor, stage: int, width: int, stride: int) -> _Tensor:
        family = self._family
        if family.block == "mobile":
            return self._mobile(x, width, stride, 1 if stage == 0 else 6, family.kernels[stage])
        if family.block == "basic":
            y = self._conv(self._conv(x, width, 3, stride), width, 3, relu=False)
        else:
            inner = round(width * family.bottleneck)
            y = self._conv(x, inner, 1)
            y = self._conv(y, inner, 3, stride, inner // family.group if family.group else 1)
            y = self._conv(y, width, 1, relu=False)
        shortcut = x if stride == 1 and x.channels == width else self._conv(x, width, 1, stride, relu=False)
        shape = (1, width, y.size, y.size)
        added = self._node("Add", [y.value, shortcut.value], shape)
        return _Tensor(self._node("Relu", [added], shape), width, y.size)

    def _mobile(self, x: _Tensor, width: int, stride: int, expansion: int, kernel: int) -> _Tensor:
        inner = x.channels * expansion
        y = self._conv(x, inner, 1) if expansion > 1 else x
        y = self._conv(self._conv(y, inner, kernel, stride, inner), width, 1, relu=False)
        if stride > 1 or x.channels != width:
            return y
        return _Tensor(self._node("Add", [y.value, x.value], (1, width, y.size, y.size)), width, y.size)

    def _conv(
        self, x: _Tensor, filters: int, kernel: int, stride: int = 1, groups: int = 1, *, relu: bool = True
    ) -> _Tensor:
        size, pad = -(-x.size // stride), [kernel // 2] * 4
        weight = self._weight((filters, x.channels // groups, kernel, kernel))
        shape = (1, filters, size, size)
        inputs = [x.value, weight, self._weight((filters,))]
        kernels, strides = [kernel] * 2, [stride] * 2
        value = self._node("Conv", inputs, shape, kernel_shape=kernels, strides=strides, pads=pad, group=groups)
        return _Tensor(self._node("Relu", [value], shape) if relu else value, filters, size)

    def _pool(self, x: _Tensor) -> _Tensor:
        size = -(-x.size // 2)
        shape = (1, x.channels, size, size)
        pooled = self._node("MaxPool", [x.value], shape, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        return _Tensor(pooled, x.channels, size)

    def _node(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        shape: tuple[int, ...],
        *,
        placed: bool = True,
        **attributes: Sequence[int] | int,
    ) -> ir.Value:
        result = self._value(shape)
        node = ir.node(op, inputs, attributes, outputs=[result], name=f"{op}_{result.name}")
        if placed:
            node.metadata_props[PLACEMENT_KEY] = str(self._processor)
        self._nodes.append(node)
        return result

    def _value(self, shape: tuple[int, ...]) -> ir.Value:
        return ir.val(f"v{next(self._names)}", ir.DataType.FLOAT, shape)

    def _weight(self, shape: tuple[int, ...]) -> ir.Value:
        value = self._value(shape)
        value.const_value = ir.tensor(_zeros(shape), name=value.name)
        self._weights.append(value)
        return value


_ZEROS = np.zeros(1 << 23, np.float32)
"""Enough for the largest weight; never written, so they take no memory."""


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    return _ZEROS[: math.prod(shape)].reshape(shape)


# -- the phone -----------------------------------------------------------------------------------------------------

ASSUMED = Assumptions(
    launch_us={"cpu": 5.0, "gpu": 10.0, "dsp": 10.0},
    sync_us=50.0,
    half=(16.0, 16.0),
    element_bytes=1,
    description=(
        "CPU, GPU and DSP of a phone, int8. Rates, groups and bandwidths are fitted to the latencies "
        "of four networks and their branchings that NN-Stretch published, and tested on two others; launches, "
        "synchronisation and half are assumed; no contention was observed; the unpublished pair of gpu and dsp "
        "equals the slower of the other pairs."
    ),
)

HELD_OUT = ("R-50", "RX-4")
"""Networks that the profile is tested on and not fitted to: one without and one with grouped convolutions."""

FITTED = tuple(name for name in MEASURED_MS if name not in HELD_OUT)


def measurements(names: Sequence[str]) -> list[Measurement]:
    """All published measurements of these networks, in the columns' order."""
    return [
        Measurement(optimized(name, column), tuple(PROCESSORS[c] for c in column), milliseconds * 1e-3)
        for name in names
        for column, milliseconds in MEASURED_MS[name].items()
    ]


def optimized(name: str, processors: str) -> ir.Model:
    """As `network`; the original is one graph for all processors."""
    return _optimized(name, processors if len(processors) > 1 else "C")


@functools.cache
def _optimized(name: str, processors: str) -> ir.Model:
    return optimize(network(name, processors))


def _main() -> None:
    profile = fit_profile(measurements(FITTED), ASSUMED)
    save_profile(profile, SHIPPED / "phone.json")
    for title, names in (("fitted", FITTED), ("held out", HELD_OUT)):
        print_errors(title, profile, [(name, one) for name in names for one in measurements([name])])


if __name__ == "__main__":
    _main()
