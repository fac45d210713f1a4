"""VGG, configuration D (Simonyan and Zisserman, 2014, arXiv:1409.1556), without batch norm."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, conv_relu

# Convolutions per stage and their width; the very first convolution is the stem.
_STAGES = ((1, 64), (2, 128), (3, 256), (3, 512), (3, 512))
_HIDDEN = 4096
_GRID = 7  # side of the feature map that the first dense layer reads, at 224 x 224


def vgg16(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """VGG-16. For small images the dense layers read the 512 pooled features, not a 7x7 grid of them."""
    width = _STAGES[0][1]
    stem = conv_relu(in_channels, width, 3, padding=1)
    stages: list[nn.Sequential] = []
    for index, (depth, out) in enumerate(_STAGES):
        blocks: list[nn.Module] = [] if index == 0 else [nn.MaxPool2d(2)]
        for _ in range(depth):
            blocks.append(conv_relu(width, out, 3, padding=1))
            width = out
        stages.append(nn.Sequential(*blocks))
    grid = 1 if small_images else _GRID
    head = nn.Sequential(
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(grid),
        nn.Flatten(),
        nn.Linear(width * grid * grid, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, num_classes),
    )
    return Chain(stem, stages, head)
