"""GoogLeNet (Szegedy et al., 2014, arXiv:1409.4842), with batch norm and without auxiliary heads.

As in torch's published checkpoints, the third path of an inception module has a 3x3 convolution instead of
the paper's 5x5.
"""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, classifier, conv_bn

_EPS = 1e-3
# Per inception module: 1x1; 3x3 reduce, 3x3; second 3x3 reduce, second 3x3; pool projection (table 1).
_Widths = tuple[int, int, int, int, int, int]
_STAGES: tuple[tuple[_Widths, ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def _inception(in_channels: int, widths: _Widths) -> Parallel:
    one, reduce_a, three_a, reduce_b, three_b, projection = widths
    return Parallel(
        conv_bn(in_channels, one, 1, eps=_EPS),
        nn.Sequential(conv_bn(in_channels, reduce_a, 1, eps=_EPS), conv_bn(reduce_a, three_a, 3, eps=_EPS)),
        nn.Sequential(conv_bn(in_channels, reduce_b, 1, eps=_EPS), conv_bn(reduce_b, three_b, 3, eps=_EPS)),
        nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True),
            conv_bn(in_channels, projection, 1, eps=_EPS),
        ),
    )


def _stem(in_channels: int, *, small_images: bool) -> nn.Sequential:
    first: list[nn.Module] = [conv_bn(in_channels, 64, 3 if small_images else 7, stride=2, eps=_EPS)]
    if not small_images:
        first.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
    return nn.Sequential(*first, conv_bn(64, 64, 1, eps=_EPS), conv_bn(64, 192, 3, eps=_EPS))


def googlenet(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """GoogLeNet. For small images the stem starts with 3x3/2 and has no pool."""
    pools = (
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        nn.MaxPool2d(3, stride=2, ceil_mode=True),
        nn.MaxPool2d(2, stride=2, ceil_mode=True),
    )
    stages: list[nn.Sequential] = []
    width = 192
    for pool, modules in zip(pools, _STAGES, strict=True):
        blocks: list[nn.Module] = [pool]
        for widths in modules:
            blocks.append(_inception(width, widths))
            width = widths[0] + widths[2] + widths[4] + widths[5]
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(*classifier(width, num_classes, dropout=0.2))
    return Chain(_stem(in_channels, small_images=small_images), stages, head)
