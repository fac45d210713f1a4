"""Files with well-known endings that are given as models and are none: what they are, and what to give instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_IMAGE = "is an image; name a model, and the image for it, as in nnstretch run MODEL --image {path}"
_ARRAYS = "holds arrays; name a model, and give them to its inputs, as in nnstretch run MODEL --input NAME={path}"
_WEIGHTS = "has weights; give the model that they belong to, and these by --weights"
_TORCH = (
    "is a file of torch, which has no code for its network; write a function that makes the network, loads this file and "
    "returns it, and give that as FILE.py:FACTORY, or write an ONNX file by torch.onnx.export"
)
_TENSORFLOW = (
    "is taken for a file of TensorFlow; write a TFLite file from it by tf.lite.TFLiteConverter, or an ONNX file by "
    "tf2onnx"
)
_CONVERTED = (
    "is a model for {engine}, which nothing converts back; give the ONNX or TFLite file that it was made from, or its torch "
    "code as FILE.py:FACTORY"
)
_STANDALONE = "is a standalone model; run the executable beside it, or give the model that it was made from"
_ENGINES: Mapping[str, tuple[str, ...]] = {
    "TensorRT": ("engine", "plan", "trt"),
    "Core ML": ("mlmodel", "mlpackage"),
    "OpenVINO": ("xml",),
    "ncnn": ("param",),
    "MNN": ("mnn",),
    "ExecuTorch": ("pte",),
}
_TEXTS: Mapping[str, str] = {
    **dict.fromkeys(("bmp", "gif", "jpeg", "jpg", "png", "tif", "tiff", "webp"), _IMAGE),
    **dict.fromkeys(("npy", "npz"), _ARRAYS),
    "safetensors": _WEIGHTS,
    "nnm": _STANDALONE,
    **dict.fromkeys(("ckpt", "pt", "pt2", "pth"), _TORCH),
    **dict.fromkeys(("h5", "hdf5", "keras", "pb"), _TENSORFLOW),
    **{ending: _CONVERTED.replace("{engine}", name) for name, endings in _ENGINES.items() for ending in endings},
}
"""What is said after the path of a file with this ending."""


def is_image(path: Path) -> bool:
    """Whether a file has the ending of an image."""
    return _text_of(path) == _IMAGE


def _text_of(path: Path) -> str:
    return _TEXTS.get(path.suffix.lower().removeprefix("."), "")


def in_place_of_folder(path: Path) -> str:
    """What to give instead of a folder that is no model; some formats of others are folders."""
    return instead_of(path) or f"{path} is a folder; give an ONNX file, a package, a zoo name or FILE.py:FACTORY"


def instead_of(path: Path) -> str:
    """What a file that could not be read as a model is, by its ending, and what to give instead.

    Args:
        path: the file or folder.

    Returns:
        A sentence that begins with the path; "" for other endings.
    """
    text = _text_of(path)
    return text and f"{path} {text.replace('{path}', str(path))}"
