"""Small networks with the structures and coding styles of common module libraries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.zoo import weights


def conv(channels: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class Basic(nn.Module):
    """A residual block."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(channels, out, stride=stride), nn.Conv2d(out, out, 3, padding=1))
        self.shortcut = nn.Conv2d(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.relu(self.body(x) + self.shortcut(x))
        return y


class Detector(nn.Module):
    """A backbone, a feature pyramid, heads shared by all levels, and an auxiliary output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8, stride=2)
        self.stages = nn.ModuleList(
            nn.Sequential(Basic(before, after, 2), Basic(after, after, 1))
            for before, after in ((8, 16), (16, 24), (24, 32))
        )
        self.lateral = nn.ModuleList(nn.Conv2d(channels, 8, 1) for channels in (16, 24, 32))
        self.smooth = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.classes = nn.Conv2d(8, 6, 3, padding=1)
        self.boxes = nn.Conv2d(8, 4, 3, padding=1)
        self.auxiliary = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(read) for lateral, read in zip(self.lateral, maps, strict=True)]
        for i in (1, 0):
            levels[i] = levels[i] + functional.interpolate(levels[i + 1], size=levels[i].shape[-2:])
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        found = [torch.cat([self.classes(y), self.boxes(y)], 1).flatten(2).permute(0, 2, 1) for y in levels]
        return {"boxes": torch.cat(found, 1), "auxiliary": self.auxiliary(maps[1].mean((2, 3)))}


class Levels(nn.Module):
    """A detector with separate convolutions for the boxes and classes of each of three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Sequential(conv(before, after, stride=2), conv(after, after))
            for before, after in ((3, 16), (16, 32), (32, 48))
        )
        self.box = nn.ModuleList(self._tower(channels, 8) for channels in (16, 32, 48))
        self.classes = nn.ModuleList(self._tower(channels, 5) for channels in (16, 32, 48))

    @staticmethod
    def _tower(channels: int, out: int) -> nn.Sequential:
        return nn.Sequential(conv(channels, 24), conv(24, 24), nn.Conv2d(24, out, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = []
        for stage in (self.first, self.second, self.third):
            x = stage(x)
            maps.append(x)
        found = [
            torch.cat([box(y), classes(y)], 1).flatten(2)
            for y, box, classes in zip(maps, self.box, self.classes, strict=True)
        ]
        boxes, scores = torch.split(torch.cat(found, 2), [8, 5], 1)
        return {"boxes": 2 * boxes, "scores": scores.sigmoid()}


class UNet(nn.Module):
    """A U-Net. Its input check is control flow that torch.fx cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 8), conv(8, 16), conv(16, 24)])
        self.bottom = conv(24, 24)
        self.up = nn.ModuleList([nn.ConvTranspose2d(24, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.across = nn.ModuleList([conv(32, 16), conv(16, 8)])
        self.classes = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 4 or x.dim() != 4:
            raise ValueError("sides must be multiples of 4")
        skips = []
        for number, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if number else x)
            skips.append(x)
        x = self.bottom(x)
        for up, across, skip in zip(self.up, self.across, skips[1::-1], strict=True):
            x = across(torch.cat([up(x), skip], dim=1))
        y: Tensor = self.classes(x)
        return y


class Shuffled(nn.Module):
    """A ShuffleNet unit: half of the channels bypass it, then all are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            conv(half, half, 1),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            conv(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        past, read = x.chunk(2, dim=1)
        x = torch.cat((past, self.body(read)), dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class ConvNext(nn.Module):
    """Channels last in the middle, normalised there, and scaled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide = nn.Linear(channels, 2 * channels)
        self.narrow = nn.Linear(2 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Parts(nn.Module):
    """Res2Net: each quarter is added to the next one, with weights that are standardised at every use."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(channels // 4, channels // 4, 3, 3) / 6) for _ in range(3)
        )
        self.norm = nn.GroupNorm(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.enter(x), x.shape[1] // 4, dim=1)
        made, last = [parts[0]], parts[0]
        for part, weight in zip(parts[1:], self.weights, strict=True):
            standard = (weight - weight.mean()) / weight.std()
            last = functional.conv2d(part + last, standard / 6, padding=1)
            made.append(last)
        y: Tensor = self.norm(self.leave(torch.cat(made, 1)))
        return x + y


class Tail(nn.Module):
    """Features, a vector of them, and classes."""

    def __init__(self, *layers: nn.Module, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.classes = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(x)
        y = functional.adaptive_avg_pool2d(y, 1).view(y.size(0), -1)
        return self.classes(y), y


def shuffled() -> nn.Module:
    return Tail(conv(3, 16, stride=2), Shuffled(16), conv(16, 24, stride=2), Shuffled(24), conv(24, 16), channels=16)


def convnext() -> nn.Module:
    return Tail(nn.Conv2d(3, 16, 4, 4), ConvNext(16), ConvNext(16), nn.Conv2d(16, 24, 2, 2), ConvNext(24), channels=24)


def parts() -> nn.Module:
    return Tail(conv(3, 16, stride=2), Parts(16), Parts(16), conv(16, 24, stride=2), channels=24)


def small(network: nn.Module) -> nn.Module:
    """The network in evaluation mode with weights that keep activations alive."""
    weights.initialise(network, 3, 0)
    return network.eval()


ANY: dict[str, Callable[[], nn.Module]] = {
    "detector": Detector,
    "u-net": UNet,
    "shuffled": shuffled,
    "convnext": convnext,
    "parts": parts,
}
