"""The networks of the zoo by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from nnstretch.errors import ModelError
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import Chain
from nnstretch.zoo.densenet import densenet121
from nnstretch.zoo.efficientnet import efficientnet_lite4
from nnstretch.zoo.googlenet import googlenet
from nnstretch.zoo.mobilenet import mobilenetv2
from nnstretch.zoo.regnet import regnet_x_1_6gf
from nnstretch.zoo.resnet import resnet18, resnet34, resnet50
from nnstretch.zoo.squeezenet import squeezenet1_0, squeezenet1_1
from nnstretch.zoo.vgg import vgg16


class Builder(Protocol):
    """Makes a network whose weights are still to be filled."""

    def __call__(self, num_classes: int, in_channels: int, small_images: bool) -> Chain:
        """The network for ``N x in_channels x H x W`` images, on torch's default device."""


@dataclass(frozen=True)
class ZooEntry:
    """One network of the zoo.

    ``input_size`` is the side in pixels of the square images it was published for; ``macs`` (convolutions
    and dense layers, one image) and ``parameters`` are exact for that size, three channels and 1000 classes.
    """

    name: str
    build: Builder
    input_size: int
    family: str
    macs: int
    parameters: int
    paper: str


_RESNET = "He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385"
_SQUEEZENET = "Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters, arXiv:1602.07360"

_ENTRIES = (
    ZooEntry("resnet18", resnet18, 224, "resnet", 1_814_073_344, 11_689_512, _RESNET),
    ZooEntry("resnet34", resnet34, 224, "resnet", 3_663_761_408, 21_797_672, _RESNET),
    ZooEntry("resnet50", resnet50, 224, "resnet", 4_089_184_256, 25_557_032, _RESNET),
    ZooEntry(
        "vgg16",
        vgg16,
        224,
        "vgg",
        15_470_264_320,
        138_357_544,
        "Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv:1409.1556",
    ),
    ZooEntry(
        "mobilenetv2",
        mobilenetv2,
        224,
        "mobilenet",
        300_774_272,
        3_504_872,
        "Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, arXiv:1801.04381",
    ),
    ZooEntry(
        "regnet_x_1_6gf",
        regnet_x_1_6gf,
        224,
        "regnet",
        1_602_849_792,
        9_190_136,
        "Radosavovic et al., Designing Network Design Spaces, arXiv:2003.13678",
    ),
    ZooEntry(
        "efficientnet_lite4",
        efficientnet_lite4,
        300,
        "efficientnet",
        2_553_034_336,
        13_006_568,
        "Tan, Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, arXiv:1905.11946",
    ),
    ZooEntry("squeezenet1_0", squeezenet1_0, 224, "squeezenet", 818_924_576, 1_248_424, _SQUEEZENET),
    ZooEntry("squeezenet1_1", squeezenet1_1, 224, "squeezenet", 349_151_936, 1_235_496, _SQUEEZENET),
    ZooEntry(
        "densenet121",
        densenet121,
        224,
        "densenet",
        2_834_161_664,
        7_978_856,
        "Huang et al., Densely Connected Convolutional Networks, arXiv:1608.06993",
    ),
    ZooEntry(
        "googlenet",
        googlenet,
        224,
        "googlenet",
        1_498_376_192,
        6_624_904,
        "Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842",
    ),
)
_BY_NAME = {zoo_entry.name: zoo_entry for zoo_entry in _ENTRIES}
# What a paper calls its network without a version.
_ALIASES = {"squeezenet": "squeezenet1_0"}

# The networks of NeoCPU's table 2, in its order.
_NEOCPU = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("vgg11", "vgg13", "vgg16", "vgg19"),
    *("densenet121", "densenet161", "densenet169", "densenet201"),
    "inception_v3",
    "ssd_resnet50",
)
# Networks whose convolutions are mostly pointwise, grouped or depthwise.
_MOBILE = (
    *("mobilenetv2", "mobilenetv3_small", "mobilenetv3_large"),
    *("squeezenet1_1", "googlenet"),
    *("efficientnet_lite4", "efficientnet_b5"),
    *("regnet_x_1_6gf", "regnet_x_4gf", "resnetxy"),
)
SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"neocpu": _NEOCPU, "mobile": _MOBILE, "all": (*_NEOCPU, *_MOBILE)}
)
"""Names of the networks that are benchmarked together, by the suite's name."""


def names() -> tuple[str, ...]:
    """The names of all networks, in the order in which the command line lists them; aliases are left out."""
    return tuple(_BY_NAME)


def entry(name: str) -> ZooEntry:
    """The entry called ``name`` (``squeezenet`` is ``squeezenet1_0``).

    Raises :class:`~nnstretch.errors.ModelError`, which lists the nearest names, if there is none.
    """
    found = _BY_NAME.get(_ALIASES.get(name, name))
    if found is None:
        near = difflib.get_close_matches(name.lower(), [*_BY_NAME, *_ALIASES], n=3)
        raise ModelError(
            f"no zoo network is called {name!r}; "
            + (f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_BY_NAME)}")
        )
    return found


def build(
    name: str,
    num_classes: int = 1000,
    small_images: bool = False,
    pretrained_seed: int | None = 0,
    in_channels: int = 3,
) -> Chain:
    """The network called ``name`` in evaluation mode: ``N x in_channels x H x W`` to ``N x num_classes``.

    ``small_images`` is for images of about 64 x 64: a stem that shrinks the image four times (ResNet,
    DenseNet, GoogLeNet, SqueezeNet) becomes a 3x3 convolution of stride 2 without a max pool, and VGG's dense
    layers read pooled features; the other networks stay as they are. ``pretrained_seed`` fills the weights as
    if trained, ``None`` as a training starts (:func:`nnstretch.zoo.weights.initialise`).

    Raises :class:`~nnstretch.errors.ModelError` for an unknown name or a count below 1.
    """
    for what, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if count < 1:
            raise ModelError(f"{what} of a zoo network is {count}; give 1 or more")
    builder = entry(name).build
    # Made without storage first: torch's own initialisation would cost time and disturb its global generator.
    with torch.device("meta"):
        network = builder(num_classes=num_classes, in_channels=in_channels, small_images=small_images)
    network.to_empty(device="cpu").eval()
    weights.initialise(network, in_channels, pretrained_seed)
    return network


def example_input(name: str, batch: int = 1, in_channels: int = 3, seed: int = 0) -> Tensor:
    """``batch`` images of normal noise, float32 ``NCHW``, of the size that the network was published for."""
    size = entry(name).input_size
    return torch.randn((batch, in_channels, size, size), generator=torch.Generator().manual_seed(seed))
