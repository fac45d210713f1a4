"""Writes the ONNX files of models as timm, torchvision and ultralytics export them, with seeded random weights and statistics.

    .venv/bin/python scripts/studies/model_files.py -o models [NAME…]

A NAME is one of this script's, or `timm:` and any name that timm knows, with images of the size that timm states. Weights that
a library starts with the same number, such as zeros of a head, are random, too, so that no part of a network computes nothing.
A file that exists is kept. A model that cannot be made is named with the reason, and the others are written. The libraries are
no dependencies of nnstretch: timm and torchvision come with the extra `train`; ultralytics, which is licensed under AGPL-3.0,
is installed by who wants its models, in a virtual environment of their own. `scripts/studies/model_benchmark.py` measures the
files.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from nnstretch.cli.console import exit_status
from nnstretch.errors import FileError, ModelError, NNStretchError, UsageError, first_line
from nnstretch.frontends.silence import quiet
from nnstretch.support.settings import atomic_write
from nnstretch.training.libraries import library

FAILED = 1
"""Exit status if a model was not written."""
OPSET = 17
_TIMM = (
    "convnext_tiny", "mobilevit_s", "fastvit_t8", "efficientformerv2_s0", "vit_tiny_patch16_224",
    "mobilenetv4_conv_small", "efficientnet_b0", "tf_efficientnetv2_b0", "regnety_016", "resnext50_32x4d", "xception41",
    "hrnet_w18_small", "ese_vovnet19b_dw", "seresnet50", "swin_tiny_patch4_window7_224", "maxvit_tiny_tf_224",
    "edgenext_xx_small",
)  # fmt: skip
_OF_TIMM = "timm:"
_YOLO = ("yolov8n", "yolo11n", "yolo26n")
_INSTALLED_BY = MappingProxyType(
    {
        "timm": "pip install 'nnstretch[train]'",
        "torchvision": "pip install 'nnstretch[train]'",
        "ultralytics": "pip install 'nnstretch[train]' ultralytics (AGPL-3.0)",
    }
)


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Attributes:
        network: makes the network; the caller has seeded torch.
        size: side of the square image, in pixels; None: that of the network's `default_cfg`.
        export: writes the network to a file; may raise whatever the library raises.
    """

    network: Callable[[], nn.Module]
    size: int | None = 224
    export: Callable[[nn.Module, int, Path], None] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files; returns the exit status."""
    recipes = all_recipes()
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    named = f"timm:NAME, or one of these, which are the default: {', '.join(recipes)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=named)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder of the files")
    parser.add_argument("--dynamo", action="store_true", help="use torch's newer exporter")
    given = parser.parse_args(arguments)
    return exit_status(lambda: write_all(given, recipes))


def all_recipes() -> Mapping[str, Recipe]:
    """Every model by name."""
    return {
        **{name: Recipe(partial(timm_network, name)) for name in _TIMM},
        "deeplabv3_mobilenet_v3_large": Recipe(segmentation_network),
        **{name: Recipe(partial(ultralytics_network, name), 640, export_by_ultralytics) for name in _YOLO},
        "unet": Recipe(UNet),
        "superres": Recipe(SuperResolution, 128),
    }


def write_all(given: Namespace, recipes: Mapping[str, Recipe]) -> int:
    """Writes every file that is wanted and missing; returns the exit status.

    Raises:
        UsageError: an unknown name.
        FileError: the folder cannot be made.
    """
    wanted = {name.removeprefix(_OF_TIMM): recipe_of(name, recipes) for name in given.names or recipes}
    make_folder(given.output)
    failed = 0
    for name, recipe in wanted.items():
        path = given.output / f"{name}.onnx"
        chosen = replace(recipe, export=export_by_dynamo) if given.dynamo and recipe.export is None else recipe
        try:
            made = "kept" if path.exists() else f"{write(chosen, path) / 1e6:.1f} MB"
        except NNStretchError as error:
            failed, made = FAILED, f"failed: {error}"
        print(f"{path}: {made}", file=sys.stderr if made.startswith("failed") else sys.stdout, flush=True)
    return failed


def recipe_of(name: str, recipes: Mapping[str, Recipe]) -> Recipe:
    """How a model is made.

    Raises:
        UsageError: an unknown name.
    """
    if name.startswith(_OF_TIMM):
        return Recipe(partial(timm_network, name.removeprefix(_OF_TIMM)), size=None)
    if name not in recipes:
        raise UsageError(f"unknown model {name!r}; there are {', '.join(recipes)}, and {_OF_TIMM}NAME")
    return recipes[name]


def write(recipe: Recipe, path: Path) -> int:
    """Writes a model's file, whole or not at all; returns its bytes.

    Raises:
        ModelError: the model cannot be made or exported, or its library is not installed.
        FileError: the file cannot be written.
    """
    export = recipe.export or export_by_torch
    with tempfile.TemporaryDirectory(prefix="nnstretch-models-") as folder:
        made = Path(folder) / path.name
        try:
            with quiet():
                torch.manual_seed(0)
                network = seeded(recipe.network())
                export(network, recipe.size or image_size(network), made)
        except ModuleNotFoundError as error:
            raise ModelError(not_installed(error)) from error
        except Exception as error:  # libraries and exporters raise what they like
            raise ModelError(f"{type(error).__name__}: {first_line(error)}") from error
        data = made.read_bytes()
    with atomic_write(path) as file:
        file.write(data)
    return len(data)


def not_installed(error: ModuleNotFoundError) -> str:
    """What is missing, and how a user gets it."""
    missing = error.name or str(error)
    how = _INSTALLED_BY.get(missing.partition(".")[0], f"install {missing}")
    return f"{missing} is not installed; in a virtual environment of your own: {how}"


def seeded(network: nn.Module) -> nn.Module:
    """The network with running statistics as a trained one may have, and without weights that are all the same."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if not name.endswith("bias") and weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                weight.uniform_(0.5, 1) if weight.dim() == 1 else weight.normal_(0, 0.02)
    return network


def image_size(network: nn.Module) -> int:
    """The side of a network's images, as timm states it."""
    return int(network.default_cfg["input_size"][-1])  # type: ignore[index]


def export_by_torch(network: nn.Module, size: int, path: Path) -> None:
    """Writes the file as torch's TorchScript exporter does, with one input `x` of shape (1, 3, size, size)."""
    image = torch.zeros(1, 3, size, size)
    torch.onnx.export(network.eval(), (image,), str(path), opset_version=OPSET, dynamo=False, input_names=["x"])


def export_by_dynamo(network: nn.Module, size: int, path: Path) -> None:
    """Writes the same as torch's newer exporter does, with an opset of its choice."""
    torch.onnx.export(network.eval(), (torch.zeros(1, 3, size, size),), str(path), dynamo=True, external_data=False)


def export_by_ultralytics(network: nn.Module, size: int, path: Path) -> None:
    """Writes the file as users of ultralytics get it; the library writes into the current folder."""
    with chdir(path.parent):
        written = network.export(format="onnx", opset=OPSET, imgsz=size, simplify=False)  # type: ignore[operator]
    Path(path.parent / written).replace(path)


def timm_network(name: str) -> nn.Module:
    """A network of timm for export."""
    made: nn.Module = library("timm").create_model(name, pretrained=False, exportable=True)
    return made


def ultralytics_network(name: str) -> nn.Module:
    """A detector of ultralytics, which neither asks its server nor installs packages."""
    os.environ.update(YOLO_OFFLINE="1", YOLO_AUTOINSTALL="false", YOLO_VERBOSE="false")
    library("torchvision")  # ultralytics imports it plainly
    made: nn.Module = library("ultralytics").YOLO(f"{name}.yaml")
    return made


def segmentation_network() -> nn.Module:
    """DeepLab of torchvision, whose only output is the map of classes."""
    models = library("torchvision.models.segmentation")
    return FirstOutput(models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None))


class FirstOutput(nn.Module):
    """The entry `out` of a network's dictionary of outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes, H, W)."""
        found: torch.Tensor = self.network(x)["out"]
        return found


class UNet(nn.Module):
    """U-Net with batch normalisation and four steps of resolution: (N, 3, H, W) -> (N, 21, H, W), sides divisible by 16."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 512)) -> None:
        super().__init__()
        pairs = [*pairwise(widths)]
        self.down = nn.ModuleList(double_convolution(a, b) for a, b in [(3, widths[0]), *pairs])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.merged = nn.ModuleList(double_convolution(b, a) for a, b in reversed(pairs))
        self.head = nn.Conv2d(widths[0], 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The map of classes."""
        kept = []
        for stage in self.down[:-1]:
            x = stage(x)
            kept.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, merged in zip(self.up, self.merged, strict=True):
            x = merged(torch.cat([kept.pop(), up(x)], 1))
        found: torch.Tensor = self.head(x)
        return found


def double_convolution(read: int, written: int) -> nn.Sequential:
    """Two 3×3 convolutions, each with batch normalisation and ReLU."""
    layers = [(nn.Conv2d(c, written, 3, padding=1, bias=False), nn.BatchNorm2d(written)) for c in (read, written)]
    return nn.Sequential(*(part for conv, norm in layers for part in (conv, norm, nn.ReLU())))


class SuperResolution(nn.Module):
    """Fourfold super-resolution, added to a bilinear enlargement: (N, 3, H, W) -> (N, 3, 4H, 4W)."""

    def __init__(self) -> None:
        super().__init__()
        body = [layer for _ in range(8) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.PReLU(32))]
        first, last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 48, 3, padding=1)
        self.layers = nn.Sequential(first, *body, last, nn.PixelShuffle(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The enlarged image."""
        found: torch.Tensor = self.layers(x)
        return found + nn.functional.interpolate(x, scale_factor=4, mode="bilinear", align_corners=False)


def make_folder(path: Path) -> None:
    """Makes a folder unless there is one.

    Raises:
        FileError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create {path}: {error.strerror}; choose another folder with -o") from error


if __name__ == "__main__":
    sys.exit(main())
