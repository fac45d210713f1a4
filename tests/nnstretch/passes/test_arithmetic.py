"""Arithmetic, dense layers, reductions and softmax as layers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kits.graphs.textual_graphs import BATCH_NORM, CONV, Check, model_of, normal, operators


def test_a_difference_keeps_its_order(check: Check) -> None:
    check(model_of("g (float[2,4,1,1] s, float[2,4,6,5] x) => (float[2,4,6,5] y) { y = Sub(s, x) }", {}))


def test_batch_normalisation_without_convolution_is_affine(check: Check) -> None:
    text = """g (float[2,4,3,3] x) => (float[2,4,3,3] y) {
        t = BatchNormalization<epsilon=0.01>(x, gamma, beta, mean, var)
        y = Relu(t)
    }"""
    assert operators(check(model_of(text, BATCH_NORM))) == ["Affine+relu"]


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 2, 3, 2)])
def test_batch_normalisation_of_other_ranks_is_reshaped(check: Check, shape: tuple[int, ...]) -> None:
    kind = f"float[{','.join(map(str, shape))}]"
    text = f"g ({kind} x) => ({kind} y) {{ y = BatchNormalization(x, gamma, beta, mean, var) }}"
    assert operators(check(model_of(text, BATCH_NORM))) == ["Reshape+none", "Affine+none", "Reshape+none"]


@pytest.mark.parametrize(
    ("operation", "operand"),
    [
        ("Add(t, c)", normal(4, 1, 1)),
        ("Mul(c, t)", normal(1, 4, 1, 1)),
        ("Sub(c, t)", normal(1)),
        ("Sub(t, c)", normal(4, 1, 1)),
        ("Div(t, c)", np.array(3.0, np.float32)),
    ],
)
def test_arithmetic_with_channel_constants_is_folded(check: Check, operation: str, operand: np.ndarray) -> None:
    model = model_of(
        f"g (float[1,3,6,6] x) => (float[1,4,4,4] y) {{ t = Conv(x, w, b) y = {operation} }}", CONV | {"c": operand}
    )
    assert operators(check(model)) == ["Conv+none"]


@pytest.mark.parametrize(
    ("operation", "operand", "expected"),
    [
        ("Add(x, c)", normal(1, 4, 5, 5), "Add"),
        ("Mul(c, x)", normal(5), "Mul"),
        ("Div(x, c)", normal(5, 5), "Mul"),
        ("Add(x, c)", normal(4, 1, 1), "Affine"),
        ("Div(c, x)", normal(1), "onnx:Div"),
        ("Sub(c, x)", normal(5), "Mul Add"),
        ("Max(x, c)", normal(4, 5, 5), "Max"),
        ("Min(c, x)", normal(5), "Min"),
    ],
)
def test_arithmetic_with_constants_alone(check: Check, operation: str, operand: np.ndarray, expected: str) -> None:
    model = model_of(f"g (float[1,4,5,5] x) => (float[1,4,5,5] y) {{ y = {operation} }}", {"c": operand})
    assert operators(check(model)) == [f"{op}+none" for op in expected.split()]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("Mul(x, c)", "Expand Mul"),
        ("Sub(c, x)", "Expand Mul Add"),
        ("Max(x, c)", "Expand Max"),
        ("Div(c, x)", "onnx:Div"),
    ],
)
def test_tensors_that_broadcast_to_a_constant(check: Check, operation: str, expected: str) -> None:
    """As the products with a unit matrix by which attention over rows and columns repeats its weights."""
    model = model_of(f"g (float[2,3,1,1] x) => (float[2,3,4,5] y) {{ y = {operation} }}", {"c": normal(4, 5)})
    assert operators(check(model)) == [f"{op}+none" for op in expected.split()]


@pytest.mark.parametrize(
    ("operation", "other", "expected"),
    [
        ("Div(x, z)", "2,3,4,5", "Div"),
        ("Max(z, x)", "2,3,1,1", "Max"),
        ("Max(x, z, x)", "2,3,4,5", "Max Max"),
        ("Mul(x, z)", "2,1,4,5", "Expand Mul"),
        ("Sub(z, x)", "4,1", "Expand Sub"),
        ("Div(x, z)", "2,3,4,1", "Reshape Reshape Div Reshape"),
        ("Min(z, x)", "2,1,1,1", "Reshape Reshape Min Reshape"),
        ("Add(z, p)", "1,1,4,5", "GlobalPool Expand Expand Add"),
    ],
)
def test_arithmetic_of_tensors_that_broadcast(check: Check, operation: str, other: str, expected: str) -> None:
    pool = "p = GlobalMaxPool(x)" if "p" in operation else ""
    text = f"g (float[2,3,4,5] x, float[{other}] z) => (float[2,3,4,5] y) {{ {pool} y = {operation} }}"
    assert operators(check(model_of(text))) == [f"{op}+none" for op in expected.split()]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = Pow(x, two)", ["Mul+none"]),
        ("y = Pow(x, three)", ["Mul+none", "Mul+none"]),
        ("y = Pow(x, half)", ["onnx:Pow+none"]),
        ("y = Neg(x)", ["Mul+none"]),
        ("y = Abs(x)", ["Activation+leaky_relu(-1)"]),
    ],
)
def test_functions_that_are_arithmetic(check: Check, nodes: str, expected: list[str]) -> None:
    weights: dict[str, np.ndarray] = {
        "two": np.array(2, np.float32),
        "three": np.array([3], np.int64),
        "half": np.array(1.5, np.float32),
    }
    assert operators(check(model_of(f"g (float[2,3,5] x) => (float[2,3,5] y) {{ {nodes} }}", weights))) == expected


def test_dense_with_folded_factors(check: Check) -> None:
    text = """g (float[3,5] x, float[3,7] z) => (float[3,7] y) {
        t = Gemm<alpha=0.5, beta=2.0, transB=0>(x, w, c)
        u = BatchNormalization(t, gamma, beta, mean, var)
        s = Add(u, z)
        y = Relu(s)
    }"""
    norm = {"gamma": normal(7), "beta": normal(7, seed=2), "mean": normal(7, seed=3), "var": normal(7, seed=4) ** 2}
    nodes = check(model_of(text, {"w": normal(5, 7), "c": normal(1, 7)} | norm))
    assert operators(nodes) == ["Dense+relu"]
    assert nodes[0].layer.type_of(1).shape == (7, 5)


def test_matmul_and_bias_is_dense(check: Check) -> None:
    weights = {"w": normal(5, 7), "c": normal(7)}
    assert operators(
        check(model_of("g (float[3,5] x) => (float[3,7] y) { t = MatMul(x, w) y = Add(c, t) }", weights))
    ) == ["Dense+none"]
    flattened = model_of("g (float[2,3,5] x) => (float[2,3,7] y) { y = MatMul(x, w) }", weights)
    assert operators(check(flattened)) == ["Reshape+none", "Dense+none", "Reshape+none"]


def test_products_that_are_no_dense_layers(check: Check) -> None:
    transposed = model_of("g (float[5,3] x) => (float[3,7] y) { y = Gemm<transA=1>(x, w) }", {"w": normal(5, 7)})
    assert operators(check(transposed)) == ["onnx:Gemm+none"]
    product = model_of("g (float[3,5] x, float[5,2] z) => (float[3,2] y) { y = MatMul(x, z) }")
    assert operators(check(product)) == ["MatMul+none"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_mean_over_the_image_is_a_global_pool(check: Check, keep: int, axes: list[int]) -> None:
    result = "[2,4,1,1]" if keep else "[2,4]"
    model = model_of(
        f"g (float[2,4,5,3] x) => (float{result} y) {{ y = ReduceMean<keepdims={keep}>(x, a) }}", {"a": np.array(axes)}
    )
    assert [node.layer.op for node in check(model)] == ["GlobalPool"] + ["Reshape"] * (1 - keep)


def test_softmax_before_opset_13(check: Check) -> None:
    def text(axis: int) -> str:
        return f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Softmax<axis={axis}>(x) }}"

    assert operators(check(model_of(text(1), opset=11))) == ["onnx:Softmax+none"]
    assert operators(check(model_of(text(2), opset=11))) == ["Softmax+none"]
    assert operators(check(model_of(text(1), opset=13))) == ["Softmax+none"]


@pytest.mark.parametrize(
    ("operator", "axes", "keep", "expected"),
    [
        ("ReduceSum", [2, 3], 0, ["GlobalPool", "Mul", "Reshape"]),
        ("ReduceSum", [1], 1, ["Reduce"]),
        ("ReduceMean", [-1], 0, ["Reduce"]),
        ("ReduceMax", [1, 2, 3], 0, ["Reduce"]),
        ("ReduceMin", [0, 2], 1, ["Reduce", "Reduce"]),
        ("ReduceL1", [1, 3], 0, ["Reduce", "Reduce"]),
        ("ReduceSumSquare", [1, 3], 1, ["Reduce", "Reduce"]),
        ("ReduceL2", [1, 2], 1, ["Reduce"]),
        ("ReduceL2", [1, 3], 1, ["onnx:ReduceL2"]),
        ("ReduceProd", [3], 1, ["Reduce"]),
    ],
)
def test_reductions(check: Check, operator: str, axes: list[int], keep: int, expected: list[str]) -> None:
    whole = {axis % 4 for axis in axes}
    sizes = [1 if a in whole else n for a, n in enumerate((2, 3, 4, 5)) if keep or a not in whole]
    text = f"g (float[2,3,4,5] x) => (float[{','.join(map(str, sizes))}] y) {{ y = {operator}<keepdims={keep}>(x, a) }}"
    nodes = check(model_of(text, {"a": np.array(axes)}))
    assert [node.layer.op for node in nodes] == expected


@pytest.mark.parametrize("opset", [13, 20])
def test_a_reduction_of_everything(check: Check, opset: int) -> None:
    nodes = check(model_of("g (float[2,3,4] x) => (float y) { y = ReduceMean<keepdims=0>(x) }", opset=opset))
    assert [node.layer.op for node in nodes] == ["Reduce"]
