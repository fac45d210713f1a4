"""Exports share what the exporter repeats, and are not traced again where that changes nothing."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from nnstretch.errors import ModelError
from nnstretch.frontends import exporter, torch_module
from nnstretch.frontends.torch_module import export
from nnstretch.graph.metadata import module_path
from nnstretch.graph.reference import relative_error, run_proto


@pytest.fixture(autouse=True)
def _own_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts in place of the exporter's functions counts as the exporter's own."""
    monkeypatch.setattr(exporter, "_original", cache(exporter._original.__wrapped__))


def test_exports_share_the_exporters_table_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    exporter._operators.cache_clear()
    built = []
    populate = registration.ONNXRegistry.from_torchlib

    def counted(**options: int) -> object:
        built.append(options)
        return populate(**options)

    descriptor = staticmethod(counted)
    monkeypatch.setattr(registration.ONNXRegistry, "from_torchlib", descriptor)
    for channels in (2, 3):
        export(nn.Conv2d(channels, 4, 1), torch.zeros(1, channels, 5, 5))
    assert len(built) == 1
    with exporter.shared_operators(), exporter.shared_operators():  # as in threads that overlap
        pass
    assert vars(registration.ONNXRegistry)["from_torchlib"] is descriptor, "others' exports build their own"


class Halves(nn.Module):
    """Has an operator that is decomposed by tracing again."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(x.chunk(2, 1)[::-1], 1)


def test_an_export_lists_composite_operators_once(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("torch._export.utils")
    listed = []
    make = utils._materialize_cpp_cia_ops

    def counted() -> None:
        listed.append(1)
        make()

    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", counted)
    for count in (1, 2):
        export(Halves(), torch.zeros(1, 2, 5, 5))
        assert len(listed) == count
    with exporter.listed_operators(), exporter.listed_operators():  # as in threads that overlap
        pass
    assert utils._materialize_cpp_cia_ops is counted


def test_exports_share_signatures_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = pytest.importorskip("onnx_ir.schemas").OpSignature
    monkeypatch.setattr(exporter, "_SIGNATURES", {})
    make, made = holder.from_op_schema, []

    def counted(schema: onnx.defs.OpSchema) -> object:
        made.append((schema.domain, schema.name))
        return make(schema)

    descriptor = staticmethod(counted)
    monkeypatch.setattr(holder, "from_op_schema", descriptor)
    for _ in range(2):
        export(nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)), torch.zeros(1, 2, 5, 5))
    assert ("", "Conv") in made
    assert len(made) == len(set(made))
    assert vars(holder)["from_op_schema"] is descriptor


def test_composite_operators_change_for_processors_that_are_there() -> None:
    program = pytest.importorskip("torch.export.exported_program")
    lists = ("_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE", "_BACKEND_KEYS_TO_OVERRIDE")
    usual = [vars(program)[name] for name in lists]
    with exporter.present_backends():
        autograd, backends = ({key.name for key in vars(program)[name]} for name in lists)
    assert {"AutogradCPU", "AutogradMeta"} <= autograd
    assert {"CPU", "Meta"} <= backends
    assert (len(autograd), len(backends)) < (4, 4)
    assert all(vars(program)[name] is keys for name, keys in zip(lists, usual, strict=True))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [False, True])
def test_inferred_normalisations_have_the_shape_type_and_order_of_computed_ones(
    affine: bool, dtype: torch.dtype, memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    compositions = pytest.importorskip("torch._decomp.decompositions")
    fake_tensors = pytest.importorskip("torch._subclasses.fake_tensor")
    compute, computed = compositions.native_batch_norm_helper, []

    def counted(*arguments: object) -> object:
        computed.append(arguments)
        return compute(*arguments)

    monkeypatch.setattr(compositions, "native_batch_norm_helper", counted)

    def described_output(training: bool = False) -> tuple[object, ...]:
        fake_tensors.FakeTensorMode.cache_clear()
        with fake_tensors.FakeTensorMode():
            norm = nn.BatchNorm2d(8, affine=affine).train(training)
            made = norm(torch.empty(2, 8, 5, 7, dtype=dtype).contiguous(memory_format=memory_format))
        return made.shape, made.dtype, made.stride()

    wanted, trained = described_output(), described_output(training=True)
    assert len(computed) == 2
    with exporter.inferred_normalisations():
        assert described_output() == wanted
        assert len(computed) == 2
        assert described_output(training=True) == trained
        assert len(computed) == 3
    assert compositions.native_batch_norm_helper is counted


def test_a_normalisation_of_other_channels_fails() -> None:
    with pytest.raises(ModelError, match="running_mean"):
        export(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(8)), torch.zeros(1, 3, 5, 5))


def test_exports_record_no_lines_of_python() -> None:
    settings = pytest.importorskip("torch.fx.config")
    x = torch.zeros(1, 3, 9, 9)
    program = torch.export.export(normalised().eval(), (x,))
    assert all(node.stack_trace for node in program.graph.nodes if node.op == "call_function")
    with exporter.fast_exports():
        assert settings.do_not_emit_stack_traces
        program = torch.export.export(normalised().eval(), (x,))
    assert not any(node.stack_trace for node in program.graph.nodes)
    assert not settings.do_not_emit_stack_traces


def normalised(affine: bool = True, statistics: bool = True, momentum: float | None = 0.1) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, affine=affine, track_running_stats=statistics, momentum=momentum)
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Hardswish(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Reshaping(nn.Module):
    """Every way to change a shape that leaves the order of the elements."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.flatten(-2), x.reshape(2, -1), x.view(-1, 27), x.unsqueeze(0), x.permute(0, 2, 3, 1).reshape(2, 81, 3)


class Overwriting(nn.Module):
    """Values that are read under two names after they were overwritten."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = x * 2
        b = a.view(a.shape[0], -1)
        a.relu_()
        return a + 1, b.mean(dim=1)


class Counting(nn.Module):
    """Batch normalisation that normalises by the batch, in evaluation too, and changes its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        return nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=True)


class Permuted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize(
    ("module", "traced_again"),
    [
        pytest.param(normalised(), False, id="usual"),
        pytest.param(normalised(affine=False, momentum=None), False, id="plain normalisation"),
        pytest.param(nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Softmax(1)), False, id="pool"),
        pytest.param(Reshaping(), False, id="reshaping"),
        pytest.param(Permuted(), True, id="reshaped in another order"),
        pytest.param(nn.ChannelShuffle(3), True, id="shuffled"),
        pytest.param(nn.Sequential(nn.Conv2d(3, 6, 1), nn.Flatten(2), nn.Unflatten(1, (2, 3))), True, id="view"),
        pytest.param(nn.Sequential(nn.AdaptiveAvgPool2d((4, 2)), nn.Flatten()), True, id="pool to a grid"),
        pytest.param(normalised(statistics=False), True, id="statistics of the batch"),
        pytest.param(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)), True, id="in place"),
        pytest.param(Overwriting(), True, id="overwritten view"),
        pytest.param(Counting(), True, id="changed statistics"),
    ],
)
def test_programs_are_traced_again_only_where_that_changes_them(
    module: nn.Module, traced_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = pytest.importorskip("torch.onnx._internal.exporter._fx_passes")
    decompose, asked = passes.decompose_with_registry, []

    def counted(program: object, registry: object) -> object:
        asked.append(program)
        return decompose(program, registry)

    monkeypatch.setattr(passes, "decompose_with_registry", counted)
    module.eval()
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    model = export(module, x, input_names=["x"])
    assert len(asked) == traced_again
    assert passes.decompose_with_registry is counted, "others' exports decompose as they did"
    with monkeypatch.context() as patch:
        patch.setattr(torch_module, "fast_exports", nullcontext)
        usual = export(module, x, input_names=["x"])
    assert len(asked) == traced_again + 1
    assert list(map(described, model.graph)) == list(map(described, usual.graph))
    answers, wanted = (run_proto(ir.to_proto(made), {"x": x.numpy()}) for made in (model, usual))
    for answer, expected in zip(answers, wanted, strict=True):
        assert np.array_equal(answer, expected)
    if not isinstance(module, Counting):
        with torch.no_grad():
            outputs = module(x.clone())
        for answer, output in zip(answers, outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
            assert relative_error(answer, output.numpy()) < 1e-5


def described(node: ir.Node) -> tuple[object, ...]:
    """All of a node but the names of values that the exporter numbers."""
    shapes = [(value.type, str(value.shape)) for value in node.outputs]
    attributes = {name: str(attribute) for name, attribute in node.attributes.items()}
    return node.op_type, node.name, module_path(node), attributes, shapes
