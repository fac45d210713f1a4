"""Features of a point (workload, routine, parameters, cores, cache state) for the cost model's trees.

ACLTuner (appendix F) describes a task by its shapes and a candidate by algorithm, kernel and the work of each core. Derived
features add what comparisons cannot express: multiplications of the algorithm, bytes of traffic, wasted computation at the
edges of tiles, and the balance of work over threads.

===================  =====================================================================================================
feature              meaning
===================  =====================================================================================================
batch … groups       shapes, kernel, strides, pads and dilations of a convolution or pool; for a chain, of its first layer
second_*             outputs, kernel and stride of a chain's second layer
source, target       channels per vector of a reorder's layouts
bias, residual       1 where the layer has them
activation           index of the activation's kind
log_macs             log2 of the multiply-accumulates of the layer
log_read, …          log2 of 1 + bytes of activations read, of activations written, and of weights
intensity            log2 of multiply-accumulates per byte
log_products         log2 of the algorithm's multiplications, including edges of tiles; for a pool, of the elements read
log_prepared         log2 of 1 + bytes of prepared weights (Winograd transforms them)
pixel_waste          pixels computed over output pixels, less 1; Winograd: of whole tiles
output_waste         output channels computed over the layer's, less 1
input_waste          input channels stored over the layer's, less 1
tile_pixels, …       register tile: pixels, output channels, and their product
unit_bytes           log2 of the approximate traffic of a unit of work in bytes
log_units            log2 of the units of work that threads share
cores                threads
idle                 idle share of the threads' time because units do not divide evenly
state                location of the weights: 0 in the core's own caches, 1 in the shared cache, 2 in memory
balance              sum of the cores' speed ratios over (cores times the largest); 1 if they are equal
log_passes           log2 of the passes over the output that sum over input channels
parameter NAME       value of a routine parameter
op NAME              1 for that operator
routine NAME         1 for that routine
===================  =====================================================================================================

A missing feature is NaN, which trees treat as a separate case. The fixed features come first, in the order above; those of
the last three kinds follow in alphabetical order, as far as the measurements have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.algorithms.winograd import Axis, Division
from nnstretch.devices.base.routine import REORDER, Parameters
from nnstretch.graph.activation import ActivationKind
from nnstretch.scheduler.costmodel.workload import Shape, Workload
from nnstretch.scheduler.measurement.store.rows import CACHE_STATES, CacheState

FEATURES_VERSION = 2
"""Raise it when the meaning of a feature changes: models of other versions are trained again."""

NAMES = (
    *("batch", "channels", "height", "width", "outputs", "out_height", "out_width"),
    *("kernel_height", "kernel_width", "stride", "pads", "dilation", "groups", "per_group"),
    *("second_outputs", "second_kernel", "second_stride"),
    *("source", "target", "bias", "residual", "activation"),
    *("log_macs", "log_read", "log_written", "log_weights", "intensity", "log_products", "log_prepared"),
    *("pixel_waste", "output_waste", "input_waste", "tile_pixels", "tile_outputs", "tile"),
    *("unit_bytes", "log_units", "cores", "idle", "state", "balance", "log_passes"),
)
"""Features that every candidate has, in order."""

_NAN = math.nan
_STRASSEN = 7 / 8  # share of products that one step keeps


@dataclass(frozen=True)
class Machine:
    """A processor's share of the features.

    Attributes:
        cores: threads that share the work of a layer.
        block: channels per vector of the blocked layout.
        ratios: relative speeds of the cores; empty if they are equal.
    """

    cores: int
    block: int
    ratios: tuple[int, ...] = ()

    @property
    def balance(self) -> float:
        """1 for equal cores, less for unequal ones."""
        return sum(self.ratios) / (len(self.ratios) * max(self.ratios)) if self.ratios else 1.0


@dataclass(frozen=True)
class _Tiling:
    """A routine's division of a convolution into tiles and units of work.

    Attributes:
        pixels: pixels of a register tile.
        outputs: output channels of a register tile.
        computed: computed pixels, including edges of tiles.
        products: multiplications per multiply-accumulate of the layer, without edges of tiles.
        weights: bytes of prepared weights over bytes of the layer's weights.
        units: units of work.
        passes: passes over the output.
    """

    pixels: float = _NAN
    outputs: float = _NAN
    computed: float = _NAN
    products: float = 1.0
    weights: float = 1.0
    units: float = _NAN
    passes: float = 1.0


def features(
    workload: Workload, routine: str, parameters: Parameters, machine: Machine, state: CacheState
) -> dict[str, float]:
    """The features of a point by name, in the order of the module's table.

    Args:
        workload: the workload.
        routine: descriptor of the routine, as text.
        parameters: parameters of the routine.
        machine: the processor's threads and vectors.
        state: location of the layer's weights when it starts.
    """
    head = workload.chain[0] if workload.chain else workload
    shape = _shapes(head)
    tiling = _tiling(workload, routine, parameters, machine.block)
    values = (*shape.values(), *_details(workload), *_amounts(workload, shape, tiling, machine, state))
    found = dict(zip(NAMES, map(float, values), strict=True))
    found[f"op {workload.op}"] = 1.0
    found.update((f"parameter {name}", float(value)) for name, value in sorted(parameters.items()))
    found[f"routine {routine}"] = 1.0
    return found


def columns(candidates: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """Names of all features of `candidates`, in the order of the module's table."""
    names = {name for candidate in candidates for name in candidate}
    return (*NAMES, *sorted(names - set(NAMES)))


def matrix(candidates: Sequence[Mapping[str, float]], names: Sequence[str]) -> NDArray[np.float32]:
    """float32[candidates, names]; NaN for a missing parameter, 0 for another operator or routine."""
    defaults = [_NAN if name in NAMES or name.startswith("parameter ") else 0.0 for name in names]
    rows = [[c.get(name, other) for name, other in zip(names, defaults, strict=True)] for c in candidates]
    return np.array(rows, np.float32).reshape(len(candidates), len(names))


def _planes(shape: Shape) -> tuple[float, float, float, float]:
    """Batch, channels, height and width of any shape."""
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) == 2:
        return shape[0], shape[1], 1, 1
    return 1, math.prod(shape), 1, 1


def _pair(attribute: object) -> tuple[int, int]:
    return (int(attribute[0]), int(attribute[1])) if isinstance(attribute, tuple) and len(attribute) > 1 else (1, 1)


def _shapes(workload: Workload) -> dict[str, float]:
    first = workload.inputs[0]
    batch, channels, height, width = _planes(first.shape if first else ())
    _, outputs, out_height, out_width = _planes(workload.outputs[0].shape)
    weight = workload.inputs[1] if workload.op == "Conv" and workload.has(1) else None
    kernel = weight.shape[2:4] if weight else _pair(workload.attributes.get("kernel"))
    groups = workload.attributes.get("groups", 1)
    pads = workload.attributes.get("pads", ())
    return {
        "batch": batch,
        "channels": channels,
        "height": height,
        "width": width,
        "outputs": outputs,
        "out_height": out_height,
        "out_width": out_width,
        "kernel_height": kernel[0],
        "kernel_width": kernel[1],
        "stride": _pair(workload.attributes.get("strides"))[0],
        "pads": sum(pads) if isinstance(pads, tuple) else 0,
        "dilation": _pair(workload.attributes.get("dilations"))[0],
        "groups": groups,
        "per_group": channels / groups,
    }


def _details(workload: Workload) -> tuple[float, ...]:
    """The second layer of a chain, layouts of a reorder, and what is fused into the last layer."""
    second = (_NAN, _NAN, _NAN)
    if len(workload.chain) > 1:
        shape = _shapes(workload.chain[1])
        second = shape["outputs"], shape["kernel_height"], shape["stride"]
    blocks = workload.attributes
    layouts = (float(blocks["source"]), float(blocks["target"])) if workload.op == REORDER else (_NAN, _NAN)
    last = workload.chain[-1] if workload.chain else workload
    weighted = last.op in ("Conv", "Dense")
    kinds = {kind.name.lower(): float(kind) for kind in ActivationKind}
    return *second, *layouts, weighted and last.has(2), weighted and last.has(3), kinds.get(last.activation, _NAN)


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else _NAN


def _amounts(
    workload: Workload, shape: Mapping[str, float], tiling: _Tiling, machine: Machine, state: CacheState
) -> tuple[float, ...]:
    pixels = shape["batch"] * shape["out_height"] * shape["out_width"]
    moved = workload.read_bytes + workload.written_bytes + workload.weight_bytes
    computed = tiling.computed / pixels if pixels else _NAN
    outputs = _whole(shape["outputs"], tiling.outputs) / shape["outputs"] if shape["outputs"] else _NAN
    products = (
        (workload.macs or _pooled_elements(workload, shape))
        * tiling.products
        * (computed if computed > 0 else 1.0)
        * (outputs if outputs > 0 else 1.0)
    )
    each = max(1.0, math.ceil(tiling.units / machine.cores)) * machine.cores if tiling.units > 0 else _NAN
    return (
        _log(workload.macs),
        _log(1 + workload.read_bytes),
        _log(1 + workload.written_bytes),
        _log(1 + workload.weight_bytes),
        _log(workload.macs / moved) if moved else _NAN,
        _log(products),
        _log(1 + workload.weight_bytes * tiling.weights),
        computed - 1,
        outputs - 1,
        _whole(shape["channels"], machine.block) / shape["channels"] - 1 if shape["channels"] else _NAN,
        tiling.pixels,
        tiling.outputs,
        tiling.pixels * tiling.outputs,
        _log(moved / tiling.units) if tiling.units > 0 else _NAN,
        _log(tiling.units),
        machine.cores,
        1 - tiling.units / each,
        CACHE_STATES.index(state),
        machine.balance,
        _log(tiling.passes),
    )


def _pooled_elements(workload: Workload, shape: Mapping[str, float]) -> float:
    """Number of elements that a pool reads, overlaps counted each time; 0 for other operators."""
    if workload.op == "GlobalPool":
        return shape["batch"] * shape["channels"] * shape["height"] * shape["width"]
    taps = shape["kernel_height"] * shape["kernel_width"]
    return math.prod(workload.outputs[0].shape) * taps if workload.op in ("MaxPool", "AveragePool") else 0.0


def _whole(size: float, step: float) -> float:
    """`size` rounded up to a multiple of `step`; NaN without a step."""
    return math.ceil(size / step) * step if step > 0 else _NAN


def _ceil(size: float, step: float) -> int:
    return math.ceil(size / step) if step > 0 else 1


def _tiling(workload: Workload, routine: str, parameters: Parameters, block: int) -> _Tiling:
    """The tiling by the parameters of the routine's algorithm; empty for an unknown algorithm."""
    algorithm = routine.rpartition("/")[2]
    maker = _TILINGS.get(algorithm)
    links = workload.chain or (workload,)
    if maker is None or any(link.op != "Conv" for link in links):
        return _Tiling()
    pointwise = next((link for link in links if _shapes(link)["groups"] == 1), links[0])
    return maker(_shapes(pointwise), _shapes(links[-1]), parameters, block)


def _direct_tiling(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Tiling:
    pixels = parameters.get("reg_n", parameters.get("pixels", 1))
    outputs = parameters.get("oc_bn", parameters.get("vectors", 1) * parameters.get("length", block))
    plane = shape["out_height"] * shape["out_width"]
    chunks = _ceil(_ceil(plane, pixels), parameters.get("tiles", 1))
    return _Tiling(
        pixels,
        outputs,
        shape["batch"] * _whole(plane, pixels),
        units=shape["batch"] * chunks * _ceil(shape["outputs"], outputs),
        passes=_ceil(shape["per_group"], parameters.get("ic_bn", shape["per_group"])),
    )


def _strassen_tiling(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Tiling:
    pixels, outputs = parameters.get("pixels", 1), parameters.get("vectors", 1) * block
    plane = shape["out_height"] * shape["out_width"]
    chunks = _ceil(_ceil(plane, 2 * pixels), parameters.get("tiles", 1))
    panels = _ceil(_ceil(shape["outputs"], 2 * outputs), parameters.get("panels", 1))
    computed = shape["batch"] * _whole(plane, 2 * pixels)
    return _Tiling(2 * pixels, outputs, computed, _STRASSEN, 10 / 8, shape["batch"] * chunks * panels)


def _winograd_tiling(shape: Mapping[str, float], _: Mapping[str, float], parameters: Parameters, block: int) -> _Tiling:
    alpha = parameters.get("alpha", parameters.get("m", 0) + 2)
    taps = parameters.get("taps", 3)
    if not 0 < taps < alpha:
        return _Tiling()
    kernel = int(shape["kernel_height"]), int(shape["kernel_width"])
    division = Division(*(Axis(extent, int(shape["stride"]), alpha, taps) for extent in kernel))
    across, down = division.across.outputs, division.down.outputs
    outputs = parameters.get("vectors", 1) * block
    tiles = shape["batch"] * _ceil(shape["out_height"], down) * _ceil(shape["out_width"], across)
    panels = _ceil(_ceil(shape["outputs"], outputs), parameters.get("panels", 1))
    share = division.all_parts / math.prod(kernel)
    units = _ceil(tiles, parameters.get("block", tiles)) * panels
    pixels = down * across
    return _Tiling(parameters.get("tiles", 1), outputs, tiles * pixels, share / pixels, share, units)


def _rows_tiling(shape: Mapping[str, float], last: Mapping[str, float], parameters: Parameters, block: int) -> _Tiling:
    pixels = parameters.get("pixels", 1)
    outputs = parameters.get("vectors", 1) * block
    rows = _ceil(last["out_height"], parameters.get("rows", parameters.get("band", last["out_height"])))
    computed = shape["batch"] * shape["out_height"] * _whole(shape["out_width"], pixels)
    return _Tiling(pixels, outputs, computed, units=shape["batch"] * rows * _ceil(shape["outputs"], outputs))


_TILINGS = {
    "direct": _direct_tiling,
    "planar": _rows_tiling,
    "depthwise": _rows_tiling,
    "expand_depthwise": _rows_tiling,
    "depthwise_project": _rows_tiling,
    "strassen": _strassen_tiling,
    "winograd": _winograd_tiling,
    "winograd_int16": _winograd_tiling,
}
"""Last part of a descriptor -> the tiling by its parameters."""
