"""Networks published by NN-Stretch's authors as pycls settings, built directly from pycls' block definitions.

Independent of nnstretch: the reference for conversions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

_BASIC, _BOTTLENECK, _INVERTED = "res_basic_block", "res_bottleneck_block", "mbconv"


@dataclass(frozen=True)
class Setting:
    """One row of the published table. `macs` and `params` are those of the table, in 10^9 and 10^6."""

    model: str
    size: int
    stem: tuple[str, int]
    block: str
    depths: list[list[int]]
    widths: list[list[int]]
    strides: list[int]
    bottlenecks: list[Any]
    original_widths: list[int]
    group: int = 0  # channels per group; 0: one group, of all inner channels
    kernels: tuple[int, ...] = ()
    head: int = 0
    squeeze: bool = False
    version: int = 2
    devices: tuple[str, ...] = ("cpu", "gpu")
    macs: float | None = None
    params: float | None = None

    def groups(self) -> list[list[int]]:
        ratios = self.bottlenecks
        return [
            [self.group or round(width * ratio) for width in widths]
            for widths, ratio in zip(self.widths, ratios, strict=True)
        ]

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "STEM_TYPE": self.stem[0],
            "STEM_W": self.stem[1],
            "BLOCK_TYPE": self.block,
            "STRIDES": [[stride] * len(own) for stride, own in zip(self.strides, self.depths, strict=True)],
            "DEPTHS": self.depths,
            "WIDTHS": self.widths,
            "BOT_MULS": self.bottlenecks,
            "DEVICES": list(self.devices),
            "HEAD_DEVICE": "cpu",
            "STEM_DEVICE": "cpu",
            "MERGE_DEVICE": "cpu",
            "ORIGINAL_WIDTHS": self.original_widths,
        }
        if self.block == _INVERTED:
            found |= {"KERNELS": list(self.kernels), "HEAD_W": self.head, "SE_ON": self.squeeze, "MB_VER": self.version}
        else:
            found["GROUP_WS"] = self.groups()
        return found

    def text(self, **changed: Any) -> str:
        """The file, with fields changed; None takes a field out."""
        fields = {name: value for name, value in (self.fields() | changed).items() if value is not None}
        lines = [f"  {name}: {json.dumps(value)}" for name, value in fields.items()]
        return "\n".join(["MODEL:", "  TYPE: mbanynet", "  NUM_CLASSES: 1000", "ANYNET:", *lines, ""])


_ROWS = {"kernels": (3, 3, 5, 3, 5, 5, 3), "strides": [1, 2, 2, 2, 1, 2, 1], "version": 1, "block": _INVERTED}
SETTINGS = {
    "R-34 C+D": Setting(
        "resnet34",
        224,
        ("res_stem_in", 64),
        _BASIC,
        [[3, 2], [3, 3], [6, 5], [3, 2]],
        [[32, 64], [80, 64], [144, 160], [256, 320]],
        [1, 2, 2, 2],
        [1, 1, 1, 1],
        [96, 144, 304, 576],
        devices=("cpu", "dsp"),
        macs=2.53,
        params=13.5,
    ),
    "R-50 C+G": Setting(
        "resnet50",
        224,
        ("res_stem_in", 64),
        _BOTTLENECK,
        [[2, 3], [3, 4], [4, 6], [2, 2]],
        [[192, 192], [352, 288], [864, 480], [1696, 992]],
        [1, 2, 2, 2],
        [0.25, 0.25, 0.25, 0.25],
        [384, 640, 1344, 2688],
        macs=3.61,
        params=21.2,
    ),
    "RX-1.6 C+G": Setting(
        "regnet_x_1_6gf",
        224,
        ("simple_stem_in", 32),
        _BOTTLENECK,
        [[1, 2], [3, 3], [6, 10], [2, 1]],
        [[48, 24], [144, 72], [360, 192], [816, 648]],
        [2, 2, 2, 2],
        [1, 1, 1, 1],
        [72, 216, 552, 1464],
        group=24,
        macs=1.45,
        params=9.6,
    ),
    "EN-L4 C+G": Setting(
        "efficientnet_lite4",
        300,
        ("simple_stem_in", 32),
        depths=[[1], [2, 3], [2, 3], [5, 5], [5, 4], [7, 5], [1]],
        widths=[[24], [32, 32], [48, 48], [96, 96], [120, 128], [232, 176], [448]],
        bottlenecks=[1, 6, 6, 6, 6, 6, 6],
        original_widths=[24, 32, 56, 112, 160, 272, 448],
        head=1280,
        macs=2.72,
        params=12.5,
        **_ROWS,  # type: ignore[arg-type]
    ),
    "EN-B5 C+D": Setting(
        "efficientnet_b5",
        456,
        ("simple_stem_in", 48),
        depths=[[3, 2], [4, 3], [3, 3], [6, 5], [4, 5], [7, 6], [3, 2]],
        widths=[[24, 24], [32, 32], [56, 48], [112, 96], [160, 136], [272, 232], [448, 384]],
        bottlenecks=[1, [6, 6], [6, 6], [6, 6], [6, 6], [6, 6], [6, 6]],
        original_widths=[24, 40, 64, 128, 176, 304, 512],
        head=2048,
        squeeze=True,
        devices=("cpu", "dsp"),
        macs=10.89,
        params=31.5,
        **_ROWS,  # type: ignore[arg-type]
    ),
}


def _unbranched(setting: Setting, depths: list[int], widths: list[int], **changed: Any) -> Setting:
    return replace(
        setting,
        depths=[[depth] for depth in depths],
        widths=[[width] for width in widths],
        original_widths=widths,
        macs=None,
        params=None,
        **changed,
    )


# The six networks as they were: one branch per stage.
BASELINES = {
    "R-34": _unbranched(SETTINGS["R-34 C+D"], [3, 4, 6, 3], [64, 128, 256, 512]),
    "R-50": _unbranched(SETTINGS["R-50 C+G"], [3, 4, 6, 3], [256, 512, 1024, 2048]),
    "RX-1.6": _unbranched(SETTINGS["RX-1.6 C+G"], [2, 4, 10, 2], [72, 168, 408, 912]),
    "RX-4": _unbranched(SETTINGS["RX-1.6 C+G"], [2, 5, 14, 2], [80, 240, 560, 1360], model="regnet_x_4gf", group=40),
    "EN-L4": _unbranched(SETTINGS["EN-L4 C+G"], [1, 4, 4, 6, 6, 8, 1], [24, 32, 56, 112, 160, 272, 448], version=2),
    "EN-B5": _unbranched(
        SETTINGS["EN-B5 C+D"],
        [3, 5, 5, 7, 7, 9, 3],
        [24, 40, 64, 128, 176, 304, 512],
        version=2,
        bottlenecks=[1, 6, 6, 6, 6, 6, 6],
    ),
}
# Beyond the published networks: a stage deeper and wider than the network's, and three branches.
MORE = {
    "three branches": replace(
        SETTINGS["R-34 C+D"],
        depths=[[2, 2, 2], [2, 3, 3], [6, 5, 3], [3, 2, 2]],
        widths=[[32, 32, 32], [80, 64, 48], [136, 128, 88], [240, 224, 120]],
        original_widths=[96, 192, 352, 584],
        devices=("cpu", "dsp", "gpu"),
        macs=None,
    ),
    "deeper and wider": replace(
        SETTINGS["R-50 C+G"],
        depths=[[5, 1], [6, 4], [4, 6], [2, 2]],
        widths=[[312, 72], [352, 520], [864, 480], [1696, 992]],
        original_widths=[384, 872, 1344, 2688],
        macs=None,
    ),
}


def conv(read: int, written: int, kernel: int, stride: int = 1, groups: int = 1, *, active: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(read, written, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(written),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if active else []))


class Residual(nn.Module):
    """x + f(x), with a projection where pycls has one."""

    def __init__(self, body: nn.Module, read: int, written: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = read == written and stride == 1
        self.shortcut = nn.Identity() if same else conv(read, written, 1, stride, active=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.relu(self.body(x) + self.shortcut(x))
        return y


class Squeeze(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.layers(x)
        return y


class Inverted(nn.Module):
    def __init__(self, read: int, written: int, stride: int, ratio: float, kernel: int, *, squeeze: bool) -> None:
        super().__init__()
        inner = int(read * ratio)
        self.skips = read == written and stride == 1
        layers = [] if inner == read else [conv(read, inner, 1, active=True)]
        layers.append(conv(inner, inner, kernel, stride, inner, active=True))
        gates = [Squeeze(inner, int(read * 0.25))] if squeeze else []
        self.body = nn.Sequential(*layers, *gates, conv(inner, written, 1, active=False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.skips else y


class Concat(nn.Module):
    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def divisible(value: float) -> int:
    """As MobileNet's authors round."""
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * value else rounded + 8


def reference(setting: Setting) -> nn.Module:
    """The setting's network on the meta device, as pycls would build it."""
    with torch.device("meta"):
        kind, read = setting.stem
        layers: list[nn.Module] = [conv(3, read, 7 if kind == "res_stem_in" else 3, 2, active=True)]
        if kind == "res_stem_in":
            layers.append(nn.MaxPool2d(3, 2, 1))
        for number in range(len(setting.depths)):
            layers.append(_stage(setting, number, read))
            read = setting.original_widths[number]
        if setting.head:
            layers.append(conv(read, setting.head, 1, active=True))
        last = setting.head or read
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000)).eval()


def _stage(setting: Setting, number: int, read: int) -> nn.Module:
    branches: list[nn.Module] = []
    depths, widths, original = setting.depths[number], setting.widths[number], setting.original_widths[number]
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        layers: list[nn.Module] = []
        first = read
        if setting.version == 1:
            first = divisible(width / original * read)
            layers.append(conv(read, first, 1, active=False))
        for j in range(depth):
            stride = setting.strides[number] if j == 0 else 1
            layers.append(_block(setting, number, i, first if j == 0 else width, stride))
        share = original // len(depths)
        if setting.version == 1 and width != share:
            layers.append(conv(width, share, 1, active=False))
        branches.append(nn.Sequential(*layers))
    return Concat(branches)


def _block(setting: Setting, number: int, branch: int, read: int, stride: int) -> nn.Module:
    width, ratio = setting.widths[number][branch], setting.bottlenecks[number]
    ratio = ratio[branch] if isinstance(ratio, list) else ratio
    if setting.block == _INVERTED:
        return Inverted(read, width, stride, ratio, setting.kernels[number], squeeze=setting.squeeze)
    if setting.block == _BASIC:
        body = nn.Sequential(conv(read, width, 3, stride, active=True), conv(width, width, 3, active=False))
        return Residual(body, read, width, stride)
    inner = round(width * ratio)
    groups = inner // setting.groups()[number][branch]
    body = nn.Sequential(
        conv(read, inner, 1, active=True),
        conv(inner, inner, 3, stride, groups, active=True),
        conv(inner, width, 1, active=False),
    )
    return Residual(body, read, width, stride)
