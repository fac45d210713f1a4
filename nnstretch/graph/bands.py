"""Bands: neighbouring rows of an image, which layers that look at few neighbours compute without the other rows.

A band is cut from the tensor that enters a section of layers, with more rows than are wanted from the last one: its halo. Every
layer pads the band at the cut as it pads the image at its border, so that rows near the cut are wrong, a few more after each
layer. These lie in the halo, which is cut off behind the last layer. Layers differ from those of the whole image in nothing but
the number of rows, and the wanted rows are exactly theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from nnstretch.graph.layer import Layer, TensorType

ROWS = 2
"""Axis of the rows of an image, N,C,H,W."""
LEAST_ROWS = 4
"""Least rows of a band behind a section of layers that are worth a part of their own."""


@dataclass(frozen=True)
class Band:
    """Rows of a tensor from `begin` up to `end`. Those from `right_begin` up to `right_end` are what the whole image gives."""

    begin: int
    end: int
    right_begin: int
    right_end: int

    @property
    def rows(self) -> int:
        """Number of rows, wrong ones included."""
        return self.end - self.begin

    def holds(self, begin: int, end: int) -> bool:
        """Whether rows `begin` up to `end` are right."""
        return self.right_begin <= begin and end <= self.right_end


def cut_band(begin: int, end: int) -> Band:
    """The band as it is cut from a tensor: all of its rows are right."""
    return Band(begin, end, begin, end)


def rows_of(tensor: TensorType) -> int:
    """Number of rows of an image; 0 if the tensor is none."""
    return tensor.shape[ROWS] if len(tensor.shape) == 4 else 0


def with_rows(tensor: TensorType, rows: int) -> TensorType:
    """The type of some rows of an image."""
    return replace(tensor, shape=(*tensor.shape[:ROWS], rows, *tensor.shape[ROWS + 1 :]))


def band_after(layer: Layer, bands: Sequence[Band]) -> Band | None:
    """The band that a layer makes of bands.

    Args:
        layer: of the whole image.
        bands: of its run-time inputs, in their order.

    Returns:
        None if the layer cannot be computed in bands at all, or not of these: it looks at all rows, its inputs hold different
        ones, or its step does not fit to the row where they begin.
    """
    images = (*(layer.type_of(i) for i in layer.activations), *layer.outputs)
    if len(layer.outputs) != 1 or not bands or not all(map(rows_of, images)):
        return None
    found = _after_window(layer, bands) if layer.op in _WINDOWS else _after(layer, bands)
    return None if found is None or found.right_begin >= found.right_end else found


def can_be_in_bands(layer: Layer) -> bool:
    """Whether a layer looks at few neighbours of each row, so that it can be computed in bands."""
    images = [layer.type_of(row) for row in layer.activations]
    return band_after(layer, [cut_band(0, rows_of(image)) for image in images]) is not None


def halo_share(layer: Layer) -> float:
    """The share of a layer's input rows on which the rows on both sides of a cut depend."""
    rows = rows_of(layer.outputs[0])
    upper, lower = rows_before(layer, 0, rows // 2), rows_before(layer, rows // 2, rows)
    return max(0, upper[1] - lower[0]) / rows_of(layer.type_of(layer.activations[0]))


def rows_before(layer: Layer, begin: int, end: int) -> tuple[int, int]:
    """The rows of its inputs that a layer needs for rows `begin` up to `end` of its output, if `band_after` can compute it."""
    before = rows_of(layer.type_of(layer.activations[0]))
    if layer.op in _WINDOWS:
        extent, step, top, _ = _window(layer)
        begin, end = begin * step - top, (end - 1) * step - top + extent
    elif layer.op in ("Resize", "DepthToSpace"):
        factor, reach = rows_of(layer.outputs[0]) // before, _REACH.get(str(layer.attributes.get("mode")), 0)
        begin, end = begin // factor - reach, -(-end // factor) + reach
    return max(0, begin), min(before, end)


def layer_in_band(name: str, layer: Layer, bands: Sequence[Band], made: Band) -> Layer:
    """The layer `name` that computes the band `made` of bands of another one's run-time inputs. Weights are not copied."""
    inputs = list(layer.inputs)
    for row, band in zip(layer.activations, bands, strict=True):
        inputs[row] = with_rows(layer.type_of(row), band.rows)
    outputs = (with_rows(layer.outputs[0], made.rows),)
    return replace(layer, name=name, inputs=tuple(inputs), outputs=outputs)


def band_name(name: str, number: int, band: Band) -> str:
    """Name of the part of a layer or tensor that makes or holds a band. Numbers tell bands of the same rows apart."""
    return f"{name}[band {number}, rows {band.begin}:{band.end}]"


def cut_layer(name: str, tensor: TensorType, begin: int, end: int) -> Layer:
    """The layer that copies rows `begin` up to `end` of an image."""
    starts = (0, 0, begin, 0)
    return Layer(name, "Slice", (tensor,), (with_rows(tensor, end - begin),), {"starts": starts, "steps": (1, 1, 1, 1)})


def join_layer(name: str, bands: Sequence[TensorType]) -> Layer:
    """The layer that joins bands to an image."""
    whole = with_rows(bands[0], sum(map(rows_of, bands)))
    return Layer(name, "Concat", tuple(bands), (whole,), {"axis": ROWS})


def shares_of_rows(rows: int, seconds: Mapping[int, float]) -> dict[int, int] | None:
    """Rows of each processor's band with which all end at the same time, as nearly as whole rows allow.

    Args:
        rows: of the last tensor.
        seconds: of the whole section by processor, each above 0.

    Returns:
        By processor, ascending, from the top of the image; None if one has too few.
    """
    total = sum(1 / s for s in seconds.values())
    found: dict[int, int] = {}
    done = reached = 0.0
    for processor in sorted(seconds):
        done += 1 / seconds[processor] / total
        end = round(rows * done)
        found[processor] = int(end - reached)
        reached = end
    return found if len(found) > 1 and min(found.values()) >= LEAST_ROWS else None


# -- layers ------------------------------------------------------------------------------------------------------------


def _together(bands: Sequence[Band]) -> Band | None:
    """Bands of the same rows as one, which is right where all are; None if they are of other rows."""
    if len({(band.begin, band.end) for band in bands}) > 1:
        return None
    return replace(
        bands[0],
        right_begin=max(band.right_begin for band in bands),
        right_end=min(band.right_end for band in bands),
    )


def _after(layer: Layer, bands: Sequence[Band]) -> Band | None:
    """The band behind a layer without a window."""
    band = _together(bands)
    if band is None:
        return None
    if layer.op == "Resize":
        return _after_resize(layer, band)
    if layer.op == "DepthToSpace":
        return _scaled(band, layer.integer("size"))
    return band if _IS_BY_ROWS.get(layer.op, _never)(layer) else None


_WINDOWS = ("Conv", "MaxPool", "AveragePool")
"""Operators that move a window over the image."""


def _window(layer: Layer) -> tuple[int, int, int, int]:
    """Along the rows: the extent of a layer's window, its step, and the pads above and below the image."""
    size = layer.type_of(1).shape[ROWS] if layer.op == "Conv" else layer.ints("kernel")[0]
    dilation = layer.ints("dilations")[0] if "dilations" in layer.attributes else 1
    pads = layer.ints("pads")
    return (size - 1) * dilation + 1, layer.ints("strides")[0], pads[0], pads[2]


def _after_window(layer: Layer, bands: Sequence[Band]) -> Band | None:
    """The band behind a layer that moves a window over the image, and may add others to what it makes."""
    band, *added = bands
    before, after = rows_of(layer.type_of(0)), rows_of(layer.outputs[0])
    extent, step, top, bottom = _window(layer)

    def places(rows: int) -> int:
        return (rows + top + bottom - extent) // step + 1

    if places(before) != after or band.begin % step or places(band.rows) < 1:
        return None
    begin = band.begin // step
    end = begin + places(band.rows)
    first = 0 if band.right_begin == 0 else -(-(band.right_begin + top) // step)
    last = after if band.right_end == before else (band.right_end - extent + top) // step + 1
    return _together([Band(begin, end, max(first, begin), min(last, end)), *added])


_REACH: Mapping[str, int] = MappingProxyType({"nearest": 1, "linear": 1, "cubic": 2})
"""Mode of Resize -> how many rows a row may look at beside its own."""


def _after_resize(layer: Layer, band: Band) -> Band | None:
    """The band behind an enlargement by a whole number, where rows of a band lie as those of the image."""
    before, after = rows_of(layer.type_of(0)), rows_of(layer.outputs[0])
    reach, scales = _REACH.get(str(layer.attributes["mode"])), layer.attributes["scales"]
    assert isinstance(scales, tuple)
    is_local = layer.attributes["coordinates"] in ("half_pixel", "asymmetric") and reach is not None
    if not is_local or scales[0] * before != after or after % before:
        return None
    assert reach is not None
    kept = replace(
        band,
        right_begin=band.right_begin and band.right_begin + reach,
        right_end=band.right_end - (0 if band.right_end == before else reach),
    )
    return _scaled(kept, after // before)


def _scaled(band: Band, factor: int) -> Band:
    return Band(band.begin * factor, band.end * factor, band.right_begin * factor, band.right_end * factor)


def _never(_: Layer) -> bool:
    return False


def _always(_: Layer) -> bool:
    return True


def _has_no_constant_rows(layer: Layer) -> bool:
    """Whether constants have one row for all."""
    return all(array.ndim < 2 or array.shape[-2] == 1 for array in layer.constants.values())


def _is_along_channels(layer: Layer) -> bool:
    return layer.integer("axis") == 1


def _keeps_rows(layer: Layer) -> bool:
    """Whether a slice takes all rows."""
    whole = rows_of(layer.type_of(0)) == rows_of(layer.outputs[0])
    return whole and not layer.ints("starts")[ROWS] and layer.ints("steps")[ROWS] == 1


_IS_BY_ROWS: Mapping[str, Callable[[Layer], bool]] = MappingProxyType(
    {
        **dict.fromkeys(("Activation", "Affine", "PRelu", "Cast", "Quantize", "Dequantize"), _always),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), _has_no_constant_rows),
        **dict.fromkeys(("Softmax", "LayerNorm"), _is_along_channels),
        "Concat": lambda layer: _is_along_channels(layer) and not layer.constants,
        "Slice": _keeps_rows,
    }
)
"""Operator whose rows depend on the same rows of its inputs -> whether that is so of a layer."""
