"""Expanded layers compute what torch does, and regions what the layers in them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from onnx import helper, numpy_helper, parser

from nnstretch.errors import ModelError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.expand import expand, expand_region
from nnstretch.graph.layer import OPERATORS, Attribute, Layer, TensorType, fused_pair
from nnstretch.graph.layers import graph_inputs, layers
from nnstretch.graph.reference import relative_error, run_layer, run_proto
from nnstretch.passes import optimize
from tests.kits.graphs.fused_graphs import run_layers

TOLERANCE = 2e-6


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def layer_of(
    op: str,
    inputs: list[np.ndarray | None],
    result: torch.Tensor,
    attributes: Mapping[str, Attribute] | None = None,
    constants: tuple[int, ...] = (),
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    return Layer(
        name=f"/net/{op}:0",
        op=op,
        inputs=tuple(None if array is None else TensorType(array.shape) for array in inputs),
        outputs=(TensorType(tuple(result.shape)),),
        attributes=attributes or {},
        activation=activation,
        constants={index: array for index, array in enumerate(inputs) if index in constants and array is not None},
    )


def compare(layer: Layer, inputs: list[np.ndarray | None], reference: torch.Tensor) -> None:
    runtime = [array for index, array in enumerate(inputs) if index in layer.activations and array is not None]
    onnx.checker.check_model(expand(layer), full_check=True)
    (result,) = run_layer(layer, *runtime)
    assert relative_error(result, reference.numpy()) < TOLERANCE


def tensors(arrays: list[np.ndarray | None]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays if array is not None]


ACTIVATIONS: list[tuple[Activation, Callable[[torch.Tensor], torch.Tensor]]] = [
    (NO_ACTIVATION, lambda x: x),
    (Activation(ActivationKind.RELU), F.relu),
    (Activation(ActivationKind.CLIP, -0.25, 0.5), lambda x: x.clamp(-0.25, 0.5)),
    (Activation(ActivationKind.SIGMOID), torch.sigmoid),
    (Activation(ActivationKind.SILU), F.silu),
    (Activation(ActivationKind.HARD_SIGMOID, 0.3, 0.4), lambda x: (0.3 * x + 0.4).clamp(0, 1)),
    (Activation(ActivationKind.HARD_SWISH), F.hardswish),
    (Activation(ActivationKind.LEAKY_RELU, 0.1), lambda x: F.leaky_relu(x, 0.1)),
    (Activation(ActivationKind.TANH), torch.tanh),
    (Activation(ActivationKind.EXP), torch.exp),
    (Activation(ActivationKind.GELU), F.gelu),
    (Activation(ActivationKind.GELU_TANH), lambda x: F.gelu(x, approximate="tanh")),
    (Activation(ActivationKind.SWISH, 1.702), lambda x: x * torch.sigmoid(1.702 * x)),
    (Activation(ActivationKind.MISH), F.mish),
    (Activation(ActivationKind.SOFTPLUS), F.softplus),
    (Activation(ActivationKind.ELU, 0.75, 1.0), lambda x: F.elu(x, 0.75)),
    (Activation(ActivationKind.ELU, 0.75, 1 / 0.75), lambda x: F.celu(x, 0.75)),
    (Activation(ActivationKind.SELU, 1.6732632, 1.050701), F.selu),
    (Activation(ActivationKind.ERF), torch.erf),
]


def test_every_activation_is_looked_at() -> None:
    assert {activation.kind for activation, _ in ACTIVATIONS} == set(ActivationKind)


@pytest.mark.parametrize(("activation", "function"), [pytest.param(*pair, id=str(pair[0])) for pair in ACTIVATIONS])
@pytest.mark.parametrize("op", ["Activation", "Affine", "Add"])
def test_activations(op: str, activation: Activation, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    # Far enough out for every piece of the piecewise ones.
    x = 4 * normal(2, 3, 4, 5)
    if op == "Activation":
        inputs, linear = [x], torch.from_numpy(x)
    elif op == "Affine":
        inputs = [x, normal(3), normal(3, seed=1)]
        linear = (
            torch.from_numpy(x) * torch.from_numpy(inputs[1])[:, None, None]
            + torch.from_numpy(inputs[2])[:, None, None]
        )
    else:
        inputs = [x, normal(2, 3, 4, 5, seed=1)]
        linear = torch.from_numpy(x) + torch.from_numpy(inputs[1])
    reference = function(linear)
    arrays: list[np.ndarray | None] = list(inputs)
    compare(layer_of(op, arrays, reference, constants=(1, 2), activation=activation), arrays, reference)


def test_prelu() -> None:
    arrays: list[np.ndarray | None] = [normal(2, 6, 4, 5), normal(6)]
    reference = F.prelu(*tensors(arrays))
    compare(layer_of("PRelu", arrays, reference, constants=(1,)), arrays, reference)


@pytest.mark.parametrize("axis", [1, 3])
def test_layer_norm(axis: int) -> None:
    x, scale, shift = normal(2, 6, 4, 5), normal((6, 4, 5)[axis - 1]), normal((6, 4, 5)[axis - 1], seed=1)
    moved = torch.from_numpy(x).movedim(axis, -1)
    weight, bias = torch.from_numpy(scale), torch.from_numpy(shift)
    attributes: dict[str, Attribute] = {"axis": axis, "epsilon": 1e-3}
    reference = F.layer_norm(moved, moved.shape[-1:], weight, bias, 1e-3).movedim(-1, axis)
    arrays: list[np.ndarray | None] = [x, scale, shift]
    compare(layer_of("LayerNorm", arrays, reference, attributes, constants=(1, 2)), arrays, reference)
    reference = F.rms_norm(moved, moved.shape[-1:], weight, 1e-3).movedim(-1, axis)
    arrays = [x, scale]
    compare(layer_of("LayerNorm", arrays, reference, {**attributes, "rms": 1}, constants=(1,)), arrays, reference)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(groups: int) -> None:
    arrays: list[np.ndarray | None] = [normal(2, 6, 4, 5), normal(6), normal(6, seed=1)]
    x, weight, bias = tensors(arrays)
    reference = F.group_norm(x, groups, weight, bias, 1e-3)
    attributes: dict[str, Attribute] = {"groups": groups, "epsilon": 1e-3}
    compare(layer_of("GroupNorm", arrays, reference, attributes, constants=(1, 2)), arrays, reference)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv(bias: bool, residual: bool, groups: int) -> None:
    x, weight = normal(2, 4, 9, 8), normal(8, 4 // groups, 3, 2)
    padded = F.pad(torch.from_numpy(x), (0, 1, 2, 1))
    b = normal(8) if bias else None
    reference = F.conv2d(
        padded, torch.from_numpy(weight), None if b is None else torch.from_numpy(b), (2, 1), 0, (1, 2), groups
    )
    r = normal(*reference.shape) if residual else None
    if r is not None:
        reference = reference + torch.from_numpy(r)
    inputs = [x, weight, b, r]
    attributes: dict[str, Attribute] = {"strides": (2, 1), "pads": (2, 0, 1, 1), "dilations": (1, 2), "groups": groups}
    relu = Activation(ActivationKind.RELU)
    compare(layer_of("Conv", inputs, reference.relu(), attributes, (1, 2), relu), inputs, reference.relu())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_dense(bias: bool, residual: bool) -> None:
    x, weight = normal(3, 5), normal(7, 5)
    b, r = normal(7) if bias else None, normal(3, 7) if residual else None
    reference = F.linear(torch.from_numpy(x), torch.from_numpy(weight), None if b is None else torch.from_numpy(b))
    if r is not None:
        reference = reference + torch.from_numpy(r)
    inputs = [x, weight, b, r]
    compare(layer_of("Dense", inputs, reference, constants=(1, 2)), inputs, reference)


def test_pools() -> None:
    x = normal(2, 3, 9, 8)
    inputs: list[np.ndarray | None] = [x]
    reference = F.max_pool2d(torch.from_numpy(x), (3, 2), (2, 1), (1, 0), (1, 2))
    window: dict[str, Attribute] = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 0)}
    compare(layer_of("MaxPool", inputs, reference, window | {"dilations": (1, 2)}), inputs, reference)
    for counted in (0, 1):
        reference = F.avg_pool2d(torch.from_numpy(x), (3, 2), (2, 1), (1, 0), count_include_pad=bool(counted))
        compare(layer_of("AveragePool", inputs, reference, window | {"count_include_pad": counted}), inputs, reference)
    mean, largest = torch.from_numpy(x).mean((2, 3), keepdim=True), torch.from_numpy(x).amax((2, 3), keepdim=True)
    compare(layer_of("GlobalPool", inputs, mean, {"mode": "average"}), inputs, mean)
    compare(layer_of("GlobalPool", inputs, largest, {"mode": "max"}), inputs, largest)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 1, 1), (1, 3, 1, 1), (3, 1, 1), ()])
@pytest.mark.parametrize("known", [False, True])
def test_binary(op: str, shape: tuple[int, ...], known: bool) -> None:
    inputs: list[np.ndarray | None] = [normal(2, 3, 4, 5), np.array(normal(*shape, seed=1), np.float32)]
    functions: dict[str, Callable[..., torch.Tensor]] = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}
    reference = functions[op](*tensors(inputs))
    compare(layer_of(op, inputs, reference, constants=(1,) if known else ()), inputs, reference)


def test_concat_softmax_reshape() -> None:
    pieces: list[np.ndarray | None] = [normal(2, 3, 4), normal(2, 1, 4), normal(2, 3, 4, seed=1)]
    reference = torch.cat(tensors(pieces), 1)
    compare(layer_of("Concat", pieces, reference, {"axis": 1}), pieces, reference)
    reference = tensors(pieces)[0].softmax(1)
    compare(layer_of("Softmax", pieces[:1], reference, {"axis": 1}), pieces[:1], reference)
    reference = tensors(pieces)[0].reshape(4, 1, 6)
    compare(layer_of("Reshape", pieces[:1], reference), pieces[:1], reference)
    empty: list[np.ndarray | None] = [normal(0, 3)]
    compare(layer_of("Reshape", empty, torch.zeros(3, 0)), empty, torch.zeros(3, 0))


def test_transpose_and_slice() -> None:
    x: list[np.ndarray | None] = [normal(2, 3, 4, 5)]
    reference = tensors(x)[0].permute(2, 0, 3, 1)
    compare(layer_of("Transpose", x, reference, {"perm": (2, 0, 3, 1)}), x, reference)
    reference = tensors(x)[0][:, 1:, 3::4, 0:4:2]
    attributes: dict[str, Attribute] = {"starts": (0, 1, 3, 0), "steps": (1, 1, 4, 2)}
    compare(layer_of("Slice", x, reference, attributes), x, reference)


RESIZES: list[tuple[tuple[int, int], dict[str, Any], tuple[str, str]]] = [
    ((14, 21), {"mode": "nearest"}, ("nearest", "asymmetric")),
    ((10, 3), {"mode": "nearest"}, ("nearest", "asymmetric")),
    ((14, 21), {"mode": "nearest-exact"}, ("nearest", "half_pixel")),
    ((10, 3), {"mode": "bilinear", "align_corners": True}, ("linear", "align_corners")),
    ((10, 3), {"mode": "bilinear"}, ("linear", "half_pixel")),
    ((1, 20), {"mode": "bilinear"}, ("linear", "pytorch_half_pixel")),
]


@pytest.mark.parametrize(("size", "options", "names"), RESIZES)
def test_resize(size: tuple[int, int], options: dict[str, Any], names: tuple[str, str]) -> None:
    inputs: list[np.ndarray | None] = [normal(1, 2, 7, 7)]
    reference = F.interpolate(tensors(inputs)[0], size, **options)
    mode, coordinates = names
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "coordinates": coordinates,
        "nearest": "round_prefer_ceil" if coordinates == "half_pixel" else "floor",
        "scales": (size[0] / 7, size[1] / 7),
    }
    if coordinates == "pytorch_half_pixel":
        # torch reads pixel 0 where one row is wanted; so does this mode, alone of all.
        reference = F.interpolate(tensors(inputs)[0][:, :, :1], size, **options)
    compare(layer_of("Resize", inputs, reference, attributes), inputs, reference)


def test_resize_by_scales_that_are_not_those_of_the_shapes() -> None:
    inputs: list[np.ndarray | None] = [normal(1, 2, 7, 7)]
    reference = F.interpolate(
        tensors(inputs)[0], scale_factor=(1.3, 0.6), mode="bilinear", recompute_scale_factor=False
    )
    attributes: dict[str, Attribute] = {
        "mode": "linear",
        "coordinates": "half_pixel",
        "nearest": "floor",
        "scales": (1.3, 0.6),
    }
    compare(layer_of("Resize", inputs, reference, attributes), inputs, reference)


def test_expand_and_tiles() -> None:
    x: list[np.ndarray | None] = [normal(3, 1)]
    reference = tensors(x)[0].expand(2, 3, 4)
    compare(layer_of("Expand", x, reference), x, reference)
    x = [normal(1, 8, 2, 3)]
    reference = F.pixel_shuffle(tensors(x)[0], 2)
    compare(layer_of("DepthToSpace", x, reference, {"size": 2, "mode": "CRD"}), x, reference)
    order = torch.arange(8).reshape(4, 2).T.reshape(-1)
    reference = F.pixel_shuffle(tensors(x)[0][:, order], 2)
    compare(layer_of("DepthToSpace", x, reference, {"size": 2, "mode": "DCR"}), x, reference)
    x = [normal(1, 1, 4, 6)]
    reference = F.pixel_unshuffle(tensors(x)[0], 2)
    compare(layer_of("SpaceToDepth", x, reference, {"size": 2}), x, reference)


def test_reduce_and_pad() -> None:
    x: list[np.ndarray | None] = [normal(2, 3, 4, 5)]
    reference = tensors(x)[0].mean((1, 2))
    compare(layer_of("Reduce", x, reference, {"axes": (1, 2), "mode": "mean"}), x, reference)
    reference = tensors(x)[0].square().sum(3, keepdim=True).sqrt()
    compare(layer_of("Reduce", x, reference, {"axes": (3,), "mode": "l2"}), x, reference)
    pads: dict[str, Attribute] = {"pads": (0, 0, 2, 1, 0, 0, 1, 0), "value": -1.5}
    reference = F.pad(tensors(x)[0], (1, 0, 2, 1), value=-1.5)
    compare(layer_of("Pad", x, reference, {**pads, "mode": "constant"}), x, reference)
    reference = F.pad(tensors(x)[0], (1, 0, 2, 1), "replicate")
    compare(layer_of("Pad", x, reference, {**pads, "mode": "edge"}), x, reference)


def test_every_operator_of_the_table_can_be_expanded() -> None:
    from nnstretch.graph.onnx_writer import _WRITERS

    assert set(_WRITERS) == set(OPERATORS)


# -- operators that only the fallback runs, and regions ----------------------------------------------------------------

REGION = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,3,9,9] "/in:0") => (float[1,4,7,7] "/out:0", float[1,4,7,7] "/a/mid") {
    "/a/conv" = Conv("/in:0", "/w")
    "/a/mid" = Sin("/a/conv")
    "/a/low" = ConstantOfShape<value: tensor = float[1] {0.5}>("/shape")
    "/a/max" = Mean("/a/mid", "/a/low", "/a/conv")
    "/out:0" = Relu("/a/max")
}"""


def region_model() -> ir.Model:
    text = REGION
    for name in ("/in:0", "/out:0", "/a/conv", "/a/mid", "/a/low", "/a/max", "/w", "/shape"):
        text = text.replace(f'"{name}"', name.replace("/", "_").replace(":", "_"))
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(normal(4, 3, 3, 3), "_w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 4, 7, 7]), "_shape"))
    slashed = {"_in_0": "/in:0", "_out_0": "/out:0", "_a_conv": "/a/conv", "_a_mid": "/a/mid", "_a_max": "/a/max"}
    for node in proto.graph.node:
        node.input[:] = [slashed.get(name, name) for name in node.input]
        node.output[:] = [slashed.get(name, name) for name in node.output]
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = slashed.get(value.name, value.name)
    return ir.from_proto(proto)


def test_regions_compute_what_their_layers_do() -> None:
    model = region_model()
    x = normal(1, 3, 9, 9)
    wanted, middle = run_proto(ir.to_proto(model), {"/in:0": x})
    nodes = layers(optimize(model))
    assert {node.layer.op for node in nodes} >= {"Conv", "onnx:Sin", "onnx:Mean"}
    whole = expand_region(nodes, ["/in:0"], ["/out:0", "/a/mid"])
    onnx.checker.check_model(whole, full_check=True)
    results = run_proto(whole, {"/in:0": x})
    assert [relative_error(a, b) < TOLERANCE for a, b in zip(results, (wanted, middle), strict=True)] == [True, True]
    # In two pieces, cut after the convolution.
    (convolution,) = (node for node in nodes if node.layer.op == "Conv")
    rest = [node for node in nodes if node is not convolution]
    (features,) = run_proto(expand_region([convolution], ["/in:0"], ["/a/conv"]), {"/in:0": x})
    (result,) = run_proto(expand_region(rest, ["/a/conv"], ["/out:0"]), {"/a/conv": features})
    assert relative_error(result, wanted) < TOLERANCE


def test_layer_of_any_operator_keeps_attributes_of_every_kind() -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>
    g (float[2,3] x, bool[1] c, string[2] s) => (float[2,3] y, float[2,3] z, int64[2] i) {
        y = If(c) <
            then_branch = yes () => (float[2,3] a) { k = Constant<value: tensor = float[1] {2.5}>() a = Mul(x, k) },
            else_branch = no () => (float[2,3] b) { b = Identity(x) }
        >
        z = LpNormalization<axis=-1, p=1>(x)
        i = ai.onnx.ml.LabelEncoder<keys_strings=["a", "b"], values_int64s=[5, 6]>(s)
    }"""
    model = ir.from_proto(parser.parse_model(text))
    for flag in (True, False):
        feeds = {"x": normal(2, 3), "c": np.array([flag]), "s": np.array(["b", "a"], object)}
        wanted = run_proto(ir.to_proto(model), feeds)
        nodes = layers(optimize(model))
        for node, reference in zip(nodes, wanted, strict=True):
            (result,) = run_layer(node.layer, *(feeds[str(name)] for name in node.inputs))
            np.testing.assert_array_equal(result, reference)
            names = [str(name) for name in node.inputs]
            (again,) = run_proto(expand_region([node], names, node.outputs), {name: feeds[name] for name in names})
            np.testing.assert_array_equal(again, reference)
        assert [node.layer.op for node in nodes] == ["onnx:If", "onnx:LpNormalization", "onnx:ai.onnx.ml/LabelEncoder"]
        assert nodes[0].inputs == ("c", "x")


def test_captures_do_not_collide_with_the_names_of_inputs() -> None:
    # In its own model the condition is called x0; the branch reads an outer x0, which is x1 there.
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[2] x0, bool[1] c) => (float[2] y) {
        y = If(c) <
            then_branch = yes () => (float[2] a) { a = Neg(x0) },
            else_branch = no () => (float[2] b) { b = Identity(x0) }
        >
    }"""
    (node,) = layers(optimize(ir.from_proto(parser.parse_model(text))))
    (result,) = run_layer(node.layer, np.array([True]), np.array([1, 2], np.float32))
    np.testing.assert_array_equal(result, np.array([-1, -2], np.float32))


def test_layer_names_are_unique_and_workloads_shared() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[1,3,5,5] x) => (float[1,3,5,5] y) { [same] t = Conv(x, w) [same] u = Conv(t, v) y = Sin(u) }"""
    proto = parser.parse_model(text)
    for name in ("w", "v"):
        proto.graph.initializer.append(
            numpy_helper.from_array(normal(3, 3, 1, 1, seed=len(proto.graph.initializer)), name)
        )
    nodes = layers(optimize(ir.from_proto(proto)))
    assert len({node.layer.name for node in nodes}) == 3
    assert nodes[0].layer.workload == nodes[1].layer.workload
    assert nodes[0].layer.macs == 3 * 3 * 25


def test_shapes_known_only_in_the_run_are_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[4] x) => (int64[1,N] y) { y = NonZero(x) }"""
    model = optimize(ir.from_proto(parser.parse_model(text)))
    with pytest.raises(ModelError, match=r"'y' of NonZero .* known only in the run"):
        layers(model)


def test_graph_inputs_and_their_types() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float16[2] a, int64[3] b, bool[1] c) => (float16[2] y) { y = Identity(a) }"""
    model = ir.from_proto(parser.parse_model(text))
    assert [(name, str(kind)) for name, kind in graph_inputs(model)] == [
        ("a", "float16[2]"),
        ("b", "int64[3]"),
        ("c", "bool[1]"),
    ]
    x = np.array([1, 2], np.float16)
    np.testing.assert_array_equal(
        run_layers(optimize(model), {"a": x, "b": np.zeros(3, np.int64), "c": np.zeros(1, bool)})[0], x
    )


def test_bfloat16_and_small_types_have_names() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.BFLOAT16),
            helper.make_node("Cast", ["y"], ["z"], to=1),
        ],
        "casts",
        [helper.make_tensor_value_info("x", 1, (3,))],
        [helper.make_tensor_value_info("z", 1, (3,))],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    nodes = layers(optimize(model))
    assert str(nodes[0].layer.outputs[0]) == "bfloat16[3]"
    for node in nodes:
        onnx.checker.check_model(expand(node.layer), full_check=True)


def test_a_chain_computes_its_layers_one_after_another() -> None:
    rng = np.random.default_rng(0)
    x, middle, y = TensorType((1, 5, 6, 7)), TensorType((1, 8, 6, 7)), TensorType((1, 8, 3, 4))

    def conv(source: TensorType, target: TensorType, weight: np.ndarray, residual: bool, **attributes: Any) -> Layer:
        inputs = (source, TensorType(weight.shape), None, target) if residual else (source, TensorType(weight.shape))
        return Layer("conv", "Conv", inputs, (target,), attributes, Activation(ActivationKind.RELU), {1: weight})

    pointwise = rng.standard_normal((8, 5, 1, 1)).astype(np.float32)
    depthwise = rng.standard_normal((8, 1, 3, 3)).astype(np.float32)
    still = {"pads": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1), "groups": 1}
    first = conv(x, middle, pointwise, False, **still)
    second = conv(middle, y, depthwise, True, **still | {"pads": (1, 1, 1, 1), "strides": (2, 2), "groups": 8})
    chain = fused_pair(first, second)
    a, b = (rng.standard_normal(t.shape).astype(np.float32) for t in (x, y))

    between = run_layer(first, a)
    assert chain.inputs == (x, y) and chain.macs == first.macs + second.macs
    np.testing.assert_array_equal(run_layer(chain, a, b)[0], run_layer(second, *between, b)[0])
