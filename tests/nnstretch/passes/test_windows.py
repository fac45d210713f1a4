"""Convolutions and pools: pads, windows, one axis, transposed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nnstretch.graph.activation import ActivationKind
from tests.kits.graphs.textual_graphs import CONV, Check, model_of, normal, operators


def test_pool_over_the_whole_image_is_a_global_pool(check: Check) -> None:
    model = model_of("g (float[2,4,5,3] x) => (float[2,4,1,1] y) { y = MaxPool<kernel_shape=[5,3]>(x) }")
    (node,) = check(model)
    assert (node.layer.op, node.layer.attributes["mode"]) == ("GlobalPool", "max")


def test_pads_go_into_windows(check: Check) -> None:
    pads = {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "lowest": np.array(-np.inf, np.float32)}
    conv = model_of("g (float[1,3,6,6] x) => (float[1,4,5,7] y) { t = Pad(x, p) y = Conv(t, w, b) }", pads | CONV)
    (node,) = check(conv)
    assert node.layer.ints("pads") == (1, 2, 0, 1)
    mean = model_of(
        "g (float[1,3,6,6] x) => (float[1,3,5,7] y) { t = Pad(x, p) y = AveragePool<kernel_shape=[3,3]>(t) }", pads
    )
    (node,) = check(mean)
    assert (node.layer.ints("pads"), node.layer.attributes["count_include_pad"]) == ((1, 2, 0, 1), 1)
    largest = "g (float[1,3,6,6] x) => (float[1,3,5,7] y) { t = Pad(x, p%s) y = MaxPool<kernel_shape=[3,3]>(t) }"
    assert operators(check(model_of(largest % ", lowest", pads))) == ["MaxPool+none"]
    # Zeros are larger than what else there is, unless an activation says that there is nothing below zero.
    assert operators(check(model_of(largest % "", pads))) == ["Pad+none", "MaxPool+none"]
    positive = largest.replace("t = Pad(x,", "r = Relu(x) t = Pad(r,") % ""
    assert operators(check(model_of(positive, pads))) == ["Activation+relu", "MaxPool+none"]


@pytest.mark.parametrize("pool", ["AveragePool", "MaxPool"])
def test_windows_that_lie_in_the_pads_keep_the_pad(check: Check, pool: str) -> None:
    text = f"""g (float[1,3,6,6] x) => (float[1,3,4,4] y) {{
        r = Relu(x)
        t = Pad(r, p)
        y = {pool}<kernel_shape=[1,2], strides=[2,2]>(t)
    }}"""
    nodes = check(model_of(text, {"p": np.array([0, 0, 1, 1, 0, 0, 0, 1])}))
    assert operators(nodes) == ["Activation+relu", "Pad+none", f"{pool}+none"]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads_are_resolved(check: Check, auto_pad: str) -> None:
    size = 2 if auto_pad == "VALID" else 3
    text = f"""g (float[1,3,6,6] x) => (float[1,4,{size},{size}] y) {{
        y = Conv<auto_pad="{auto_pad}", strides=[2,2]>(x, w, b)
    }}"""
    assert operators(check(model_of(text, CONV))) == ["Conv+none"]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize("pad", [0, 1])
def test_ceil_mode_is_resolved(check: Check, operator: str, size: int, pad: int) -> None:
    result = math.ceil((size + 2 * pad - 3) / 2) + 1
    if (result - 1) * 2 >= size + pad:
        result -= 1
    text = f"""g (float[1,3,{size},{size}] x) => (float[1,3,{result},{result}] y) {{
        y = {operator}<kernel_shape=[3,3], strides=[2,2], pads=[{pad},{pad},{pad},{pad}], ceil_mode=1>(x)
    }}"""
    assert operators(check(model_of(text))) == [f"{operator}+none"]


def test_pads_that_torch_writes_for_a_stem_are_the_convolution_s(check: Check) -> None:
    """Pads of the last axes first, which become ONNX's order by a ConstantOfShape, Reshape, Slice and Transpose."""
    text = """g (float[1,3,8,8] x) => (float[1,4,4,4] y) {
        rest = ConstantOfShape<value = int64[1] {0}>(four)
        all = Concat<axis=0>(pads, rest)
        rows = Reshape(all, pairs)
        back = Slice(rows, last, first, axis, last)
        columns = Transpose<perm=[1,0]>(back)
        flat = Reshape(columns, last)
        p = Pad(x, flat, zero)
        s = Shape(p)
        y = Conv<strides=[2,2]>(p, w, b)
    }"""
    weights = {
        "four": np.array([4]),
        "pads": np.array([0, 1, 0, 1]),
        "pairs": np.array([-1, 2]),
        "last": np.array([-1]),
        "first": np.array([-(2**63) + 1]),
        "axis": np.array([0]),
        "zero": np.zeros((), np.float32),
    }
    (node,) = check(model_of(text, weights | CONV))
    assert (node.layer.op, node.layer.ints("pads")) == ("Conv", (0, 0, 1, 1))


@pytest.mark.parametrize("attributes", ["group=3, pads=[2,1], strides=[2]", 'auto_pad="SAME_UPPER", group=3'])
def test_a_convolution_of_one_axis_is_one_of_two(check: Check, attributes: str) -> None:
    length = 5 if "strides" in attributes else 9
    text = f"g (float[2,3,9] x) => (float[2,6,{length}] y) {{ y = Conv<{attributes}>(x, w, b) }}"
    nodes = check(model_of(text, {"w": normal(6, 1, 4 if "strides" in attributes else 3), "b": normal(6)}))
    assert [node.layer.op for node in nodes] == ["Reshape", "Conv", "Reshape"]


@pytest.mark.parametrize(
    ("operator", "length", "expected"),
    [
        ("MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>", 5, "MaxPool"),
        ("AveragePool<kernel_shape=[2], strides=[2], ceil_mode=1>", 5, "AveragePool"),
        ("AveragePool<kernel_shape=[9]>", 1, "GlobalPool"),
    ],
)
def test_a_pool_of_one_axis_is_one_of_two(check: Check, operator: str, length: int, expected: str) -> None:
    nodes = check(model_of(f"g (float[2,6,9] x) => (float[2,6,{length}] y) {{ y = {operator}(x) }}"))
    assert [node.layer.op for node in nodes] == ["Reshape", expected, "Reshape"]


@pytest.mark.parametrize(
    ("attributes", "weight", "size", "expected"),
    [
        ("strides=[2,2]", (6, 4, 2, 2), (10, 12), ["Conv", "DepthToSpace"]),
        ("strides=[2,2], pads=[1,1,1,1]", (6, 4, 4, 4), (10, 12), [*["Conv"] * 4, "Concat", "DepthToSpace"]),
        ("strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]", (6, 4, 3, 3), (10, 12), None),
        ("strides=[2,2], pads=[1,0,0,1], group=2", (6, 2, 3, 3), (10, 12), None),
        ("strides=[3,3], pads=[2,0,3,1]", (6, 4, 5, 4), (12, 18), None),
        ("strides=[4,4]", (6, 4, 3, 3), (19, 23), None),
        ("pads=[1,1,0,2]", (6, 4, 3, 3), (6, 5), ["Conv"]),
        ('strides=[2,2], auto_pad="SAME_UPPER"', (6, 4, 3, 3), (10, 12), None),
        ("strides=[2,2], output_shape=[11,12]", (6, 4, 5, 4), (11, 12), None),
        ("strides=[2,2], pads=[4,4,4,4]", (6, 4, 3, 3), (3, 5), None),
        ("strides=[2,1]", (6, 4, 2, 2), (10, 7), ["onnx:ConvTranspose"]),
    ],
)
def test_transposed_convolutions(
    check: Check, attributes: str, weight: tuple[int, ...], size: tuple[int, int], expected: list[str] | None
) -> None:
    text = f"g (float[2,6,5,6] x) => (float[2,4,{size[0]},{size[1]}] y) {{ y = ConvTranspose<{attributes}>(x, w, b) }}"
    found = [node.layer.op for node in check(model_of(text, {"w": normal(*weight), "b": normal(4)}))]
    assert found == expected if expected else "onnx:ConvTranspose" not in found


@pytest.mark.parametrize("taps", [2, 4])
def test_what_follows_a_transposed_convolution_goes_into_its_phases(check: Check, taps: int) -> None:
    pads = "" if taps == 2 else ", pads=[1,1,1,1]"
    text = f"""g (float[1,6,5,6] x) => (float[1,4,10,12] y) {{
        t = ConvTranspose<strides=[2,2]{pads}>(x, w)
        u = BatchNormalization(t, gain, shift, shift, gain)
        y = Relu(u)
    }}"""
    weights = {"w": normal(6, 4, taps, taps), "gain": np.abs(normal(4)), "shift": normal(4, seed=2)}
    nodes = check(model_of(text, weights))
    assert {node.layer.op for node in nodes} <= {"Conv", "Concat", "DepthToSpace"}
    assert all(node.layer.activation.kind == ActivationKind.RELU for node in nodes if node.layer.op == "Conv")


@pytest.mark.parametrize(
    ("pads", "mode", "expected"),
    [
        ([0, 0, 1, 2, 0, 0, 0, 1], "constant", 1),
        ([0, 0, 1, 2, 0, 0, 0, 1], "reflect", 1),
        ([0, 0, 3, 2, 0, 0, 4, 1], "wrap", 1),
        ([0, 2, 1, 0, 0, 0, 0, 0], "edge", 2),
        ([1, 2, 1, 2, 0, 0, 0, 0], "constant", 2),
        ([1, 0, 0, 2, 0, 0, 0, 0], "constant", 2),
        ([0, 0, -1, 2, 0, 0, 0, 0], "edge", 0),
    ],
)
def test_pads_that_no_layer_takes(check: Check, pads: list[int], mode: str, expected: int) -> None:
    sizes = [n + pads[a] + pads[4 + a] for a, n in enumerate((2, 3, 4, 5))]
    text = f'g (float[2,3,4,5] x) => (float[{",".join(map(str, sizes))}] y) {{ y = Pad<mode="{mode}">(x, p, v) }}'
    nodes = check(model_of(text, {"p": np.array(pads), "v": np.array(0.5, np.float32)}))
    assert [node.layer.op for node in nodes] == (["Pad"] * expected or ["onnx:Pad"])


@pytest.mark.parametrize(
    ("pads", "expected"),
    [
        ([0, 0, -1, 2, 0, 0, 0, 0], ["Slice", "Pad"]),
        ([0, 0, -1, -2, 0, 0, 1, 1], ["Slice", "Pad"]),
        ([0, -1, 0, 0, 0, -1, -1, -2], ["Slice"]),
    ],
)
def test_pads_that_crop(check: Check, pads: list[int], expected: list[str]) -> None:
    sizes = [n + pads[a] + pads[4 + a] for a, n in enumerate((2, 3, 4, 5))]
    text = f"g (float[2,3,4,5] x) => (float[{','.join(map(str, sizes))}] y) {{ y = Pad(x, p, v) }}"
    nodes = check(model_of(text, {"p": np.array(pads), "v": np.array(0.5, np.float32)}))
    assert [node.layer.op for node in nodes] == expected
