"""A small residual network as the text of a module, and a published branching of it for `cpu` and `gpu`."""

from __future__ import annotations

from tests.kits.networks.published_networks import Setting

RESIDUAL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        first = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        self.body = nn.Sequential(first, nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        same = a == b and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def residual():
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    stages = nn.Sequential(Block(16, 16), Block(16, 16)), nn.Sequential(Block(16, 32, 2), Block(32, 32))
    net = nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return net.eval(), torch.zeros(1, 3, 64, 64)
"""

BRANCHED = Setting(
    "net.py:residual",
    64,
    ("res_stem_in", 16),
    "res_basic_block",
    depths=[[2, 1], [1, 2]],
    widths=[[16, 8], [24, 16]],
    strides=[1, 2],
    bottlenecks=[1, 1],
    original_widths=[24, 40],
)
