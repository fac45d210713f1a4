"""Memory-bound routines against ONNX Runtime: every routine, layout and block, with uneven sizes and one and two threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.cpu.routines.memory_bound import MOVED_DTYPES
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters, element_type
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.cpu_routines import memory_bound_routines
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.memory_bound_parity import (
    BLOCKS,
    CORES,
    MEMORY_BOUND_ROUTINES,
    TWO_CORES,
    WITH_EXP,
    Shape,
    activations,
    batches,
    channels,
    check,
    make_layer,
    reference,
    settings_of,
    values,
)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("second", [(1, 19, 3, 5), (1, 19, 1, 1)])
def test_the_larger_of_two_numbers_is_nan_if_one_of_them_is(op: str, second: Shape) -> None:
    shape = (1, 19, 3, 5)
    layer = make_layer(op, [shape, second], shape)
    feeds = [values(shape, 1), values(second, 2)]
    feeds[0][0, ::3, 0, ::2] = np.nan
    feeds[1][0, ::4] = np.nan
    wanted = (np.maximum if op == "Max" else np.minimum)(*feeds)
    for routine, parameters in settings_of(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, inputs, outputs, CORES[0])
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("activation", WITH_EXP, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 17, 3, 7), (1, 35, 33, 40), (2, 3, 4, 5, 6)], ids=str)
def test_activation(shape: Shape, activation: Activation) -> None:
    layer = make_layer("Activation", [shape], shape, activation=activation)
    check(layer, blocked=len(shape) == 4, threads=(*CORES, TWO_CORES))


@pytest.mark.parametrize("kind", list(ActivationKind))
def test_activation_of_extreme_values(kind: ActivationKind) -> None:
    activation = next(a for a in WITH_EXP if a.kind is kind)
    feed = np.array([-1e30, -200, -90, -20, -1e-8, -0.0, 0.0, 1e-8, 20, 90, 200, 1e30, np.nan], np.float32)
    layer = make_layer("Activation", [feed.shape], feed.shape, activation=activation)
    for routine, parameters in settings_of(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, [feed], inputs, outputs, CORES[0])
        wanted = reference(layer, [feed])
        if kind is ActivationKind.EXP:  # stays finite, because lanes that pad channels must
            assert np.isfinite(found[:-1]).all()
            wanted = np.minimum(wanted, found.max(initial=3.4e38, where=~np.isnan(found)))
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


@st.composite
def binaries(draw: st.DrawFn) -> Layer:
    shape = (draw(batches), draw(channels), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    n, c, h, w = shape
    constant = draw(st.booleans())
    others: list[Shape] = [shape, (n, c, 1, 1), (1, c, 1, 1), (1, 1, 1, 1)]
    if constant:
        others += [(c, 1, 1), (), (1,), (h, w), (n, 1, 1, w)]
    other = draw(st.sampled_from(others))
    constants = {1: values(other, 3)} if constant else {}
    op = draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]))
    return make_layer(op, [shape, other], shape, activation=draw(activations), constants=constants)


@given(binaries())
@settings(max_examples=examples(80))
def test_binary(layer: Layer) -> None:
    check(layer)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
@pytest.mark.parametrize(
    ("shape", "other", "constant"),
    [
        ((2, 33, 60, 60), (2, 33, 1, 1), False),
        ((1, 20, 50, 50), (1, 20, 50, 50), False),
        ((2, 7, 50, 50), (1, 7, 1, 1), True),
        ((1, 6, 50, 50), (), False),
    ],
)
def test_binary_of_several_units(op: str, shape: Shape, other: Shape, constant: bool) -> None:
    constants = {1: values(other, 3)} if constant else {}
    check(make_layer(op, [shape, other], shape, constants=constants), threads=(*CORES, TWO_CORES))


@pytest.mark.parametrize("shape", [(7,), (3, 50), (2, 3, 4), (2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("scalar", [False, True])
def test_binary_of_any_rank(shape: Shape, scalar: bool) -> None:
    check(make_layer("Mul", [shape, () if scalar else shape], shape), blocked=False)


def test_binary_refuses_what_broadcasts_otherwise() -> None:
    for shape, other in (((2, 3, 4, 4), (1, 1, 4, 4)), ((2, 3), (1, 2, 3)), ((1, 3, 4, 4), (2, 3, 4, 4))):
        layer = make_layer("Add", [shape, other], shape)
        assert not any(r.supports(layer) for r in MEMORY_BOUND_ROUTINES)


@given(batches, channels, st.integers(1, 70), activations)
@settings(max_examples=examples(30))
def test_affine(n: int, c: int, w: int, activation: Activation) -> None:
    shape = (n, c, 3, w)
    constants = {1: values((c,), 1), 2: values((c,), 2)}
    check(make_layer("Affine", [shape, (c,), (c,)], shape, activation=activation, constants=constants))


@given(
    batches,
    st.lists(st.integers(1, 37), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 5),
    activations,
)
@settings(max_examples=examples(60))
def test_concat_of_channels(n: int, sizes: list[int], h: int, w: int, activation: Activation) -> None:
    inputs = [(n, c, h, w) for c in sizes]
    check(
        make_layer("Concat", inputs, (n, sum(sizes), h, w), {"axis": 1}, activation),
        exact=not activation.kind,
    )


@pytest.mark.parametrize("sizes", [[5] * 40, [1] * 33, [32] * 18, [16, 3] * 9], ids=str)
def test_concat_of_more_than_one_step_reads(sizes: list[int]) -> None:
    layer = make_layer("Concat", [(2, c, 3, 4) for c in sizes], (2, sum(sizes), 3, 4), {"axis": 1})
    check(layer, exact=True)


@pytest.mark.parametrize("sizes", [(64, 64), (33, 100), (128, 5)])
def test_concat_of_large_planes(sizes: Shape) -> None:
    layer = make_layer("Concat", [(1, c, 28, 28) for c in sizes], (1, sum(sizes), 28, 28), {"axis": 1})
    check(layer, exact=True, threads=(*CORES, TWO_CORES))


@pytest.mark.parametrize("shape", [(6,), (3, 5), (2, 17, 3, 4), (2, 3, 1, 4, 5)], ids=str)
def test_concat_of_any_axis(shape: Shape) -> None:
    for axis in range(len(shape)):
        inputs = [(*shape[:axis], length, *shape[axis + 1 :]) for length in (shape[axis], 1, 4)]
        output = (*shape[:axis], shape[axis] + 5, *shape[axis + 1 :])
        check(make_layer("Concat", inputs, output, {"axis": axis}), exact=True, blocked=len(shape) == 4)


@pytest.mark.parametrize("shape", [(5,), (1, 1000), (3, 17), (2, 21, 5, 7), (2, 1, 4, 16)], ids=str)
def test_softmax(shape: Shape) -> None:
    for axis in range(len(shape)):
        wanted = check(make_layer("Softmax", [shape], shape, {"axis": axis}), blocked=False)
        np.testing.assert_allclose(wanted.sum(axis=axis), 1, rtol=1e-5)


def test_softmax_of_large_values_is_finite() -> None:
    feed = np.array([[1e4, 1e4 - 1, -1e4], [-3e38, 0, 3e38], [-1e4, -1e4 - 1, -1e4 - 2]], np.float32)
    for axis, array in ((1, feed), (0, np.ascontiguousarray(feed.T))):
        layer = make_layer("Softmax", [array.shape], array.shape, {"axis": axis})
        for routine, parameters in settings_of(layer):
            inputs, outputs = routine.layouts(layer, parameters)
            (found,) = run_lowering(routine.lower(layer, parameters), layer, [array], inputs, outputs, CORES[0])
            np.testing.assert_allclose(found, reference(layer, [array]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", [NO_ACTIVATION, Activation(ActivationKind.SILU)], ids=str)
@pytest.mark.parametrize("shape", [(3, 35), (2, 35, 5, 9), (1, 35, 40, 41), (2, 35, 70)], ids=str)
def test_prelu(shape: Shape, activation: Activation) -> None:
    layer = make_layer("PRelu", [shape, (35,)], shape, {}, activation, {1: values((35,), 1)})
    check(layer, blocked=len(shape) == 4, threads=(*CORES, TWO_CORES))


def norm_layer(
    op: str, shape: Shape, length: int, attributes: Mapping[str, Attribute], activation: Activation = NO_ACTIVATION
) -> Layer:
    """A normalisation with scale and shift."""
    constants = {1: values((length,), 1), 2: values((length,), 2)}
    return make_layer(op, [shape, (length,), (length,)], shape, {"epsilon": 1e-5, **attributes}, activation, constants)


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("shape", [(7,), (3, 100), (2, 35, 5, 9), (1, 48, 12, 13), (2, 3, 4, 5, 6)], ids=str)
def test_layer_norm(shape: Shape, rms: int) -> None:
    for axis in range(len(shape)):
        layer = norm_layer("LayerNorm", shape, shape[axis], {"axis": axis, "rms": rms}, WITH_EXP[axis])
        block = local_isa().block
        blocked = len(shape) == 4 and axis == 1
        # ONNX Runtime subtracts the squared mean from the mean of squares.
        check(layer, blocked=blocked, blocks=(block,), threads=(*CORES, TWO_CORES), tolerance=5e-5)


@pytest.mark.parametrize("groups", [1, 5, 7, 35])
@pytest.mark.parametrize("shape", [(2, 35, 5, 9), (1, 35, 1, 1), (2, 35, 70)], ids=str)
def test_group_norm(shape: Shape, groups: int) -> None:
    layer = norm_layer("GroupNorm", shape, 35, {"groups": groups}, WITH_EXP[4])
    check(layer, blocked=len(shape) == 4, threads=(*CORES, TWO_CORES))


@pytest.mark.parametrize(("op", "attributes"), [("LayerNorm", {"axis": 1}), ("GroupNorm", {"groups": 3})])
def test_a_large_mean_costs_no_digits_of_the_variance(op: str, attributes: Mapping[str, Attribute]) -> None:
    """The mean is a thousand deviations; a difference of the means of squares would have one digit left."""
    shape = (1, 48, 8, 9)
    layer = norm_layer(op, shape, 48, attributes)
    feed = values(shape, 3) + np.float32(3000)
    wide = feed.astype(np.float64).reshape(1, -1, 48 if op == "LayerNorm" else 16 * 72, 72 if op == "LayerNorm" else 1)
    deviation = np.sqrt(wide.var(axis=2, keepdims=True) + 1e-5)
    normed = ((wide - wide.mean(axis=2, keepdims=True)) / deviation).reshape(shape)
    scale, shift = (layer.constants[i].reshape(-1, 1, 1) for i in (1, 2))
    for routine, parameters in settings_of(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, [feed], inputs, outputs, CORES[0])
        np.testing.assert_allclose(found, normed * scale + shift, atol=3e-3)


COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


@st.composite
def resizes(draw: st.DrawFn) -> Layer:
    n, c, h, w = draw(batches), draw(channels), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    scales = draw(st.tuples(*[st.sampled_from([0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.7, 3.0])] * 2))
    size = tuple(max(int(np.floor(length * scale)), 1) for length, scale in zip((h, w), scales, strict=True))
    if any(int(np.floor(length * scale)) < 1 for length, scale in zip((h, w), scales, strict=True)):
        scales = tuple(new / old for new, old in zip(size, (h, w), strict=True))
    attributes: dict[str, Attribute] = {
        "mode": (mode := draw(st.sampled_from(["nearest", "linear", "cubic", "linear_antialias", "cubic_antialias"]))),
        "coordinates": draw(
            st.sampled_from(COORDINATES if mode == "nearest" else (*COORDINATES, "half_pixel_symmetric"))
        ),
        "nearest": draw(st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])),
        "scales": scales,
    }
    if mode.startswith("cubic"):
        attributes["cubic_coefficient"] = draw(st.sampled_from([-0.75, -0.5]))
        attributes["exclude_outside"] = draw(st.integers(0, 1))
    return make_layer("Resize", [(n, c, h, w)], (n, c, *size), attributes, draw(activations))


@given(resizes())
@settings(max_examples=examples(80))
def test_resize(layer: Layer) -> None:
    # Weights of filters come from positions in float32, which other engines round in another order.
    check(layer, tolerance=1e-5 if layer.attributes["mode"] not in ("nearest", "linear") else 2e-6)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((2, 37, 5, 31), (0, 2, 3, 1)),
        ((1, 84, 32, 32), (0, 2, 3, 1)),
        ((2, 5, 31, 37), (0, 3, 1, 2)),
        ((2, 3, 4, 5), (3, 2, 1, 0)),
        ((1, 2, 29, 7, 3), (0, 2, 1, 3, 4)),
        ((40, 1050), (1, 0)),
        ((3, 1, 2, 2, 2, 2, 2), (6, 5, 4, 3, 2, 1, 0)),
        ((1, 1, 3), (2, 0, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("activation", [NO_ACTIVATION, Activation(ActivationKind.EXP)], ids=str)
def test_transpose(shape: Shape, order: Shape, activation: Activation) -> None:
    output = tuple(shape[axis] for axis in order)
    layer = make_layer("Transpose", [shape], output, {"perm": order}, activation)
    check(layer, exact=not activation.kind, blocked=order == (0, 2, 3, 1), threads=(*CORES, TWO_CORES))


def test_a_transposition_in_too_many_dimensions_is_not_supported() -> None:
    order = tuple(reversed(range(7)))
    layer = make_layer("Transpose", [(2,) * 7], (2,) * 7, {"perm": order})
    assert not any(r.supports(layer) for r in MEMORY_BOUND_ROUTINES)


@st.composite
def slices(draw: st.DrawFn) -> Layer:
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    starts = tuple(draw(st.integers(0, size - 1)) for size in shape)
    steps = tuple(draw(st.integers(1, 4)) for _ in shape)
    ends = [draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    output = tuple(len(range(*bounds)) for bounds in zip(starts, ends, steps, strict=True))
    return make_layer("Slice", [shape], output, {"starts": starts, "steps": steps})


@given(slices())
@settings(max_examples=examples(60))
def test_slice(layer: Layer) -> None:
    starts, steps = layer.attributes["starts"], layer.attributes["steps"]
    assert isinstance(starts, tuple)
    assert isinstance(steps, tuple)
    for block in BLOCKS:
        blocked = len(starts) == 4 and starts[1] % block == 0 and steps[1] == 1
        check(layer, exact=True, blocked=blocked, blocks=(block,))


@pytest.mark.parametrize(("start", "count"), [(0, 16), (16, 21), (32, 5)])
def test_slice_of_blocked_channels(start: int, count: int) -> None:
    attributes: dict[str, Attribute] = {"starts": (0, start, 1, 0), "steps": (1, 1, 2, 1)}
    check(make_layer("Slice", [(2, 37, 6, 5)], (2, count, 3, 5), attributes), exact=True)


@pytest.mark.parametrize(
    ("op", "shape", "mode", "blocked"),
    [
        ("DepthToSpace", (1, 64, 5, 3), "DCR", True),
        ("DepthToSpace", (2, 64, 5, 3), "DCR", True),
        ("DepthToSpace", (1, 64, 5, 3), "CRD", False),
        ("DepthToSpace", (2, 12, 5, 33), "DCR", False),
        ("SpaceToDepth", (1, 32, 6, 10), "", True),
        ("SpaceToDepth", (2, 5, 6, 10), "", False),
    ],
)
def test_tiles_of_pixels_and_channels(op: str, shape: Shape, mode: str, blocked: bool) -> None:
    n, c, h, w = shape
    output = (n, c // 4, 2 * h, 2 * w) if mode else (n, 4 * c, h // 2, w // 2)
    layer = make_layer(op, [shape], output, {"size": 2, "mode": mode} if mode else {"size": 2})
    check(layer, exact=True, blocked=blocked)


@pytest.mark.parametrize("shape", [(1, 32, 5, 3), (2, 16, 1, 7), (2, 7, 4, 4)])
def test_channels_last_tensors_are_written_in_blocks(shape: Shape) -> None:
    """A transpose from N,H,W,C writes the blocked layout if the channels are whole blocks."""
    n, c, h, w = shape
    layer = make_layer("Transpose", [(n, h, w, c)], shape, {"perm": (0, 3, 1, 2)})
    for block in BLOCKS:
        check(layer, exact=True, blocked=c % block == 0, blocks=(block,))


@st.composite
def rearranged(draw: st.DrawFn) -> Layer:
    """A Rearrange of pixels into windows or back, of one image or more, or of images into pixels."""
    images, channels = draw(st.integers(1, 2)), draw(st.integers(1, 40))
    sizes = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 4)))]
    order = draw(st.permutations(range(len(sizes))))
    kept = draw(st.booleans())
    factors = (images, *sizes) if images > 1 else tuple(sizes)
    perm = (0, *(axis + 1 for axis in order)) if images > 1 else tuple(order)
    if not kept and images > 1:
        perm = tuple(draw(st.permutations(perm)))
    batch = images if kept else 1
    pixels = int(np.prod(sizes))
    source, target = (images, channels, pixels, 1), (batch, channels, pixels * images // batch, 1)
    return make_layer("Rearrange", [source], target, {"sizes": factors, "perm": perm})


@given(rearranged())
@settings(max_examples=examples(20), deadline=None)
def test_rearranged_pixels(layer: Layer) -> None:
    feeds = [values(layer.type_of(0).shape, 3)]
    wanted = reference(layer, feeds)
    for block in BLOCKS:
        for routine, parameters in settings_of(layer, memory_bound_routines(block)):
            layouts = routine.layouts(layer, parameters)
            (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, *layouts, CORES[1])
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "result"), [((3, 1, 5), (2, 3, 4, 5)), ((2, 17, 1, 1), (2, 17, 5, 6)), ((1,), (7, 33)), ((4,), (1, 4))]
)
def test_expand(shape: Shape, result: Shape) -> None:
    check(make_layer("Expand", [shape], result, {}, Activation(ActivationKind.RELU)), blocked=False)


@pytest.mark.parametrize(
    ("shape", "other"), [((2, 20, 3, 5), (2, 20, 1, 1)), ((1, 32, 3, 5), (1, 32, 3, 5)), ((33,), ())]
)
def test_quotients(shape: Shape, other: Shape) -> None:
    """Blocked only where channels fill their blocks: 0 / 0 in a padding lane would spread."""
    for block in BLOCKS:
        blocked = len(shape) == 4 and shape[1] % block == 0
        check(make_layer("Div", [shape, other], shape), blocked=blocked, blocks=(block,))


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "min", "l1", "l2", "squares", "product"])
@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [((3, 7, 37), (1,), (3, 1, 37)), ((5, 131), (1,), (5,)), ((2, 3, 5, 4), (2, 3), (2, 3)), ((3, 4), (0, 1), ())],
)
def test_reduce(mode: str, shape: Shape, axes: Shape, result: Shape) -> None:
    layer = make_layer("Reduce", [shape], result, {"axes": axes, "mode": mode}, Activation(ActivationKind.TANH))
    check(layer, blocked=False, blocks=(16,))


@pytest.mark.parametrize("shape", [(1 << 20, 3), (1, 1 << 20)])
def test_sums_of_a_million_numbers(shape: Shape) -> None:
    """Each of them added to one float, the mean would be wrong by a hundredth."""
    axis = shape.index(1 << 20)
    result = tuple(size for number, size in enumerate(shape) if number != axis)
    layer = make_layer("Reduce", [shape], result, {"axes": (axis,), "mode": "mean"})
    feeds = [np.full(shape, 0.1, np.float32)]
    for routine, parameters in settings_of(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, inputs, outputs, CORES[0])
        np.testing.assert_allclose(found, 0.1, rtol=5e-5)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("value", [0.0, 0.5])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((2, 20, 5, 6), (0, 0, 1, 2, 0, 0, 0, 3)),
        ((1, 16, 4, 4), (0, 0, 3, 0, 0, 0, 3, 0)),
        ((2, 3, 4, 5), (0, 2, 0, 0, 0, 1, 0, 0)),
        ((3, 7), (1, 2, 2, 3)),
    ],
)
def test_pad(mode: str, value: float, shape: Shape, pads: Shape) -> None:
    rank = len(shape)
    result = tuple(size + pads[axis] + pads[rank + axis] for axis, size in enumerate(shape))
    layer = make_layer("Pad", [shape], result, {"pads": pads, "mode": mode, "value": value})
    of_image = rank == 4 and not any(pads[:2])
    lanes_stay = mode != "constant" or value == 0 or shape[1] % 16 == 0
    check(layer, exact=True, blocked=of_image and lanes_stay, blocks=(16,))


@pytest.mark.parametrize("channels", [(3, 20, 5), (16, 32, 8)])
@pytest.mark.parametrize("fixed", [(0,), (1, 2)])
def test_concat_with_constants(channels: Shape, fixed: Shape) -> None:
    shapes = [(2, c, 3, 5) for c in channels]
    constants = {i: values(shapes[i], i) for i in fixed}
    layer = make_layer("Concat", shapes, (2, sum(channels), 3, 5), {"axis": 1}, constants=constants)
    check(layer, exact=True)


@pytest.mark.parametrize(
    ("shape", "result", "blocked"),
    [
        ((2, 33, 1, 1), (2, 33), True),
        ((2, 33), (2, 33, 1, 1), True),
        ((1, 20, 7, 5), (1, 700), True),
        ((2, 6, 2, 2), (4, 3, 4, 1), True),
        ((2, 20, 4, 3), (2, 20, 6, 2), True),
        ((2, 6, 4), (12, 4), False),
        ((), (1,), False),
    ],
)
@pytest.mark.parametrize("activation", [NO_ACTIVATION, Activation(ActivationKind.SILU)], ids=str)
def test_reshape(shape: Shape, result: Shape, blocked: bool, activation: Activation) -> None:
    layer = make_layer("Reshape", [shape], result, activation=activation)
    check(layer, exact=not activation.kind, blocked=blocked)


@st.composite
def movements(draw: st.DrawFn) -> tuple[Layer, list[np.ndarray], np.ndarray]:
    """A layer that moves elements of any type, its inputs, and the output that numpy computes."""
    row = draw(st.sampled_from([element_type(name) for name in MOVED_DTYPES]))
    rank = draw(st.integers(1, 5))
    shape = tuple(draw(st.integers(1, 14)) for _ in range(rank))
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def feed(size: Shape) -> np.ndarray:
        stored = rng.integers(0, 2 if row.kind == "bool" else 255, (*size, row.bytes), np.uint8)
        return np.ascontiguousarray(stored.view(row.storage)[..., 0])

    op = draw(st.sampled_from(["Transpose", "Slice", "Concat", "Reshape"]))
    attributes: dict[str, Attribute] = {}
    feeds = [feed(shape)]
    if op == "Transpose":
        attributes["perm"] = order = tuple(draw(st.permutations(range(rank))))
        result = feeds[0].transpose(order)
    elif op == "Slice":
        starts = tuple(draw(st.integers(0, size - 1)) for size in shape)
        steps = tuple(draw(st.integers(1, 3)) for _ in shape)
        attributes |= {"starts": starts, "steps": steps}
        result = feeds[0][tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))]
    elif op == "Concat":
        axis = draw(st.integers(0, rank - 1))
        attributes["axis"] = axis
        lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=18))
        feeds = [feed((*shape[:axis], length, *shape[axis + 1 :])) for length in lengths]
        result = np.concatenate(feeds, axis)
    else:
        result = feeds[0].reshape(-1)
    inputs = tuple(TensorType(f.shape, row.name) for f in feeds)
    layer = Layer("tested", op, inputs, (TensorType(result.shape, row.name),), MappingProxyType(attributes))
    return layer, feeds, np.ascontiguousarray(result)


@given(movements())
@settings(max_examples=examples(150))
def test_elements_of_any_type_are_moved(case: tuple[Layer, list[np.ndarray], np.ndarray]) -> None:
    layer, feeds, wanted = case
    routines = [r for r in memory_bound_routines(8) if r.supports(layer)]
    assert [str(r.descriptor).split("/")[0] for r in routines] == [f"cpu:{layer.outputs[0].dtype}"]
    (routine,) = routines
    for parameters in routine.parameter_space(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        for cores in CORES:
            (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, inputs, outputs, cores)
            np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("shape", [(300, 2100), (3, 40, 1030)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int64"])
def test_transpositions_of_several_tiles(dtype: str, shape: Shape) -> None:
    feed = np.random.default_rng(3).integers(-99, 99, shape).astype(dtype)
    order = tuple(reversed(range(len(shape))))
    layer = Layer(
        "tested", "Transpose", (TensorType(shape, dtype),), (TensorType(shape[::-1], dtype),), {"perm": order}
    )
    (routine,) = [r for r in MEMORY_BOUND_ROUTINES if r.supports(layer)]
    assert str(routine.descriptor) == f"cpu:{dtype}/strided"
    (parameters,) = routine.parameter_space(layer)
    (found,) = run_lowering(routine.lower(layer, parameters), layer, [feed], (PLAIN,), (PLAIN,), TWO_CORES)
    np.testing.assert_array_equal(found, feed.T)


def test_integers_that_change_their_meaning_are_not_only_moved() -> None:
    near, far = (TensorType((1, 4, 2, 2), "int8", QuantizationParameters(scale)) for scale in (0.1, 0.2))
    for inputs, output, routine in (
        ((near, near), near, "concat"),
        ((near, far), near, "requantize_concat"),
        ((near, near), far, "requantize_concat"),
    ):
        result = TensorType((1, 8, 2, 2), "int8", output.quantization)
        layer = Layer("tested", "Concat", inputs, (result,), {"axis": 1})
        assert [str(r.descriptor) for r in MEMORY_BOUND_ROUTINES if r.supports(layer)] == [f"cpu:int8/{routine}"]


def test_other_element_types_and_operators_are_not_supported() -> None:
    shape = TensorType((1, 4, 2, 2), "float16")
    half = Layer("half", "Activation", (shape,), (shape,), activation=Activation(ActivationKind.RELU))
    conv = make_layer("Conv", [(1, 4, 2, 2), (4, 4, 1, 1)], (1, 4, 2, 2))
    for layer in (half, conv):
        assert not any(r.supports(layer) for r in MEMORY_BOUND_ROUTINES)


def test_without_a_block_it_is_that_of_the_engine() -> None:
    from nnstretch.devices.engine.binding.library import engine

    layer = make_layer("Activation", [(1, 4, 2, 2)], (1, 4, 2, 2))
    (routine,) = [r for r in MEMORY_BOUND_ROUTINES if r.supports(layer)]
    assert routine.parameter_space(layer)[0]["block"] == engine().block
