"""Networks of inception modules: GoogLeNet with batch norm, and Inception-v3; both without auxiliary heads.

GoogLeNet: Szegedy et al., 2014, arXiv:1409.4842. As in torch's published checkpoints, the third path of a module has a 3x3
convolution instead of the paper's 5x5. Inception-v3: Szegedy et al., 2015, arXiv:1512.00567.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, classifier, conv_bn

_conv = partial(conv_bn, eps=1e-3)


def _pooled(in_channels: int, projection: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv(in_channels, projection, 1))


def _mixed_35(in_channels: int, projection: int) -> Parallel:
    """The module at 35 x 35: the paper's figure 5 with one 5x5 kept; ``projection`` channels after the pool."""
    return Parallel(
        _conv(in_channels, 64, 1),
        nn.Sequential(_conv(in_channels, 48, 1), _conv(48, 64, 5)),
        nn.Sequential(_conv(in_channels, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3)),
        _pooled(in_channels, projection),
    )


def _to_17(in_channels: int) -> Parallel:
    return Parallel(
        _conv(in_channels, 384, 3, stride=2, padding=0),
        nn.Sequential(_conv(in_channels, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3, stride=2, padding=0)),
        nn.MaxPool2d(3, stride=2),
    )


def _mixed_17(inner: int) -> Parallel:
    """The module at 17 x 17 with 7x7 convolutions as 1x7 and 7x1 (figure 6), ``inner`` channels between them."""
    return Parallel(
        _conv(768, 192, 1),
        nn.Sequential(_conv(768, inner, 1), _conv(inner, inner, (1, 7)), _conv(inner, 192, (7, 1))),
        nn.Sequential(
            _conv(768, inner, 1),
            _conv(inner, inner, (7, 1)),
            _conv(inner, inner, (1, 7)),
            _conv(inner, inner, (7, 1)),
            _conv(inner, 192, (1, 7)),
        ),
        _pooled(768, 192),
    )


def _to_8() -> Parallel:
    return Parallel(
        nn.Sequential(_conv(768, 192, 1), _conv(192, 320, 3, stride=2, padding=0)),
        nn.Sequential(
            _conv(768, 192, 1),
            _conv(192, 192, (1, 7)),
            _conv(192, 192, (7, 1)),
            _conv(192, 192, 3, stride=2, padding=0),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _mixed_8(in_channels: int) -> Parallel:
    """The module at 8 x 8, with 1x3 and 3x1 convolutions side by side instead of 3x3 (figure 7)."""
    return Parallel(
        _conv(in_channels, 320, 1),
        nn.Sequential(_conv(in_channels, 384, 1), Parallel(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1)))),
        nn.Sequential(
            _conv(in_channels, 448, 1), _conv(448, 384, 3), Parallel(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1)))
        ),
        _pooled(in_channels, 192),
    )


def _stem(in_channels: int, *, small_images: bool) -> nn.Sequential:
    padding = 1 if small_images else 0
    pools: list[nn.Module] = [] if small_images else [nn.MaxPool2d(3, stride=2)]
    return nn.Sequential(
        _conv(in_channels, 32, 3, stride=2, padding=padding),
        _conv(32, 32, 3, padding=padding),
        _conv(32, 64, 3),
        *pools,
        _conv(64, 80, 1),
        _conv(80, 192, 3, padding=padding),
    )


def inception_v3(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """Inception-v3. For small images the stem pads, and neither the stem nor the first stage has a pool."""
    pools: list[nn.Module] = [] if small_images else [nn.MaxPool2d(3, stride=2)]
    stages = (
        nn.Sequential(*pools, _mixed_35(192, 32), _mixed_35(256, 64), _mixed_35(288, 64)),
        nn.Sequential(_to_17(288), _mixed_17(128), _mixed_17(160), _mixed_17(160), _mixed_17(192)),
        nn.Sequential(_to_8(), _mixed_8(1280), _mixed_8(2048)),
    )
    head = nn.Sequential(*classifier(2048, num_classes, dropout=0.5))
    return Chain(_stem(in_channels, small_images=small_images), stages, head)


# Per inception module: 1x1; 3x3 reduce, 3x3; second 3x3 reduce, second 3x3; pool projection (table 1).
_Widths = tuple[int, int, int, int, int, int]
_MODULES: tuple[tuple[_Widths, ...], ...] = (
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
        _conv(in_channels, one, 1),
        nn.Sequential(_conv(in_channels, reduce_a, 1), _conv(reduce_a, three_a, 3)),
        nn.Sequential(_conv(in_channels, reduce_b, 1), _conv(reduce_b, three_b, 3)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), _conv(in_channels, projection, 1)),
    )


def _googlenet_stem(in_channels: int, *, small_images: bool) -> nn.Sequential:
    first: list[nn.Module] = [_conv(in_channels, 64, 3 if small_images else 7, stride=2)]
    if not small_images:
        first.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
    return nn.Sequential(*first, _conv(64, 64, 1), _conv(64, 192, 3))


def googlenet(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """GoogLeNet. For small images the stem starts with 3x3/2 and has no pool."""
    stages: list[nn.Sequential] = []
    width = 192
    for pool, modules in zip((3, 3, 2), _MODULES, strict=True):
        blocks: list[nn.Module] = [nn.MaxPool2d(pool, stride=2, ceil_mode=True)]
        for widths in modules:
            blocks.append(_inception(width, widths))
            width = widths[0] + widths[2] + widths[4] + widths[5]
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(*classifier(width, num_classes, dropout=0.2))
    return Chain(_googlenet_stem(in_channels, small_images=small_images), stages, head)
