"""ncnn's two files, PATH.param (layers, as text) and PATH.bin (their weights, in order), and layers in them made int8."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ncnn
import numpy as np

if TYPE_CHECKING:
    from nnstretch.bench.engines.ncnn_int8 import Int8Layer

_MAGIC = "7767517"
_INT8_TAG = np.array(0x000D4B38, "<u4").tobytes()
"""What stands before weights in int8; before those in float32 stand as many zeros."""
_INT8_SCALES = 8
"""Parameter of layers: whether scales follow their weights."""
_MAKES_INTEGERS = 100
"""What is added to it where the result is quantised for the next layer."""
_COUNTS: Mapping[str, int] = {"Convolution": 6, "ConvolutionDepthWise": 6, "InnerProduct": 2}
"""Layers that have int8 forms -> their parameter that holds the number of weights."""
_CONVOLUTIONS = ("Convolution", "ConvolutionDepthWise")
_BIAS: Mapping[str, int] = {"Convolution": 5, "ConvolutionDepthWise": 5, "InnerProduct": 1}
_GROUPS = 7


@dataclass
class FileLayer:
    """A layer of the files.

    Attributes:
        kind, name, bottoms, tops: as the line says them: its type, and the blobs that it reads and makes.
        numbers: parameter -> its text.
        content: what the layer has in the file of weights.
    """

    kind: str
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    numbers: dict[int, str]
    content: bytes = b""

    @classmethod
    def parse(cls, line: str) -> FileLayer:
        """The layer of a line."""
        kind, name, reads, makes, *rest = line.split()
        ends = int(reads), int(reads) + int(makes)
        numbers = dict(part.split("=", 1) for part in rest[ends[1] :])
        return cls(
            kind,
            name,
            tuple(rest[: ends[0]]),
            tuple(rest[slice(*ends)]),
            {int(key): text for key, text in numbers.items()},
        )

    def number(self, key: int) -> int:
        """An integer parameter; 0, which is the default of all that are asked for, if there is none."""
        return int(self.numbers.get(key, "0"))

    def __str__(self) -> str:
        """The line."""
        parts = [self.kind, self.name, len(self.bottoms), len(self.tops), *self.bottoms, *self.tops]
        return " ".join(map(str, [*parts, *(f"{key}={text}" for key, text in self.numbers.items())]))


def read_param(path: Path) -> list[FileLayer]:
    """The layers of PATH.param."""
    _, _, *lines = Path(f"{path}.param").read_text().splitlines()
    return [FileLayer.parse(line) for line in lines if line.strip()]


def count_int8(layers: Sequence[FileLayer]) -> tuple[int, int]:
    """Number of layers that compute in int8, and of those that could by their kind."""
    able = [layer for layer in layers if layer.kind in _COUNTS]
    return sum(layer.number(_INT8_SCALES) > 0 for layer in able), len(able)


def read_layers(path: Path) -> list[FileLayer]:
    """The layers of PATH.param with what they have in PATH.bin.

    Raises:
        RuntimeError: ncnn cannot read them.
    """
    layers = read_param(path)
    reader = _Reader(Path(f"{path}.bin").read_bytes())
    for layer in layers:
        layer.content = reader.content_of(layer)
    return layers


def write_layers(path: Path, layers: Sequence[FileLayer]) -> None:
    """Writes PATH.param and PATH.bin."""
    Path(f"{path}.param").write_text(_param_text(layers))
    Path(f"{path}.bin").write_bytes(b"".join(layer.content for layer in layers))


def _param_text(layers: Sequence[FileLayer]) -> str:
    blobs = {name for layer in layers for name in (*layer.bottoms, *layer.tops)}
    return "\n".join([_MAGIC, f"{len(layers)} {len(blobs)}", *map(str, layers), ""])


class _Reader(ncnn.DataReader):  # type: ignore[misc]
    """Finds out what each layer reads of a file of weights: ncnn alone knows the forms of all."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content, self._place = content, 0

    def content_of(self, layer: FileLayer) -> bytes:
        """The bytes of the next layer."""
        net, begin = ncnn.Net(), self._place
        for name in ("use_winograd_convolution", "use_sgemm_convolution", "use_packing_layout", "use_vulkan_compute"):
            setattr(net.opt, name, False)
        source = [FileLayer("Input", "source", (), layer.bottoms, {})] if layer.bottoms else []
        if net.load_param_mem(_param_text([*source, layer])) or net.load_model(self):
            raise RuntimeError(f"ncnn cannot read the layer {layer.name} that pnnx wrote")
        return self._content[begin : self._place]

    def read(self, target: Any, size: int) -> int:
        """Copies the next `size` bytes to where `target`, a capsule, points; returns how many there were."""
        found = self._content[self._place : self._place + size]
        ctypes.memmove(_address(target, None), found, len(found))
        self._place += len(found)
        return len(found)


_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.argtypes, _address.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def make_int8(layers: Sequence[FileLayer], integers: Sequence[Int8Layer]) -> list[Int8Layer]:
    """Gives layers of the files the integers for which their weights stand, and the scales.

    A convolution whose result nothing but int8 convolutions reads makes the integers that these read, as ncnn's own tools
    have it.

    Returns:
        the int8 layers that are in no layer of the files. Without any, all are; with some, the files are of no use.
    """
    by_content = {one.stand_in.tobytes(): one for one in integers}
    found: dict[str, Int8Layer] = {}
    for layer in layers:
        if layer.kind in _COUNTS:
            one = by_content.pop(layer.content[len(_INT8_TAG) :][: 4 * layer.number(_COUNTS[layer.kind])], None)
            if one is not None:
                found[layer.name] = one
    for layer in layers:
        if layer.name in found:
            _make_int8(layer, found[layer.name], _read_scale(layer, layers, found))
    return list(by_content.values())


def _make_int8(layer: FileLayer, one: Int8Layer, result_scale: float | None) -> None:
    weights = one.weights.tobytes()
    bias = layer.content[len(_INT8_TAG) + one.stand_in.nbytes :]
    scales = one.weight_scales
    if layer.kind == "ConvolutionDepthWise":
        scales = scales.reshape(layer.number(_GROUPS), -1)[:, 0]
    after = [*scales, one.input_scale, *(() if result_scale is None else (result_scale,))]
    layer.content = b"".join(
        (
            _INT8_TAG,
            weights.ljust(-(-len(weights) // 4) * 4, b"\0"),
            bias,
            (1 / np.array(after, np.float64)).astype("<f4").tobytes(),
        )
    )
    layer.numbers[_INT8_SCALES] = str(1 if result_scale is None else 1 + _MAKES_INTEGERS)


def _read_scale(layer: FileLayer, layers: Sequence[FileLayer], found: Mapping[str, Int8Layer]) -> float | None:
    """The scale by which all readers of a convolution's result quantise it; None if they do not."""
    if layer.kind not in _CONVOLUTIONS:
        return None
    readers = list(_readers(layer, layers))
    if not readers or any(
        reader is None or reader.kind not in _CONVOLUTIONS or reader.name not in found for reader in readers
    ):
        return None
    scales = {found[reader.name].input_scale for reader in readers if reader is not None}
    return scales.pop() if len(scales) == 1 else None


def _readers(layer: FileLayer, layers: Sequence[FileLayer]) -> Iterator[FileLayer | None]:
    """The readers of a layer's results, by way of Split or not; None for a result without any: it is an output."""
    for top in layer.tops:
        reader = next((other for other in layers if top in other.bottoms), None)
        if reader is not None and reader.kind == "Split":
            yield from _readers(reader, layers)
        else:
            yield reader
