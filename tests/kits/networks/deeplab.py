"""DeepLabV3 in small: torchvision's model and pyramid of dilated convolutions on a backbone of residual blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nnstretch.training.libraries import library
from tests.kits.kernels.shapes import SIDE
from tests.kits.networks.any_module import Basic, conv


class Backbone(nn.Module):
    """Feature maps at a quarter of the image's side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16, stride=2)
        self.layer1 = nn.Sequential(Basic(16, 16, 1), Basic(16, 16, 1))
        self.layer2 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1), Basic(32, 32, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.layer2(self.layer1(self.stem(x)))}


def deeplab() -> tuple[nn.Module, Tensor]:
    """A network for three classes, which returns a dictionary with `out`, and its example input."""
    torch.manual_seed(0)
    models = library("torchvision.models.segmentation.deeplabv3")
    head = nn.Sequential(models.ASPP(32, (2, 4), 24), conv(24, 24), nn.Conv2d(24, 3, 1))
    return models.DeepLabV3(Backbone(), head), torch.randn(1, 3, SIDE, SIDE)
