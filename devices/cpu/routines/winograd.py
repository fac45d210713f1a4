"""Winograd convolution of blocked tensors: a childnet of encoding, products of matrices, and decoding (SoftNeuro)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.cpu.routines.window import Window, is_convolution, lowering
from nnstretch.devices.routine import Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.graph.layer import Layer

POINTS = {2: (1.0,), 4: (0.75, 1.5), 6: (0.5, 1.0, 2.0)}
"""The interpolation's points besides 0 and infinity, each with its negative, by the width m of the output tile.

The engine's transforms of inputs and outputs (kernels/winograd_transform.h) are made for these.
"""

LEAST_GROUP = 4
"""Input channels per group below which encoding costs more than the products save."""


ENCODED_BYTES = 3 << 18
"""Encoded input of a block of tiles that many second-level caches hold beside weights and sums."""

LEAST_TILES = 28
"""Tiles per block, if there are so many, with which weights are used often enough to come from memory in time."""

MEMORY_COST = 11
"""Multiply-adds of vectors in the time in which a vector of weights comes from memory."""

TRANSFORM_COST = {2: 60, 4: 160, 6: 400}
"""Multiply-adds of vectors in the time of encoding, or decoding, a vector of tiles."""

WORTH_MEASURING = 1.25
"""A width of tiles is not measured if it is guessed to take so many times as long as the best."""


class WinogradConvolution(Routine):
    """F(m×m, 3×3) for 3×3 convolutions with stride 1 and no dilation.

    Routine parameters:
        m: width of the output tile; larger ones multiply less, read more weights and lose more digits.
        tiles, vectors: the register tile of the products.
        block: tiles that a thread encodes before it multiplies; their encoded input should fit its cache.
    """

    descriptor = Descriptor("cpu", "float32", "winograd")

    def __init__(self, block: int, tiles: Sequence[tuple[int, int]]) -> None:
        """`block` is the engine's; `tiles` are the register tiles that it has, best first."""
        self.layout = Layout(block)
        self.tiles = tuple(tiles)

    def supports(self, layer: Layer) -> bool:
        if not is_convolution(layer):
            return False
        window = Window.of(layer)
        plain = window.kernel == (3, 3) and window.strides == (1, 1) and window.dilations == (1, 1)
        return plain and window.channels // window.groups >= LEAST_GROUP

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        window = Window.of(layer)
        costs = {m: self._cost(window, m) for m in POINTS}
        best, second, _ = sorted(costs, key=costs.__getitem__)
        fitting = [tile for tile in self.tiles if self._fits(window, tile[1])]
        settings = [self._setting(window, best, fitting[0])]
        if costs[second] < WORTH_MEASURING * costs[best]:
            settings.append(self._setting(window, second, fitting[0]))
        return (*settings, *(self._setting(window, best, tile) for tile in fitting[1:]))

    def _setting(self, window: Window, m: int, tile: tuple[int, int]) -> dict[str, int]:
        """As many tiles per block as leave their encoded input in the cache, but enough to use weights well."""
        per_tile = (m + 2) ** 2 * -(-window.channels // self.layout.block) * self.layout.block * 4
        block = max(ENCODED_BYTES // per_tile, LEAST_TILES)
        return {"m": m, "tiles": tile[0], "vectors": tile[1], "block": block}

    def _cost(self, window: Window, m: int) -> float:
        """A guess at the time of F(m×m, 3×3), in multiply-adds of vectors.

        Products wait for their weights where those come from memory too slowly.
        """
        tiles = window.batch * -(-window.out_height // m) * -(-window.out_width // m)
        inputs, outputs = (-(-channels // self.layout.block) for channels in (window.channels, window.outputs))
        weights = (m + 2) ** 2 * outputs * window.channels // window.groups
        return max(weights * tiles, weights * MEMORY_COST) + TRANSFORM_COST[m] * tiles * (inputs + outputs)

    def _fits(self, window: Window, vectors: int) -> bool:
        """Whether panels of so many vectors are full, and lie within one group where they can be narrower."""
        if -(-window.outputs // self.layout.block) % vectors:
            return False
        per_group = window.outputs // window.groups
        return vectors == 1 or window.groups == 1 or per_group % (vectors * self.layout.block) == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        window = Window.of(layer)
        m, vectors = parameters["m"], parameters["vectors"]
        kernel = f"winograd_m{m}t{parameters['tiles']}v{vectors}"
        weights = weight_panels(layer.constants[1], window.groups, vectors * self.layout.block, self.layout.block, m)
        lanes = -(-window.outputs // self.layout.block) * self.layout.block
        return lowering(kernel, layer, weights, lanes, (*window.words(), window.groups, parameters["block"]))


def kernel_transform(m: int) -> np.ndarray:
    """The matrix (m + 2)×3 that encodes one dimension of a kernel, in float64.

    Row p is (1, p, p²) divided by the product of p - q over the other points q, which makes up for input transforms whose
    polynomials have the leading coefficient 1; the last row is infinity's.
    """
    points = np.array([0.0, *(sign * point for point in POINTS[m] for sign in (1, -1))])
    differences = points[:, None] - points[None, :] + np.eye(len(points))
    rows = points[:, None] ** np.arange(3) / differences.prod(axis=1)[:, None]
    return np.vstack([rows, [0.0, 0.0, 1.0]])


def weight_panels(weight: np.ndarray, groups: int, width: int, block: int, m: int) -> np.ndarray:
    """Weights O,C/g,3,3 as the kernels read them: one row per panel of `width` output channels.

    A panel holds [position][input channel][output channel] with only those input channels that its groups read.
    """
    outputs, per_group = weight.shape[:2]
    transform = kernel_transform(m)
    both = np.kron(transform, transform).astype(np.float64)
    encoded = (both @ weight.reshape(-1, 9).T.astype(np.float64)).astype(np.float32)
    encoded = encoded.reshape(len(both), outputs, per_group)
    padded = -(-outputs // block) * block
    if groups == 1:
        full = np.zeros((len(both), padded, per_group), np.float32)
        full[:, :outputs] = encoded
        return full.reshape(len(both), padded // width, width, per_group).transpose(1, 0, 3, 2)
    return _grouped_panels(encoded, outputs // groups, width, padded)


def _grouped_panels(encoded: np.ndarray, outputs_per_group: int, width: int, padded: int) -> np.ndarray:
    """Panels of weights [position][output][input channel of its group]; channels of other groups get zeros."""
    positions, outputs, per_group = encoded.shape
    panels = []
    for first in range(0, padded, width):
        last = min(first + width, outputs)
        groups = range(first // outputs_per_group, (last - 1) // outputs_per_group + 1)
        panel = np.zeros((positions, len(groups) * per_group, width), np.float32)
        for at, group in enumerate(groups):
            low, high = max(first, group * outputs_per_group), min(last, (group + 1) * outputs_per_group)
            rows = slice(at * per_group, (at + 1) * per_group)
            panel[:, rows, low - first : high - first] = encoded[:, low:high].transpose(0, 2, 1)
        panels.append(panel.reshape(-1))
    result = np.zeros((len(panels), max(map(len, panels))), np.float32)
    for row, panel in zip(result, panels, strict=True):
        row[: panel.size] = panel
    return result
