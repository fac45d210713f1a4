"""Channels-last stretches and attention in blocks of networks: what the layers are, and that results stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from nnstretch.graph.layers import GraphNode
from nnstretch.passes.tokens.movement import Movement, identity
from tests.kits.hypothesis_examples import examples

Check = Callable[..., list[GraphNode]]
_RNG = np.random.default_rng(7)


def model_of(inputs: str, outputs: str, nodes: str, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """A model in ONNX's textual syntax; each weight is an initializer."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]>\ng ({inputs}) => ({outputs}) {{ {nodes} }}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def normal(*shape: int) -> np.ndarray:
    return _RNG.normal(0, 0.5, shape).astype(np.float32)


def shape(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


def counts(nodes: Sequence[GraphNode]) -> Counter[str]:
    """How many layers of each operator there are, but views of pixels and of channels."""
    return Counter(node.layer.op for node in nodes if node.layer.op not in ("Reshape", "Slice"))


def elements_of(movement: Movement) -> np.ndarray:
    """Which element of the source each element of the result is."""
    index = np.zeros((), np.int64)
    for axis in movement.axes:
        places = np.zeros(1, np.int64)
        for factor in axis:
            places = (places[:, None] + np.arange(factor.size) * factor.stride).reshape(-1)
        index = np.add.outer(index, places)
    return index


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_movements_are_what_reshape_and_transpose_do(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    array, movement = np.arange(np.prod(sizes)).reshape(sizes), identity(sizes)
    for _ in range(4):
        if data.draw(st.booleans()):
            order = data.draw(st.permutations(range(array.ndim)))
            array, movement = array.transpose(order), movement.transposed(order)
            continue
        target = list(array.shape)
        axis = data.draw(st.integers(0, len(target) - 1))
        if axis + 1 < len(target) and data.draw(st.booleans()):
            target[axis : axis + 2] = [target[axis] * target[axis + 1]]
        else:
            part = data.draw(st.sampled_from([n for n in range(1, target[axis] + 1) if target[axis] % n == 0]))
            target[axis : axis + 1] = [part, target[axis] // part]
        moved = movement.reshaped(target)
        if moved is None:
            return
        array, movement = array.reshape(target), moved
    assert movement.shape == array.shape
    np.testing.assert_array_equal(elements_of(movement), array)
    assert movement.keeps_order == bool((array.reshape(-1) == np.arange(array.size)).all())


def test_convnext_block_has_no_transposition(check: Check) -> None:
    weights = {"d": normal(8, 1, 7, 7), "s": normal(8), "t": normal(8), "w1": normal(8, 32), "b1": normal(32)}
    weights |= {"w2": normal(32, 8), "b2": normal(8), "gamma": normal(1, 8, 1, 1)}
    nodes = """
        c = Conv<group=8, pads=[3,3,3,3]>(x, d)
        p = Transpose<perm=[0,2,3,1]>(c)
        n = LayerNormalization<axis=-1, epsilon=0.000001>(p, s, t)
        m1 = MatMul(n, w1)  a1 = Add(b1, m1)  r = Relu(a1)
        m2 = MatMul(r, w2)  a2 = Add(b2, m2)
        q = Transpose<perm=[0,3,1,2]>(a2)
        g2 = Mul(q, gamma)  y = Add(g2, x)
    """
    found = check(model_of("float[2,8,5,6] x", "float[2,8,5,6] y", nodes, weights))
    assert [node.layer.op for node in found] == ["Conv", "LayerNorm", "Conv", "Conv"]
    assert found[-1].layer.has(3)


def attention_weights(channels: int, heads: int) -> dict[str, np.ndarray]:
    depth = channels // heads
    return {
        "w": normal(channels, 3 * channels),
        "b": normal(3 * channels),
        "o": normal(channels, channels),
        "half": np.array(depth**-0.25, np.float32),
        "scale": np.array(depth**-0.5, np.float32),
    }


QKV = """
    m = MatMul(n, w)  a = Add(b, m)  h = Reshape(a, split)  t = Transpose<perm=[2,0,3,1,4]>(h)
    q1, k1, v1 = Split<axis=0, num_outputs=3>(t)
    q = Squeeze(q1, zero)  k = Squeeze(k1, zero)  v = Squeeze(v1, zero)
""".replace(", num_outputs=3", "")
MERGE = "z = Transpose<perm=[0,2,1,3]>(e)  f = Reshape(z, whole)  y0 = MatMul(f, o)"


@pytest.mark.parametrize(
    "scores",
    [
        "kt = Transpose<perm=[0,1,3,2]>(k)  qs = Mul(q, half)  ks = Mul(kt, half)  sc = MatMul(qs, ks)",
        "kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(q, kt)  sc = Mul(s0, scale)",
        "ks = Mul(scale, k)  kt = Transpose<perm=[0,1,3,2]>(ks)  sc = MatMul(q, kt)",
        "kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(q, kt)  s1 = Add(s0, bias)  sc = Mul(s1, scale)",
        "kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(q, kt)  s1 = Mul(s0, scale)  sc = Add(mask, s1)",
    ],
)
def test_vision_transformer_has_no_transposition(check: Check, scores: str) -> None:
    weights = attention_weights(12, 2) | {
        "p": normal(12, 3, 2, 2),
        "tokens": shape(1, 12, 12),
        "class": normal(1, 1, 12),
        "place": normal(1, 13, 12),
        "split": shape(1, 13, 3, 2, 6),
        "zero": shape(0),
        "whole": shape(1, 13, 12),
        "s": normal(12),
        "bias": normal(1, 2, 13, 13),
        "head": normal(12, 5),
    }
    stem = """
        c = Conv<strides=[2,2]>(x, p)  c1 = Reshape(c, tokens)  c2 = Transpose<perm=[0,2,1]>(c1)
        c3 = Concat<axis=1>(class, c2)  c4 = Add(c3, place)  n = LayerNormalization<axis=-1>(c4, s)
    """
    end = "y1 = Add(c4, y0)  first = Constant<value_int=0>()  y2 = Gather<axis=1>(y1, first)  y = MatMul(y2, head)"
    nodes = f"{stem} {QKV} {scores} w0 = Softmax<axis=-1>(sc)  e = MatMul(w0, v) {MERGE} {end}"
    inputs = "float[1,3,6,8] x, float[1,1,13,13] mask" if "mask" in scores else "float[1,3,6,8] x"
    found = counts(check(model_of(inputs, "float[1,5] y", nodes, weights)))
    assert found["Attention"] == 1
    assert not found.keys() & {"Transpose", "Rearrange", "Softmax", "onnx:MatMul", "MatMul"}


def window_nodes(shift: bool) -> str:
    """Swin's block: windows of 2 × 2 pixels, a position bias, and with `shift` a mask in five axes."""
    mask = "f5 = Reshape(s1, five)  m5 = Add(f5, mask)  sc = Reshape(m5, four)" if shift else "sc = Identity(s1)"
    return f"""
        p = Transpose<perm=[0,2,3,1]>(x)  n0 = LayerNormalization<axis=-1>(p, s)
        w6 = Reshape(n0, six)  t6 = Transpose<perm=[0,1,3,2,4,5]>(w6)  n = Reshape(t6, windows)
        {QKV}
        qs = Mul(q, scale)  kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(qs, kt)  s1 = Add(s0, bias)
        {mask}  w0 = Softmax<axis=-1>(sc)  e = MatMul(w0, v) {MERGE}
        b6 = Reshape(y0, back)  u6 = Transpose<perm=[0,1,3,2,4,5]>(b6)  b4 = Reshape(u6, image)
        r = Add(p, b4)  y = Transpose<perm=[0,3,1,2]>(r)
    """


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_windows_are_copied_once_each_way(check: Check, shift: bool, batch: int) -> None:
    weights = attention_weights(8, 2) | {
        "s": normal(8),
        "six": shape(batch, 2, 2, 3, 2, 8),
        "windows": shape(-1, 4, 8),
        "split": shape(6 * batch, 4, 3, 2, 4),
        "zero": shape(0),
        "bias": normal(1, 2, 4, 4),
        "mask": np.where(normal(1, 6, 1, 4, 4) > 0.5, -100, 0).astype(np.float32),
        "five": shape(batch, 6, 2, 4, 4),
        "four": shape(-1, 2, 4, 4),
        "whole": shape(6 * batch, 4, 8),
        "back": shape(batch, 2, 3, 2, 2, 8),
        "image": shape(batch, 4, 6, 8),
    }
    sides = f"float[{batch},8,4,6]"
    found = counts(check(model_of(f"{sides} x", f"{sides} y", window_nodes(shift), weights)))
    assert found["Attention"] == 1
    assert found["Rearrange"] == 2
    assert not found["Transpose"]


def test_patches_of_mobilevit_are_rearranged(check: Check) -> None:
    weights = {"s": normal(6), "w": normal(6, 6), "a": shape(12, 2, 3, 2), "b": shape(1, 6, 6, 4), "c": shape(4, 6, 6)}
    weights |= {"d": shape(1, 4, 6, 6), "e": shape(12, 3, 2, 2), "f": shape(1, 6, 4, 6), "k": normal(5, 6, 1, 1)}
    nodes = """
        c0 = Conv(x, k0)
        r1 = Reshape(c0, a)  t1 = Transpose<perm=[0,2,1,3]>(r1)  r2 = Reshape(t1, b)  t2 = Transpose<perm=[0,3,2,1]>(r2)
        r3 = Reshape(t2, c)  n = LayerNormalization<axis=-1>(r3, s)  m = MatMul(n, w)
        r4 = Reshape(m, d)  t4 = Transpose<perm=[0,3,2,1]>(r4)  r5 = Reshape(t4, e)  t5 = Transpose<perm=[0,2,1,3]>(r5)
        r6 = Reshape(t5, f)  y = Conv(r6, k)
    """
    found = counts(check(model_of("float[1,3,4,6] x", "float[1,5,4,6] y", nodes, weights | {"k0": normal(6, 3, 1, 1)})))
    assert found == {"Conv": 3, "LayerNorm": 1, "Rearrange": 2}


def test_heads_beside_each_other_reorder_the_weights(check: Check) -> None:
    """Query, key and value of a head are neighbours (MaxViT)."""
    weights = attention_weights(8, 2) | {"split": shape(3, 10, 2, 12), "whole": shape(3, 10, 8)}
    nodes = f"""
        m = MatMul(x, w)  a = Add(b, m)  h = Reshape(a, split)  t = Transpose<perm=[0,2,1,3]>(h)
        q, k, v = Split<axis=3>(t)
        kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(q, kt)  sc = Mul(s0, scale)
        w0 = Softmax<axis=-1>(sc)  e = MatMul(w0, v) {MERGE}  y = Relu(y0)
    """
    found = counts(check(model_of("float[3,10,8] x", "float[3,10,8] y", nodes, weights)))
    assert found["Attention"] == 1
    assert not found["Softmax"]


def test_heads_beside_each_other_reorder_convolutions(check: Check) -> None:
    """The same on channels that come first (CoAtNet)."""
    weights = {"w": normal(24, 5, 1, 1), "b": normal(24), "split": shape(1, 2, 12, 12), "image": shape(1, 8, 3, 4)}
    nodes = """
        c = Conv(x, w, b)  h = Reshape(c, split)  q0, k, v0 = Split<axis=2>(h)
        q = Transpose<perm=[0,1,3,2]>(q0)  s0 = MatMul(q, k)  w0 = Softmax<axis=-1>(s0)
        v = Transpose<perm=[0,1,3,2]>(v0)  e = MatMul(w0, v)  t = Transpose<perm=[0,1,3,2]>(e)  y = Reshape(t, image)
    """
    found = counts(check(model_of("float[1,5,3,4] x", "float[1,8,3,4] y", nodes, weights)))
    assert found == {"Conv": 1, "Attention": 1}


def test_heads_beside_each_other_behind_a_normalisation_of_rows(check: Check) -> None:
    """Products whose batch normalisation sees tokens as rows (LeViT), with a bias per head."""
    weights = {"w": normal(8, 24), "split": shape(1, 12, 2, 12), "whole": shape(1, 12, 8), "k0": normal(8, 3, 1, 1)}
    weights |= {"rows": shape(12, 24), "three": shape(1, 12, 24), "tokens": shape(1, 8, 12), "bias": normal(2, 12, 12)}
    weights |= {name: np.abs(normal(24)) + 0.5 for name in ("gamma", "beta", "mean", "variance")}
    nodes = """
        c = Conv(x, k0)  c1 = Reshape(c, tokens)  n = Transpose<perm=[0,2,1]>(c1)
        m = MatMul(n, w)  m1 = Reshape(m, rows)  m2 = BatchNormalization(m1, gamma, beta, mean, variance)
        m3 = Reshape(m2, three)  h = Reshape(m3, split)  q0, k0s, v0 = Split<axis=3>(h)
        q = Transpose<perm=[0,2,1,3]>(q0)  kt = Transpose<perm=[0,2,3,1]>(k0s)  v = Transpose<perm=[0,2,1,3]>(v0)
        s0 = MatMul(q, kt)  s1 = Add(s0, bias)  w0 = Softmax<axis=-1>(s1)  e = MatMul(w0, v)
        z = Transpose<perm=[0,2,1,3]>(e)  y = Reshape(z, whole)
    """
    found = counts(check(model_of("float[1,3,3,4] x", "float[1,12,8] y", nodes, weights)))
    assert found["Attention"] == 1
    assert found["Conv"] == 2
    assert not found["Softmax"]


def test_heads_on_the_channels_of_convolutions(check: Check) -> None:
    """Queries, keys and values that convolutions make, with fewer keys than queries and wider values."""
    weights = {"wq": normal(8, 5, 1, 1), "wk": normal(8, 5, 1, 1), "wv": normal(24, 5, 1, 1), "scale": normal(1)}
    weights |= {"sq": shape(1, 2, 4, 12), "sv": shape(1, 2, 12, 12), "image": shape(1, 24, 3, 4)}
    nodes = """
        cq = Conv(x, wq)  ck = Conv(x, wk)  cv = Conv(x, wv)
        q0 = Reshape(cq, sq)  q = Transpose<perm=[0,1,3,2]>(q0)  k = Reshape(ck, sq)
        v0 = Reshape(cv, sv)  v = Transpose<perm=[0,1,3,2]>(v0)
        s0 = MatMul(q, k)  sc = Mul(s0, scale)  w0 = Softmax<axis=-1>(sc)  e = MatMul(w0, v)
        t = Transpose<perm=[0,1,3,2]>(e)  y = Reshape(t, image)
    """
    found = counts(check(model_of("float[1,5,3,4] x", "float[1,24,3,4] y", nodes, weights)))
    assert found == {"Conv": 3, "Attention": 1}


def test_talking_heads_are_left_alone(check: Check) -> None:
    weights = {"mix": normal(2, 2, 1, 1)}
    nodes = "s0 = MatMul(q, k)  s1 = Conv(s0, mix)  w0 = Softmax<axis=-1>(s1)  y = MatMul(w0, v)"
    inputs = "float[1,2,5,4] q, float[1,2,4,6] k, float[1,2,6,3] v"
    found = counts(check(model_of(inputs, "float[1,2,5,3] y", nodes, weights)))
    assert found == {"MatMul": 2, "Conv": 1, "Softmax": 1}


def test_products_take_transpositions_and_activations_in(check: Check) -> None:
    nodes = "t = Transpose<perm=[0,2,1]>(b)  m = MatMul(a, t)  y = Relu(m)"
    (node,) = check(model_of("float[3,5,4] a, float[3,6,4] b", "float[3,5,6] y", nodes, {}))
    assert node.layer.op == "MatMul"
    assert node.layer.attributes["transpose_y"] == 1


def test_attention_over_channels_is_left_alone(check: Check) -> None:
    """Scores between channels (cross-covariance): a head's tokens are no range of channels of one tensor."""
    nodes = """
        h = Reshape(x, split)  t = Transpose<perm=[2,0,3,4,1]>(h)  q1, k1, v1 = Split<axis=0>(t)
        q = Squeeze(q1, zero)  k = Squeeze(k1, zero)  v = Squeeze(v1, zero)
        kt = Transpose<perm=[0,1,3,2]>(k)  s0 = MatMul(q, kt)  w0 = Softmax<axis=-1>(s0)  e = MatMul(w0, v)
        u = Transpose<perm=[0,3,1,2]>(e)  y = Reshape(u, whole)
    """
    weights = {"split": shape(1, 10, 3, 2, 4), "zero": shape(0), "whole": shape(1, 10, 8)}
    check(model_of("float[1,10,24] x", "float[1,10,8] y", nodes, weights))


def test_products_of_plain_tokens_stay_dense_layers(check: Check) -> None:
    """Converting tensors that no convolution makes or reads would add transpositions."""
    weights = {"w": normal(6, 9), "b": normal(9)}
    nodes = "m = MatMul(x, w)  y = Add(b, m)"
    found = counts(check(model_of("float[2,12,6] x", "float[2,12,9] y", nodes, weights)))
    assert found == {"Dense": 1}


def test_a_gate_whose_first_axis_is_that_of_pixels(check: Check) -> None:
    """Two images of two pixels: what has a row per pixel has one per image elsewhere."""
    nodes = """
        c = Conv(x, w)
        r = Reshape(c, rows)
        t = Transpose<perm=[0,2,1]>(r)
        p = GlobalAveragePool(c)
        g = Reshape(p, gates)
        m = Mul(t, g)
        u = Transpose<perm=[0,2,1]>(m)
        v = Reshape(u, pixels)
        y = Conv(v, w2)
    """
    weights = {"w": normal(8, 4, 1, 1), "w2": normal(8, 8, 1, 1)}
    weights |= {"rows": shape(2, 8, 2), "gates": shape(2, 8), "pixels": shape(2, 8, 1, 2)}
    check(model_of("float[2,4,1,2] x", "float[2,8,1,2] y", nodes, weights))
