"""Small networks in float32, written in ONNX's text form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper, parser, shape_inference


def network(text: str, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """A graph in ONNX's text form, whose nodes are named after their first output."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]>\n{text}')
    for node in proto.graph.node:
        node.name = node.output[0]
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.from_proto(shape_inference.infer_shapes(proto, strict_mode=True))


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def examples(count: int, *shape: int) -> list[dict[str, np.ndarray]]:
    """Feeds of an input x."""
    return [{"x": normal(*shape, seed=seed)} for seed in range(count)]


CLASSIFIER = """classifier (float[1,3,16,16] x) => (float[1,5] y) {
    c1 = Conv<pads=[1,1,1,1],strides=[2,2]>(x, w1, b1)  r1 = Relu(c1)
    c2 = Conv<pads=[1,1,1,1],group=8>(r1, w2, b2)  r2 = Relu(c2)
    c3 = Conv(r2, w3, b3)  s3 = Add(c3, r1)
    p = GlobalAveragePool(s3)  f = Flatten(p)  y = Gemm<transB=1>(f, w4, b4)
}"""
CLASSIFIER_WEIGHTS = {
    "w1": normal(8, 3, 3, 3) / 4,
    "b1": normal(8) / 4,
    "w2": normal(8, 1, 3, 3, seed=2) / 2,
    "b2": normal(8, seed=2) / 4,
    "w3": normal(8, 8, 1, 1, seed=3) / 2,
    "b3": normal(8, seed=3) / 4,
    "w4": normal(5, 8, seed=4) / 2,
    "b4": normal(5, seed=4) / 4,
}
"""A convolution, a depthwise separable block with a residual, and a dense layer."""


def classifier(**weights: np.ndarray) -> ir.Model:
    """The classifier, or one with other weights."""
    return network(CLASSIFIER, CLASSIFIER_WEIGHTS | weights)


DETECTOR = """detector (float[1,3,16,16] x) => (float[1,6,320] y) {
    b1 = Conv<pads=[1,1,1,1]>(x, w1)  b2 = Relu(b1)  b3 = Conv<pads=[1,1,1,1],strides=[2,2]>(b2, w2)  b4 = Relu(b3)
    d = ConvTranspose<strides=[2,2]>(b4, w3)  n = Concat<axis=1>(b2, d)
    h1 = Conv(n, w4)  h2 = Conv(b4, w5)  q1 = Reshape(h1, s1)  q2 = Reshape(h2, s2)
    j = Concat<axis=2>(q1, q2)  box, score = Split<axis=1,num_outputs=2>(j)
    e = Conv(box, w6)  p = Sigmoid(score)  y = Concat<axis=1>(e, p)
}"""
DETECTOR_HEADS = ("h1", "h2", "q1", "q2", "j", "box", "e", "p", "y")


def detector() -> ir.Model:
    """A detector of two scales with a convolution in the decoding; its heads are those in `DETECTOR_HEADS`."""
    weights = {
        "w1": normal(4, 3, 3, 3) / 4,
        "w2": normal(4, 4, 3, 3, seed=2) / 4,
        "w3": normal(4, 4, 2, 2, seed=3) / 2,
        "w4": normal(6, 8, 1, 1, seed=4) / 2,
        "w5": normal(6, 4, 1, 1, seed=5) / 2,
        "w6": normal(3, 3, 1, seed=6),
        "s1": np.array([1, 6, 256], np.int64),
        "s2": np.array([1, 6, 64], np.int64),
    }
    return network(DETECTOR, weights)
