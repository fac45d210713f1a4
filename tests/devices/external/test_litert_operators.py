"""Operators of the table in TFLite files: LiteRT's results equal those of ONNX Runtime, for awkward shapes too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as fn

from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.external.litert.engine import LiteRtModel, LiteRtRoutine
from nnstretch.errors import ModelError
from nnstretch.frontends.torch_module import export
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import relative_error, run_layer
from tests.kits.kernels.token_layers import attention_layer

pytest.importorskip("ai_edge_litert.interpreter")

TOLERANCE = 1e-5
Shape = tuple[int, ...]


def layer_of(
    op: str,
    inputs: tuple[Shape, ...],
    result: Shape,
    activation: Activation = NO_ACTIVATION,
    constants: Mapping[int, np.ndarray] | None = None,
    **attributes: Any,
) -> Layer:
    return Layer(
        "layer",
        op,
        tuple(map(TensorType, inputs)),
        (TensorType(result),),
        MappingProxyType(attributes),
        activation,
        MappingProxyType(dict(constants or {})),
    )


def check(layer: Layer, scale: float = 1.0) -> None:
    rng = np.random.default_rng(0)
    reads = [layer.type_of(index) for index in layer.activations]
    feeds = [np.asarray(scale * rng.standard_normal(kind.shape), np.float32) for kind in reads]
    (wanted,) = run_layer(layer, *feeds)
    found = np.empty_like(wanted)
    routine = LiteRtRoutine()
    assert routine.supports(layer)
    LiteRtModel(routine.model(layer), 1, reads, layer.outputs).run(feeds, [found])
    assert relative_error(found, wanted) < TOLERANCE


def matmul(x: Shape, y: Shape, tx: int = 0, ty: int = 0, constant: int | None = None, **more: Any) -> Layer:
    left = (*x[:-2], x[-1], x[-2]) if tx else x
    right = (*y[:-2], y[-1], y[-2]) if ty else y
    result = np.matmul(np.zeros(left), np.zeros(right)).shape
    given = {} if constant is None else {constant: random_array((x, y)[constant])}
    return layer_of("MatMul", (x, y), result, constants=given, transpose_x=tx, transpose_y=ty, **more)


def random_array(shape: Shape) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


MATMULS = {
    "matrices": matmul((3, 4), (4, 5)),
    "a row": matmul((1, 4), (4, 1)),
    "batches": matmul((2, 3, 4, 5), (2, 3, 5, 2)),
    "heads that broadcast": matmul((2, 1, 4, 5), (1, 3, 5, 2)),
    "ranks that differ": matmul((2, 3, 4, 5), (5, 7)),
    "both transposed": matmul((2, 5, 4), (2, 7, 5), 1, 1),
    "constant weights": matmul((2, 3, 4, 5), (5, 7), constant=1),
    "constant, transposed": matmul((6, 5), (7, 5), ty=1, constant=1),
    "a constant first": matmul((3, 4), (2, 4, 5), constant=0),
    "six axes": matmul((2, 3, 1, 2, 4, 5), (2, 3, 2, 1, 5, 3)),
    "gelu": matmul((3, 4), (4, 5), activation=Activation(ActivationKind.GELU)),
}


@pytest.mark.parametrize("name", MATMULS)
def test_products(name: str) -> None:
    check(MATMULS[name])


def test_a_product_with_more_axes_than_tflite_has() -> None:
    layer = matmul((2, 1, 2, 1, 2, 4, 5), (1, 2, 1, 2, 2, 5, 3))
    assert not LiteRtRoutine().supports(layer)
    with pytest.raises(ModelError, match=r"layer .* \(MatMul\) has 7 axes; TFLite takes 5"):
        LiteRtRoutine().model(layer)


def attention(queries: Shape, keys: Shape, values: Shape, heads: int, groups: int, *biases: Shape) -> Layer:
    depth = values[1] if len(values) == 4 else values[2]
    total = depth // groups * heads
    result = (queries[0], total, *queries[2:]) if len(queries) == 4 else (*queries[:2], total)
    return layer_of("Attention", (queries, keys, values, *biases), result, heads=heads, groups=groups, scale=0.4)


ATTENTIONS = {
    "tokens": attention((2, 5, 8), (2, 5, 8), (2, 5, 8), 2, 2),
    "tokens, other keys and depth": attention((1, 5, 8), (1, 7, 8), (1, 7, 12), 4, 4),
    "one group of keys": attention((2, 5, 8), (2, 6, 4), (2, 6, 3), 2, 1),
    "windows": attention((1, 8, 3, 5), (1, 8, 3, 5), (1, 8, 3, 5), 2, 2),
    "windows with a bias of positions": attention((2, 8, 3, 5), (2, 8, 3, 5), (2, 8, 3, 5), 2, 2, (1, 2, 5, 5)),
    "windows with bias and mask": attention((1, 8, 3, 5), (1, 8, 3, 5), (1, 8, 3, 5), 2, 2, (1, 2, 5, 5), (3, 1, 5, 5)),
    "one token": attention((1, 1, 4), (1, 1, 4), (1, 1, 4), 1, 1),
}


_FACTOR = np.array([0.5, 3.0], np.float32).reshape(1, 2, 1, 1)
_POSITIONS = np.linspace(-1, 1, 50, dtype=np.float32).reshape(1, 2, 5, 5)
ATTENTIONS |= {
    "cosines": attention_layer(
        (1, 3, 5, 5, 4, 4), heads=2, groups=2, biases=[_POSITIONS], factor=_FACTOR, epsilon=1e-12
    ),
    "cosines of tokens": attention_layer((2, 1, 5, 7, 4, 3), heads=2, groups=1, rows=True, factor=_FACTOR, epsilon=2.0),
    "a factor of each head": attention_layer((2, 1, 5, 7, 4, 3), heads=2, groups=1, rows=True, factor=_FACTOR),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    check(ATTENTIONS[name])


MODES = ("sum", "mean", "max", "min", "l1", "l2", "squares", "product")


@pytest.mark.parametrize("mode", MODES)
def test_reductions(mode: str) -> None:
    for shape, axes in (
        ((2, 3, 4, 5), (2, 3)),
        ((2, 3, 4, 5), (1,)),
        ((2, 3, 4, 5), (3,)),
        ((7,), (0,)),
        ((2, 3, 2, 1, 2, 3, 2), (2, 3, 4)),
    ):
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        dropped = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
        for result in (kept, dropped):
            check(layer_of("Reduce", (shape,), result, axes=axes, mode=mode))


def pad(shape: Shape, before: Shape, after: Shape, mode: str = "constant", value: float = 0.0, **more: Any) -> Layer:
    result = tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True))
    return layer_of("Pad", (shape,), result, pads=(*before, *after), mode=mode, value=value, **more)


PADS = {
    "zeros": pad((1, 3, 4, 5), (0, 0, 1, 2), (0, 0, 0, 3)),
    "a number": pad((1, 3, 4, 5), (1, 1, 1, 2), (0, 0, 0, 3), value=-1.5),
    "reflected": pad((1, 3, 4, 5), (0, 0, 3, 2), (0, 0, 1, 4), "reflect"),
    "edge": pad((1, 3, 4, 5), (0, 0, 3, 2), (0, 2, 0, 7), "edge"),
    "wrapped": pad((1, 3, 4, 5), (0, 0, 3, 2), (0, 0, 0, 4), "wrap"),
    "rows": pad((3, 5), (1, 0), (0, 4)),
    "seven axes": pad((2, 3, 2, 1, 2, 3, 2), (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, 0, 0, 2, 0)),
}


@pytest.mark.parametrize("name", PADS)
def test_pads(name: str) -> None:
    check(PADS[name])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_two_operands(op: str) -> None:
    image, channels = (2, 3, 4, 5), (2, 3, 1, 1)
    check(layer_of(op, (image, image), image))
    check(layer_of(op, (image, channels), image))
    check(layer_of(op, (image, (1, 3, 1, 1)), image, constants={1: random_array((1, 3, 1, 1))}))
    check(layer_of(op, (image, ()), image, constants={1: np.array(0.7, np.float32)}))
    check(layer_of(op, ((3, 1, 2), (3, 4, 2)), (3, 4, 2)))
    check(layer_of(op, ((2, 1, 2, 1, 2, 3), (2, 2, 1, 2, 1, 3)), (2, 2, 2, 2, 2, 3)))


def test_expansion() -> None:
    for shape, result in (
        ((1, 3, 1, 1), (2, 3, 4, 5)),
        ((4, 1), (2, 3, 4, 5)),
        ((1,), (3, 4)),
        ((2, 1, 2, 1, 3), (2, 4, 2, 5, 3)),
    ):
        check(layer_of("Expand", (shape,), result))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    check(layer_of("DepthToSpace", ((2, 27, 2, 5),), (2, 3, 6, 15), size=3, mode=mode))
    check(layer_of("DepthToSpace", ((1, 4, 1, 1),), (1, 1, 2, 2), size=2, mode=mode))


def test_space_to_depth() -> None:
    check(layer_of("SpaceToDepth", ((2, 3, 6, 15),), (2, 27, 2, 5), size=3))


def test_rearrangement() -> None:
    """Windows of an image as images, and back."""
    check(layer_of("Rearrange", ((2, 3, 4, 6),), (12, 3, 2, 2), sizes=(2, 2, 2, 3, 2), perm=(0, 1, 3, 2, 4)))
    check(layer_of("Rearrange", ((12, 3, 2, 2),), (2, 3, 4, 6), sizes=(2, 2, 3, 2, 2), perm=(0, 1, 3, 2, 4)))
    check(layer_of("Rearrange", ((2, 3, 4, 12),), (2, 3, 4, 12), sizes=(2, 2, 2, 3, 2, 2), perm=(0, 3, 1, 5, 2, 4)))


COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest(coordinates: str, nearest: str) -> None:
    for size, result in (((4, 6), (8, 12)), ((5, 7), (3, 15)), ((6, 1), (1, 3))):
        scales = tuple(after / before for before, after in zip(size, result, strict=True))
        check(
            layer_of(
                "Resize",
                ((1, 3, *size),),
                (1, 3, *result),
                mode="nearest",
                coordinates=coordinates,
                nearest=nearest,
                scales=scales,
            )
        )


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_linear(coordinates: str) -> None:
    for size, result, scales in (
        ((4, 6), (8, 12), (2.0, 2.0)),
        ((5, 7), (3, 16), (3 / 5, 16 / 7)),
        ((6, 1), (1, 3), (1 / 6, 3.0)),
        ((5, 7), (7, 10), (1.5, 1.5)),
    ):
        check(
            layer_of(
                "Resize",
                ((2, 3, *size),),
                (2, 3, *result),
                mode="linear",
                coordinates=coordinates,
                nearest="floor",
                scales=scales,
            )
        )


@pytest.mark.parametrize("kind", [kind for kind in ActivationKind if kind.name != "NONE"])
def test_activations(kind: ActivationKind) -> None:
    """Of values around 0, and of values at which an exponential would overflow."""
    a, b = {
        "CLIP": (-0.3, 0.4),
        "HARD_SIGMOID": (0.3, 0.4),
        "ELU": (0.5, 2.0),
        "SELU": (1.6, 1.1),
    }.get(kind.name, (0.3, 0.0))
    activation = (
        Activation(kind, a, b)
        if kind.name in ("CLIP", "HARD_SIGMOID", "ELU", "SELU", "LEAKY_RELU", "SWISH")
        else Activation(kind)
    )
    for shape in ((2, 3, 4, 5), (7,), (2, 3, 2, 1, 2)):
        check(layer_of("Activation", (shape,), shape, activation))
    if kind is not ActivationKind.EXP:
        check(layer_of("Activation", ((50,),), (50,), activation), scale=40.0)


def test_groups_of_rows() -> None:
    scale, shift = random_array((6,)), random_array((6,))
    for shape in ((2, 6, 5), (2, 6), (2, 6, 3, 2, 2)):
        check(
            layer_of(
                "GroupNorm",
                (shape, (6,), (6,)),
                shape,
                constants={1: scale, 2: shift},
                groups=3,
                epsilon=1e-5,
            )
        )


def test_transposition_of_many_axes() -> None:
    """TFLite transposes six axes; neighbours that stay neighbours count as one."""
    shape, order = (2, 1, 3, 2, 2, 2, 3, 2), (2, 3, 0, 1, 6, 7, 5, 4)
    check(layer_of("Transpose", (shape,), tuple(shape[axis] for axis in order), perm=order))


@settings(max_examples=12)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_movements_of_random_shapes(shape: list[int], random: Any) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    check(layer_of("Transpose", (tuple(shape),), tuple(shape[axis] for axis in order), perm=tuple(order)))
    pads = (1, *(random.randint(0, 2) for _ in range(2 * len(shape) - 1)))
    check(pad(tuple(shape), pads[: len(shape)], pads[len(shape) :], random.choice(("edge", "wrap"))))
    first = random.randrange(len(shape))
    axes = tuple(range(first, random.randint(first, len(shape) - 1) + 1))
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    check(layer_of("Reduce", (tuple(shape),), kept, axes=axes, mode=random.choice(MODES)))


class Hybrid(nn.Module):
    """A convolution, attention over its pixels, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.all = nn.Conv2d(3, 8, 3, 2, 1), nn.LayerNorm(8), nn.Linear(8, 24)
        self.decode = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(8, 16, 3), nn.GELU(), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        rows = self.norm(y.flatten(2).transpose(1, 2))
        heads = self.all(rows).reshape(1, -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = fn.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(rows.shape)
        z: Tensor = self.decode((rows + mixed).transpose(1, 2).reshape(y.shape))
        return z / z.amax((1, 2, 3), keepdim=True)


def test_a_hybrid_network_is_one_call_of_the_processor() -> None:
    torch.manual_seed(0)
    graph = export(Hybrid().eval(), torch.randn(1, 3, 12, 16))
    feeds = random_feeds(graph, 0)
    (expected,) = reference_outputs(graph, feeds).values()
    with compile_model(graph, build_processors(f"litert@{usable_cores()[0]}"), tune=False) as session:
        assert [step.routine for step in session.plan.steps] == ["litert:float32/xnnpack"]
        assert session.plan.fallback_layers == ()
        (found,) = session.run(None, feeds)
    assert relative_error(found, expected) < TOLERANCE
