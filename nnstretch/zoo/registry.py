"""Registry of the zoo's networks. Loading it does not load torch, so that networks can be listed without."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnstretch.errors import ModelError
from nnstretch.support.foreign_files import in_place_of_folder

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ZooEntry:
    """One network of the zoo.

    Attributes:
        name: in the registry, and of the function that constructs it.
        module: of this package, with that function.
        input_size: side in pixels of the square images it was published for.
        family: name of its family.
        macs: of convolutions and dense layers for one image of that size, with three channels and
            ``classes``; exact.
        parameters: learnable scalars for ``classes``; exact.
        paper: where it was published.
        classes: of the published network.
        calibration_size: side of the images that scale untrained weights.
    """

    name: str
    module: str
    input_size: int
    family: str
    macs: int
    parameters: int
    paper: str
    classes: int = 1000
    calibration_size: int = 64

    def build(self, num_classes: int, in_channels: int, small_images: bool) -> nn.Module:
        """The network for ``N x in_channels x H x W`` images, with uninitialised weights, on torch's default device."""
        builder = getattr(import_module(f"nnstretch.zoo.{self.module}"), self.name)
        network: nn.Module = builder(num_classes=num_classes, in_channels=in_channels, small_images=small_images)
        return network


_MOST_CHANNELS = 1 << 20
"""Most classes and channels of images."""

_RESNET = "He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385"
_VGG = "Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv:1409.1556"
_MOBILENETV2 = "Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, arXiv:1801.04381"
_MOBILENETV3 = "Howard et al., Searching for MobileNetV3, arXiv:1905.02244"
_REGNET = "Radosavovic et al., Designing Network Design Spaces, arXiv:2003.13678"
_EFFICIENTNET = "Tan, Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, arXiv:1905.11946"
_SQUEEZENET = "Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters, arXiv:1602.07360"
_DENSENET = "Huang et al., Densely Connected Convolutional Networks, arXiv:1608.06993"
_GOOGLENET = "Szegedy et al., Going Deeper with Convolutions, arXiv:1409.4842"
_INCEPTION = "Szegedy et al., Rethinking the Inception Architecture for Computer Vision, arXiv:1512.00567"
_SSD = "Liu et al., SSD: Single Shot MultiBox Detector, arXiv:1512.02325"
_RESNETXY = "ACLTuner: A Profiling-Driven Fast Tuning to Optimized Deep Learning Inference, table 5"

_ENTRIES = (
    ZooEntry("resnet18", "resnet", 224, "resnet", 1_814_073_344, 11_689_512, _RESNET),
    ZooEntry("resnet34", "resnet", 224, "resnet", 3_663_761_408, 21_797_672, _RESNET),
    ZooEntry("resnet50", "resnet", 224, "resnet", 4_089_184_256, 25_557_032, _RESNET),
    ZooEntry("resnet101", "resnet", 224, "resnet", 7_801_405_440, 44_549_160, _RESNET),
    ZooEntry("resnet152", "resnet", 224, "resnet", 11_513_626_624, 60_192_808, _RESNET),
    ZooEntry("vgg11", "plain", 224, "vgg", 7_609_090_048, 132_863_336, _VGG),
    ZooEntry("vgg13", "plain", 224, "vgg", 11_308_466_176, 133_047_848, _VGG),
    ZooEntry("vgg16", "plain", 224, "vgg", 15_470_264_320, 138_357_544, _VGG),
    ZooEntry("vgg19", "plain", 224, "vgg", 19_632_062_464, 143_667_240, _VGG),
    ZooEntry("densenet121", "densenet", 224, "densenet", 2_834_161_664, 7_978_856, _DENSENET),
    ZooEntry("densenet161", "densenet", 224, "densenet", 7_727_907_072, 28_681_000, _DENSENET),
    ZooEntry("densenet169", "densenet", 224, "densenet", 3_359_843_328, 14_149_480, _DENSENET),
    ZooEntry("densenet201", "densenet", 224, "densenet", 4_291_365_888, 20_013_928, _DENSENET),
    ZooEntry("inception_v3", "inception", 299, "inception", 5_713_216_096, 23_834_568, _INCEPTION, 1000, 192),
    ZooEntry("ssd_resnet50", "ssd", 512, "ssd", 23_540_421_632, 36_450_094, _SSD, 20, 256),
    ZooEntry("mobilenetv2", "mobilenet", 224, "mobilenet", 300_774_272, 3_504_872, _MOBILENETV2),
    ZooEntry("mobilenetv3_small", "mobilenet", 224, "mobilenet", 56_510_400, 2_542_856, _MOBILENETV3, 1000, 128),
    ZooEntry("mobilenetv3_large", "mobilenet", 224, "mobilenet", 216_589_760, 5_483_032, _MOBILENETV3, 1000, 128),
    ZooEntry("squeezenet1_0", "plain", 224, "squeezenet", 818_924_576, 1_248_424, _SQUEEZENET),
    ZooEntry("squeezenet1_1", "plain", 224, "squeezenet", 349_151_936, 1_235_496, _SQUEEZENET),
    ZooEntry("googlenet", "inception", 224, "googlenet", 1_498_376_192, 6_624_904, _GOOGLENET),
    ZooEntry("efficientnet_lite4", "mobilenet", 300, "efficientnet", 2_553_034_336, 13_006_568, _EFFICIENTNET),
    ZooEntry("efficientnet_b5", "mobilenet", 456, "efficientnet", 10_266_384_752, 30_389_784, _EFFICIENTNET, 1000, 192),
    ZooEntry("regnet_x_1_6gf", "resnet", 224, "regnet", 1_602_849_792, 9_190_136, _REGNET),
    ZooEntry("regnet_x_4gf", "resnet", 224, "regnet", 3_964_498_816, 22_118_248, _REGNET),
    ZooEntry("resnetxy", "resnet", 224, "resnet", 16_330_300_518, 87_604_516, _RESNETXY, 1000, 128),
)
_BY_NAME = {zoo_entry.name: zoo_entry for zoo_entry in _ENTRIES}
# Names without version, as in papers, and names in other collections.
_ALIASES = {
    "squeezenet": "squeezenet1_0",
    "inceptionv3": "inception_v3",
    "ssd512_resnet50": "ssd_resnet50",
    "ssd_512_resnet50": "ssd_resnet50",
    "mobilenet_v2": "mobilenetv2",
    "mobilenet_v3_small": "mobilenetv3_small",
    "mobilenet_v3_large": "mobilenetv3_large",
    "efficientnetlite4": "efficientnet_lite4",
    "regnet_x_4_0gf": "regnet_x_4gf",
}

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
"""Names of the networks that are benchmarked together, by suite."""


def names() -> tuple[str, ...]:
    """Names of all networks in the order of the command line, without aliases."""
    return tuple(_BY_NAME)


_LIBRARIES = {
    "timm": "timm.create_model({model!r}, pretrained=True)",
    "torchvision": "torchvision.models.get_model({model!r}, weights='DEFAULT')",
}
"""How networks of other libraries are made, which their users name as LIBRARY:MODEL."""


def entry(name: str) -> ZooEntry:
    """The entry with this name or alias (``squeezenet`` is ``squeezenet1_0``).

    Raises:
        ModelError: there is none; the message lists similar names.
    """
    found = _BY_NAME.get(_ALIASES.get(name, name))
    if found is None:
        if name and Path(name).is_dir():
            raise ModelError(in_place_of_folder(Path(name)))
        library, _, model = name.partition(":")
        if library in _LIBRARIES and model:
            raise ModelError(
                f"networks of {library} come from a function of yours: write one that returns "
                f"{_LIBRARIES[library].format(model=model)}, and give it as FILE.py:FUNCTION"
            )
        if model and Path(f"{library}.py").is_file():
            raise ModelError(
                f"no zoo network is called {name!r}; for a function in {library}.py, write {library}.py:{model}"
            )
        near = difflib.get_close_matches(name.lower(), [*_BY_NAME, *_ALIASES], n=3)
        if near:
            raise ModelError(f"no zoo network is called {name!r}; did you mean {' or '.join(near)}?")
        raise ModelError(f"there is neither a file nor a zoo network called {name!r}; nnstretch zoo lists the networks")
    return found


def build(
    name: str,
    num_classes: int | None = None,
    small_images: bool = False,
    pretrained_seed: int | None = 0,
    in_channels: int = 3,
) -> nn.Module:
    """The network with this name in evaluation mode, for ``N x in_channels x H x W`` images.

    Classifiers (:class:`~nnstretch.zoo.blocks.Chain`) return ``N x num_classes`` logits; detectors return what
    :class:`~nnstretch.zoo.ssd.Detector` documents.

    Args:
        name: name or alias.
        num_classes: that of the published network by default.
        small_images: adapt the network to images of about 64 x 64. Stems that downsample by four or more
            (ResNet, DenseNet, GoogLeNet, SqueezeNet, Inception) become stride-2 stems without max pool, VGG's
            dense layers read pooled features, and SSD's anchors fit such images; other networks do not
            change.
        pretrained_seed: seed of weights that behave like trained ones; None: fresh weights
            (:func:`nnstretch.zoo.weights.initialise`).
        in_channels: channels of the images.

    Raises:
        ModelError: the name is unknown, or a count or the seed is no number in range.
    """
    found = entry(name)
    if num_classes is None:
        num_classes = found.classes
    for what, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if not isinstance(count, Integral) or not 1 <= count <= _MOST_CHANNELS:
            raise ModelError(f"{what} of a zoo network is {count}; give 1 or more, up to {_MOST_CHANNELS}")
    if pretrained_seed is not None and (
        not isinstance(pretrained_seed, Integral) or not -(2**63) <= pretrained_seed < 2**64
    ):
        raise ModelError(f"the seed of a zoo network is {pretrained_seed!r}; give a whole number of at most 64 bits")
    import torch

    from nnstretch.zoo import weights
    from nnstretch.zoo.ssd import Detector

    # Built on the meta device: torch's own initialisation would cost time and advance its global generator.
    with torch.device("meta"):
        network = found.build(num_classes=num_classes, in_channels=in_channels, small_images=small_images)
    network.to_empty(device="cpu").eval()
    # A detector's anchors depend on the image size, its weights do not.
    weighty = network.predictor if isinstance(network, Detector) else network
    size = 64 if small_images else found.calibration_size
    weights.initialise(weighty, in_channels, pretrained_seed, calibration_size=size)
    return network


def example_input(name: str, batch: int = 1, in_channels: int = 3, seed: int = 0) -> Tensor:
    """``batch`` images of normal noise, float32 ``N,C,H,W``, of the size that the network was published for."""
    import torch

    size = entry(name).input_size
    return torch.randn((batch, in_channels, size, size), generator=torch.Generator().manual_seed(seed))
