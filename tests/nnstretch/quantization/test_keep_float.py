"""Layers that stay in float32: by name, heads of detectors, shared weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.errors import UsageError
from nnstretch.frontends.onnx_file import load
from nnstretch.quantization import KeepFloat, QuantizationOptions, quantize
from nnstretch.quantization.heads import head_nodes, is_detector
from tests.kits.graphs.float_networks import DETECTOR_HEADS, classifier, detector, examples, network, normal

SHAPE = (1, 3, 16, 16)


def quantised(model: ir.Model, file: Path, *keep: str) -> dict[str, ir.Node]:
    """Nodes by name of the file that is written."""
    quantize(model, examples(3, *SHAPE), file, QuantizationOptions(keep_float=KeepFloat.parse(keep)))
    return {str(node.name): node for node in load(file).graph}


def has_int8_weights(node: ir.Node) -> bool:
    value = node.inputs[1]
    assert value is not None
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def test_what_parsing_understands() -> None:
    assert KeepFloat.parse([]) == KeepFloat.parse(["auto"]) == KeepFloat("auto", 0, ())
    assert KeepFloat.parse(["auto:3", "stem.*"]) == KeepFloat("auto", 3, ("stem.*",))
    assert KeepFloat.parse(["none", "a", "b"]) == KeepFloat("none", 0, ("a", "b"))
    for wrong in (["auto:0"], ["auto:x"], ["auto:"], ["auto:-1"], ["heads", "none"], ["auto:2", "auto:3"]):
        with pytest.raises(UsageError, match="--keep-float"):
            KeepFloat.parse(wrong)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("stem", ["stem/Conv", "stem.1/Relu"]),
        ("stem/Conv", ["stem/Conv"]),
        ("*.1", ["stem.1/Relu", "body.1/Conv"]),
        ("body.?/Conv", ["body.1/Conv"]),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    text = """named (float[1,3,16,16] x) => (float[1,3,16,16] y) {
        a = Conv(x, w) b = Relu(a) c = Conv(b, w) y = Conv(c, w)
    }"""
    model = network(text, {"w": normal(3, 3, 1, 1)})
    for node, name in zip(model.graph, ("stem/Conv", "stem.1/Relu", "body.1/Conv", "stemmed/Conv"), strict=True):
        node.name = name
    assert list(KeepFloat("none", 0, (pattern,)).named(model)) == names
    with pytest.raises(UsageError, match=r"'tail'.*stem/Conv"):
        KeepFloat("none", 0, ("tail",)).named(model)


def test_named_layers_stay_as_they_are(tmp_path: Path) -> None:
    nodes = quantised(classifier(), tmp_path / "q.onnx", "c2", "y")
    assert [name for name in ("c1", "c2", "c3", "y") if has_int8_weights(nodes[name])] == ["c1", "c3"]
    weights = nodes["c2"].inputs[1]
    assert weights is not None and weights.const_value is not None
    np.testing.assert_array_equal(weights.const_value.numpy(), normal(8, 1, 3, 3, seed=2) / 2)


def test_a_shared_weight_is_float_where_its_layer_is(tmp_path: Path) -> None:
    text = """shared (float[1,3,16,16] x) => (float[1,3,16,16] y) {
        a = Conv(x, w) b = Relu(a) c = Conv(b, w) d = Relu(c) y = Conv(d, v)
    }"""
    nodes = quantised(network(text, {"w": normal(3, 3, 1, 1), "v": normal(3, 3, 1, 1)}), tmp_path / "q.onnx", "c")
    assert [has_int8_weights(nodes[name]) for name in ("a", "c", "y")] == [True, False, True]


def test_heads_of_detectors_stay(tmp_path: Path) -> None:
    model = detector()
    assert is_detector(model)
    assert tuple(node.name for node in head_nodes(model)) == DETECTOR_HEADS
    nodes = quantised(model, tmp_path / "q.onnx")
    assert [has_int8_weights(nodes[name]) for name in ("b1", "b3", "d", "h1", "h2", "e")] == [True] * 3 + [False] * 3
    behind = ("q1", "q2", "j", "box", "e", "p", "y")
    sources = [value.producer() for name in behind for value in nodes[name].inputs if value is not None]
    assert not any(source is not None and source.op_type == "DequantizeLinear" for source in sources)
    nodes = quantised(model, tmp_path / "all.onnx", "none")
    assert all(has_int8_weights(nodes[name]) for name in ("b1", "b3", "d", "h1", "h2", "e"))


def test_a_classifier_has_heads_that_are_quantised(tmp_path: Path) -> None:
    model = classifier()
    assert not is_detector(model)
    assert [node.name for node in head_nodes(model)] == ["y"]
    assert has_int8_weights(quantised(model, tmp_path / "q.onnx")["y"])
    assert not has_int8_weights(quantised(model, tmp_path / "q.onnx", "heads")["y"])


def test_boxes_are_known_by_their_shape() -> None:
    """One scale alone is joined with nothing, but 84 candidates are those of 64 x 64 pixels at strides 8, 16, 32."""
    text = "boxes (float[1,3,64,64] x) => (float[1,6,A] y) { c = Conv<strides=[64,64]>(x, w) y = Reshape(c, s) }"
    for count in (84, 86):
        weights = {"w": normal(6 * count, 3, 64, 64), "s": np.array([1, 6, count], np.int64)}
        assert is_detector(network(text.replace("A]", f"{count}]"), weights)) == (count == 84)


@pytest.mark.parametrize(("second", "is_one"), [("[2,2]", True), ("[1,1]", False)])
def test_maps_of_several_sizes_are_those_of_a_detector(second: str, is_one: bool) -> None:
    """Maps of one size, as of a segmenter with a second output, are not."""
    size = 8 if is_one else 16
    text = f"""levels (float[1,3,16,16] x) => (float[1,6,16,16] y, float[1,6,{size},{size}] z) {{
        a = Conv(x, w) y = Conv(a, v) z = Conv<strides={second}>(a, v)
    }}"""
    model = network(text, {"w": normal(4, 3, 1, 1), "v": normal(6, 4, 1, 1)})
    assert is_detector(model) == is_one
    assert [node.name for node in head_nodes(model)] == ["y", "z"]


def test_tokens_of_several_maps_are_no_boxes() -> None:
    text = """tokens (float[1,3,16,16] x) => (float[1,320,4] y) {
        a = Conv(x, w) b = Conv<strides=[2,2]>(x, w) c = Reshape(a, s) d = Reshape(b, s) e = Concat<axis=2>(c, d)
        f = Transpose<perm=[0,2,1]>(e) g = MatMul(f, v) h = Relu(g) i = MatMul(h, v) j = Relu(i) y = MatMul(j, v)
    }"""
    weights = {"w": normal(4, 3, 1, 1), "v": normal(4, 4), "s": np.array([1, 4, -1], np.int64)}
    model = network(text, weights)
    assert not is_detector(model)
    assert [node.name for node in head_nodes(model)] == ["y"]


def test_a_graph_within_a_node_reads_what_is_quantised(tmp_path: Path) -> None:
    text = """branch (float[1,3,16,16] x, bool c) => (float[1,4,16,16] y) {
        a = Conv(x, v)  y = If(c) <
            then_branch = one () => (float[1,4,16,16] p) { p = Conv(a, w) },
            else_branch = other () => (float[1,4,16,16] q) { q = Relu(a) }
        >
    }"""
    model = network(text, {"v": normal(4, 3, 1, 1), "w": normal(4, 4, 1, 1)})
    made = quantize(model, [{**feed, "c": np.array(True)} for feed in examples(3, *SHAPE)], tmp_path / "q.onnx")
    nodes = {str(node.name): node for node in load(tmp_path / "q.onnx").graph}
    assert has_int8_weights(nodes["a"])
    assert made.error is not None and 0 < made.error < 0.05
