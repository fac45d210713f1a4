"""Operators that move elements: transpositions, slices, reshapes, resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from tests.kits.graphs.textual_graphs import Check, model_of, normal, operators


def test_a_slice_that_reverses_is_kept(check: Check) -> None:
    weights = {name: np.array([value]) for name, value in (("begin", -1), ("end", -6), ("axis", 3), ("step", -1))}
    check(
        model_of(
            "g (float[2,4,6,5] x) => (float[2,4,6,5] y) { s = Slice(x, begin, end, axis, step) y = Relu(s) }", weights
        )
    )


def test_shape_arithmetic_becomes_one_reshape(check: Check) -> None:
    text = """g (float[2,3,4,4] x) => (float[2,48] y) {
        s = Shape(x)
        n = Gather<axis=0>(s, first)
        u = Unsqueeze(n, axis)
        t = Concat<axis=0>(u, rest)
        q = Reshape(x, t)
        r = Unsqueeze(q, axis)
        y = Squeeze(r, axis)
    }"""
    weights = {"first": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    assert operators(check(model_of(text, weights))) == ["Reshape+none"]


def test_transposition_of_single_elements_is_a_reshape(check: Check) -> None:
    model = model_of("g (float[2,1,4,1] x) => (float[1,2,1,4] y) { y = Transpose<perm=[3,0,1,2]>(x) }")
    assert operators(check(model)) == ["Reshape+none"]
    model = model_of("g (float[2,1,4,1] x) => (float[4,1,2,1] y) { y = Transpose<perm=[2,1,0,3]>(x) }")
    assert operators(check(model)) == ["Transpose+none"]


def test_transpositions_move_axes(check: Check) -> None:
    model = model_of("g (float[2,3,4,5] x) => (float[2,4,5,3] y) { y = Transpose<perm=[0,2,3,1]>(x) }")
    (node,) = check(model)
    assert (node.layer.op, node.layer.ints("perm")) == ("Transpose", (0, 2, 3, 1))
    (node,) = check(model_of("g (float[2,3,4] x) => (float[4,3,2] y) { y = Transpose(x) }"))
    assert node.layer.ints("perm") == (2, 1, 0)


@pytest.mark.parametrize(
    ("bounds", "result", "starts", "steps"),
    [
        (((1,), (3,), (1,)), (2, 2, 8), (0, 1, 0), (1, 1, 1)),
        (((-2, 1), (2**62, -1), (1, -1)), (2, 2, 6), (0, 3, 1), (1, 1, 1)),
        (((1, 0), (8, 5), (2, 1), (3, 2)), (2, 3, 3), (0, 0, 1), (1, 2, 3)),
    ],
)
def test_slice(
    check: Check,
    bounds: tuple[tuple[int, ...], ...],
    result: tuple[int, ...],
    starts: tuple[int, ...],
    steps: tuple[int, ...],
) -> None:
    weights = {f"b{index}": np.array(values) for index, values in enumerate(bounds)}
    shape = ",".join(map(str, result))
    (node,) = check(
        model_of(f"g (float[2,5,8] x) => (float[{shape}] y) {{ y = Slice(x, {', '.join(weights)}) }}", weights)
    )
    assert (node.layer.op, node.layer.ints("starts"), node.layer.ints("steps")) == ("Slice", starts, steps)


def test_slice_of_opset_9_and_slices_that_go_backwards(check: Check) -> None:
    old = model_of("g (float[2,5] x) => (float[2,3] y) { y = Slice<starts=[2], ends=[9], axes=[1]>(x) }", opset=9)
    (node,) = check(old)
    assert (node.layer.op, node.layer.ints("starts")) == ("Slice", (0, 2))
    backwards = {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([1]), "t": np.array([-1])}
    model = model_of("g (float[2,5] x) => (float[2,5] y) { y = Slice(x, s, e, a, t) }", backwards)
    assert operators(check(model)) == ["onnx:Slice+none"]


def test_split_is_a_slice_for_every_part_that_is_used(check: Check) -> None:
    text = """g (float[2,6,4] x) => (float[2,1,4] a, float[2,2,4] y) {
        a, b, c = Split<axis=-2>(x, sizes)
        y = Relu(c)
    }"""
    nodes = check(model_of(text, {"sizes": np.array([1, 3, 2])}))
    assert operators(nodes) == ["Slice+none", "Slice+none", "Activation+relu"]
    assert [node.layer.ints("starts") for node in nodes[:2]] == [(0, 0, 0), (0, 4, 0)]


COORDINATES = ("half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners", "pytorch_half_pixel")
ROUNDING = [
    f'mode="nearest", nearest_mode="{name}"' for name in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
]
INTERPOLATION = [
    'mode="linear"',
    'mode="cubic"',
    'mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1',
    'mode="linear", antialias=1',
    'mode="cubic", antialias=1, exclude_outside=1',
]


@pytest.mark.parametrize("mode", [*ROUNDING, *INTERPOLATION])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scales", [(2.0, 3.0), (1.3, 0.6), (1.1, 1.06)])
def test_resize(check: Check, mode: str, coordinates: str, scales: tuple[float, float]) -> None:
    height, width = (math.floor(7 * scale) for scale in scales)
    text = f"""g (float[1,2,7,7] x) => (float[1,2,{height},{width}] y) {{
        y = Resize<{mode}, coordinate_transformation_mode="{coordinates}">(x, , s)
    }}"""
    model = model_of(text, {"s": np.array([1.0, 1.0, *scales], np.float32)})
    left = mode in ROUNDING and coordinates == "half_pixel_symmetric"
    assert operators(check(model)) == ["onnx:Resize+none" if left else "Resize+none"]


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "expected"),
    [
        ("y = Gather<axis=-1>(x, i)", "2,3,4", {"i": np.array(-1)}, ["Slice", "Reshape"]),
        ("y = Gather<axis=1>(x, i)", "2,2,4,5", {"i": np.array([0, 2])}, ["Slice"]),
        ("y = Gather<axis=1>(x, i)", "2,2,4,5", {"i": np.array([2, 0])}, ["onnx:Gather"]),
        ("y = Concat<axis=2>(c, x, c)", "2,3,8,5", {"c": normal(2, 3, 2, 5)}, ["Concat"]),
        ("y = Expand(x, s)", "4,2,3,4,5", {"s": np.array([4, 1, 1, 1, 1])}, ["Expand"]),
        ("y = Tile(x, s)", "4,3,8,15", {"s": np.array([2, 1, 2, 3])}, ["Reshape", "Expand", "Reshape"]),
        (
            "p = GlobalMaxPool(x) t = Expand(p, s) y = Mul(t, x)",
            "2,3,4,5",
            {"s": np.array([2, 3, 4, 5])},
            ["GlobalPool", "Mul"],
        ),
        (
            "t = Conv(x, w) y = SpaceToDepth<blocksize=2>(t)",
            "2,16,2,2",
            {"w": normal(4, 3, 1, 2)},
            ["Conv", "SpaceToDepth"],
        ),
    ],
)
def test_elements_are_moved(
    check: Check, nodes: str, shape: str, weights: Mapping[str, np.ndarray], expected: list[str]
) -> None:
    found = check(model_of(f"g (float[2,3,4,5] x) => (float[{shape}] y) {{ {nodes} }}", weights))
    assert [node.layer.op for node in found] == expected


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_a_convolution_makes_channels_in_the_order_of_whole_blocks(check: Check, mode: str) -> None:
    text = f"""g (float[1,3,4,4] x) => (float[1,2,8,8] y) {{
        t = Conv(x, w, b)
        u = Relu(t)
        y = DepthToSpace<blocksize=2, mode="{mode}">(u)
    }}"""
    first, second = check(model_of(text, {"w": normal(8, 3, 1, 1), "b": normal(8)}))
    assert (first.layer.op, second.layer.op, second.layer.attributes["mode"]) == ("Conv", "DepthToSpace", "DCR")


def test_resize_by_sizes_and_of_other_kinds(check: Check) -> None:
    sizes = {"s": np.array([1, 2, 10, 3])}
    by_size = 'g (float[1,2,7,7] x) => (float[1,2,10,3] y) { y = Resize<mode="%s">(x, , , s) }'
    assert operators(check(model_of(by_size % "linear", sizes))) == ["Resize+none"]
    cropping = {"r": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), **sizes}
    by_crop = by_size.replace("x, ", "x, r") % 'linear", coordinate_transformation_mode="tf_crop_and_resize'
    assert operators(check(model_of(by_crop, cropping))) == ["onnx:Resize+none"]
    by_axes = model_of(
        "g (float[1,2,7,7] x) => (float[1,2,14,7] y) { y = Resize<axes=[2]>(x, , s) }",
        {"s": np.array([2.0], np.float32)},
    )
    assert operators(check(by_axes)) == ["Resize+none"]


def test_views_with_axes_of_one_length_are_told_apart(check: Check) -> None:
    """A view whose last axis is its base's channels is imported with other channels, as rotary embeddings need."""
    text = """g (float[2,4,3,8] x, float[2,3,8,2] z) => (float[2,4,3,8] y) {
        a = Transpose<perm=[0,2,1,3]>(x)
        q = Slice(a, four, eight, last)
        e = Relu(z)
        f = Reshape(e, shape)
        c = Concat<axis=-1>(f, q)
        y = Transpose<perm=[0,2,1,3]>(c)
    }"""
    weights = {
        "four": np.array([4]),
        "eight": np.array([8]),
        "last": np.array([3]),
        "shape": np.array([2, 3, 4, 4]),
    }
    check(model_of(text, weights))


def boxed(*ranges: tuple[int, int]) -> np.ndarray:
    """The indices of a box, row by row."""
    sizes = [end - begin for begin, end in ranges]
    grid = np.moveaxis(np.indices(sizes), 0, -1) + np.array([begin for begin, _ in ranges])
    return np.asarray(grid, np.int64)


@pytest.mark.parametrize("source", ["float[2,4,5] x, ", ""], ids=["an input", "a constant"])
@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        (boxed((0, 2), (0, 4), (0, 5)), set()),
        (boxed((0, 2), (1, 4), (0, 5)), {"Concat"}),
        (boxed((0, 2), (1, 3), (1, 5)), {"Concat"}),
        (boxed((1, 2), (3, 4)), {"Concat"}),
        (boxed((1, 2)) - 2, {"Concat"}),
        (boxed((0, 2), (1, 3), (1, 5))[:, ::-1], {"onnx:ScatterND"}),
        (boxed((0, 2), (0, 4), (0, 5))[:, ::2], {"onnx:ScatterND"}),
    ],
)
def test_assignment_to_a_part(check: Check, source: str, indices: np.ndarray, expected: set[str]) -> None:
    of_updates = (*indices.shape[:-1], *(2, 4, 5)[indices.shape[-1] :])
    text = f"""g ({source}float[{",".join(map(str, of_updates))}] u) => (float[2,4,5] y) {{
        r = Relu(u)
        y = ScatterND(x, i, r)
    }}"""
    weights = {"i": indices} | ({} if source else {"x": normal(2, 4, 5)})
    nodes = check(model_of(text, weights))
    assert expected <= {node.layer.op for node in nodes} <= expected | {"Activation", "Slice", "Reshape"}


_WINDOWS = np.arange(2)[:, None] * 8 + np.arange(12)


@pytest.mark.parametrize(
    ("indices", "wanted"),
    [
        (np.arange(20).reshape(1, 20, 1, 1), ["Reshape"]),  # `as_strided` of a dense tensor
        (np.arange(20).reshape(2, 5, 2), ["Reshape"]),
        (np.arange(6).reshape(2, 3) - 14, ["Slice", "Reshape"]),
        (np.arange(20).reshape(5, 4).T, ["Reshape", "Transpose"]),  # windows side by side
        (3 + 2 * np.arange(8).reshape(2, 2, 2).transpose(2, 0, 1), ["Slice", "Reshape", "Transpose"]),
        (_WINDOWS, ["Slice", "Slice", "Concat", "Reshape"]),  # windows that overlap
        (_WINDOWS.T, ["Slice", "Slice", "Concat", "Reshape", "Transpose"]),
        (
            np.arange(3)[:, None] * 7 + np.arange(4),
            ["Slice", "Slice", "Slice", "Concat", "Reshape"],
        ),  # gaps between them
        (np.array(-3), ["Slice", "Reshape"]),
        (np.array([4, 7, 10]), ["Slice"]),
    ],
)
def test_gather_of_places_at_equal_distances(check: Check, indices: np.ndarray, wanted: list[str]) -> None:
    shape = ",".join(map(str, (3, *indices.shape, 5)))
    text = f"g (float[3,20,5] x) => (float[{shape}] y) {{ g = Gather<axis=1>(x, places) y = Relu(g) }}"
    nodes = check(model_of(text, {"places": indices}))
    assert [node.layer.op for node in nodes if node.layer.op != "Activation"] == wanted


@pytest.mark.parametrize(
    "indices", [[[0, 1], [2, 4]], [[3, 2], [1, 0]], [[1, 1], [2, 2]], np.arange(40).reshape(20, 2) % 7]
)
def test_gather_of_other_places_is_kept(check: Check, indices: list[list[int]]) -> None:
    places = np.array(indices)
    shape = ",".join(map(str, (3, *places.shape, 5)))
    nodes = check(
        model_of(f"g (float[3,20,5] x) => (float[{shape}] y) {{ y = Gather<axis=1>(x, places) }}", {"places": places})
    )
    assert "onnx:Gather" in [node.layer.op for node in nodes]
