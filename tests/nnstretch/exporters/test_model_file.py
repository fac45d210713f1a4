"""Models as ONNX files, TFLite files and programs of torch.export: the same answers, names and preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import nnstretch as nns
from nnstretch.devices.external.litert import flatbuffer
from nnstretch.errors import FileError, MissingExtraError, ModelError, UsageError
from nnstretch.exporters import graph_file, tflite_file
from nnstretch.exporters.tflite_file import run_tflite
from nnstretch.exporters.torch_program import METADATA_FILE, save_program
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.torch_module import export
from nnstretch.quantization import quantize
from nnstretch.quantization.keep_float import KeepFloat
from nnstretch.quantization.pipeline import QuantizationOptions
from tests.kits.networks.tiny_branching import branched

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

IMAGES = torch.randn(1, 3, 16, 20, generator=torch.Generator().manual_seed(0))
PREPROCESSING = {"nnstretch.preprocessing": '{"image_size": 16}'}


class TwoEnds(nn.Module):
    """A classifier that also returns its features, an image, and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(pixels)
        return self.head(features), features


def graph() -> ir.Model:
    torch.manual_seed(0)
    made = export(TwoEnds().eval(), IMAGES, input_names=["pixels"], output_names=["scores", "features"])
    made.metadata_props.update(PREPROCESSING)
    return made


def expected() -> list[np.ndarray]:
    torch.manual_seed(0)
    with torch.no_grad():
        return [y.numpy() for y in TwoEnds().eval()(IMAGES)]


def metadata_of(content: bytes) -> dict[str, str]:
    schema = flatbuffer.load_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    texts = {entry.name: bytes(model.buffers[entry.buffer].data) for entry in model.metadata}
    return {key.decode(): text.decode() for key, text in texts.items()}


def test_onnx_keeps_names_and_preprocessing(tmp_path: Path) -> None:
    made = nns.export(graph(), tmp_path / "x.onnx")
    assert (made.format, made.max_rel_error, made.branches) == ("ONNX", None, ())
    found = load(made.path)
    assert [value.name for value in found.graph.inputs] == ["pixels"]
    assert [value.name for value in found.graph.outputs] == ["scores", "features"]
    assert found.metadata_props["nnstretch.preprocessing"] == PREPROCESSING["nnstretch.preprocessing"]


@pytest.mark.parametrize("channels_last", [True, False])
def test_tflite_keeps_names_and_preprocessing(channels_last: bool, tmp_path: Path) -> None:
    made = nns.export(graph(), tmp_path / "x.tflite", channels_last=channels_last)
    assert made.max_rel_error is not None
    assert made.max_rel_error < 1e-5
    content = made.path.read_bytes()
    found = run_tflite(content, [IMAGES.numpy()], channels_last=channels_last)
    assert all(np.allclose(y, wanted, atol=1e-5) for y, wanted in zip(found, expected(), strict=True))
    assert metadata_of(content) == PREPROCESSING
    runner = interpreter.Interpreter(model_content=content).get_signature_runner()
    shapes = {name: tuple(about["shape"]) for name, about in runner.get_input_details().items()}
    assert shapes == {"pixels": (1, 16, 20, 3) if channels_last else (1, 3, 16, 20)}
    assert set(runner.get_output_details()) == {"scores", "features"}
    opened = interpreter.Interpreter(model_content=content)
    assert [about["name"] for about in opened.get_output_details()] == ["scores", "features"]


def test_float16_weights_take_half_the_bytes(tmp_path: Path) -> None:
    whole, half = (nns.export(graph(), tmp_path / f"{f}.tflite", float16_weights=f) for f in (False, True))
    sizes = [made.path.stat().st_size for made in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    assert half.max_rel_error is not None
    assert 1e-6 < half.max_rel_error < 2e-3


def test_weights_out_of_the_range_of_float16_stay(tmp_path: Path) -> None:
    module = nn.Conv2d(3, 4, 1)
    with torch.no_grad():
        module.weight.fill_(1e5)
    made = nns.export(module, tmp_path / "x.tflite", IMAGES, float16_weights=True)
    assert made.max_rel_error is not None
    assert made.max_rel_error < 1e-6


def test_a_quantised_model_becomes_int8(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    quantize(graph(), [{"pixels": rng.standard_normal((1, 3, 16, 20)).astype(np.float32)}], tmp_path / "q.onnx")
    made = nns.export(tmp_path / "q.onnx", tmp_path / "x.tflite")
    opened = interpreter.Interpreter(str(made.path))
    dtypes = [about["dtype"] for about in opened.get_tensor_details()]
    assert dtypes.count(np.int8) > 5
    assert made.max_rel_error is not None
    assert made.max_rel_error < 0.05
    assert metadata_of(made.path.read_bytes())["nnstretch.preprocessing"] == PREPROCESSING["nnstretch.preprocessing"]


def test_the_error_of_a_mixed_file_is_that_of_the_file(tmp_path: Path) -> None:
    """ONNX Runtime's optimisations, which round elsewhere beside float32 layers, are no part of it."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.ReLU()) for i, o in ((3, 16), (16, 24), (24, 24), (24, 8))]
    model = export(nn.Sequential(*layers).eval(), IMAGES, input_names=["pixels"], output_names=["y"])
    kept = [str(node.name) for node in model.graph if node.op_type == "Conv"][1]
    options = QuantizationOptions(keep_float=KeepFloat("none", patterns=(kept,)))
    rng = np.random.default_rng(0)
    feeds = [{"pixels": rng.standard_normal((1, 3, 16, 20)).astype(np.float32)} for _ in range(4)]
    quantize(model, feeds, tmp_path / "q.onnx", options)
    made = nns.export(tmp_path / "q.onnx", tmp_path / "x.tflite")
    assert made.max_rel_error is not None
    assert made.max_rel_error < 1e-6


def test_programs_of_torch_export(tmp_path: Path) -> None:
    """A branched network, whose training flags stay as they were."""
    network = branched(0.5).train()
    x = torch.randn(2, 1, 12, 12)
    made = nns.export(network, tmp_path / "x.pt2", x)
    assert made.max_rel_error == 0.0
    assert network.training
    loaded = torch.export.load(made.path).module()
    assert torch.equal(loaded(x), network.eval()(x))
    save_program(network, (x,), made.path, PREPROCESSING, check=False)
    extra = {METADATA_FILE: ""}
    torch.export.load(made.path, extra_files=extra)
    assert json.loads(extra[METADATA_FILE]) == PREPROCESSING


def test_a_program_of_an_onnx_file(tmp_path: Path) -> None:
    """It returns both outputs and carries the file's metadata."""
    nns.export(graph(), tmp_path / "x.onnx")
    made = nns.export(tmp_path / "x.onnx", tmp_path / "x.pt2", batch=2)
    extra = {METADATA_FILE: ""}
    program = torch.export.load(made.path, extra_files=extra)
    assert json.loads(extra[METADATA_FILE])["nnstretch.preprocessing"] == PREPROCESSING["nnstretch.preprocessing"]
    found = program.module()(IMAGES.repeat(2, 1, 1, 1))
    for y, wanted in zip(found, expected(), strict=True):
        assert np.allclose(y.detach().numpy()[1:], wanted, atol=1e-5)


class Random(nn.Module):
    """Its answers are not those of its inputs alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(1)


class Branching(nn.Module):
    """Depends on values, which no graph can say."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_programs_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "x.pt2"
    with pytest.raises(ModelError, match="does not depend on its inputs alone"):
        nns.export(Random(), file, IMAGES)
    with pytest.raises(ModelError, match=r"torch\.export cannot trace Branching"):
        nns.export(Branching(), file, IMAGES)
    with pytest.raises(UsageError, match="needs example_input"):
        nns.export(nn.ReLU(), file)
    with pytest.raises(UsageError, match="of type ndarray; give a torch Tensor"):
        nns.export(nn.ReLU(), tmp_path / "x.onnx", IMAGES.numpy())
    with pytest.raises(UsageError, match="made of a torch module"):
        nns.export(graph(), file)
    with pytest.raises(UsageError, match="shapes are for graphs"):
        nns.export(nn.ReLU(), file, IMAGES, shapes={"x": (1, 3, 8, 8)})
    with pytest.raises(UsageError, match="batch is for models by name"):
        nns.export(nn.ReLU(), file, IMAGES, batch=2)
    assert not file.exists()


def test_options_that_do_not_apply(tmp_path: Path) -> None:
    for name, more, said in (
        ("x.h5", {}, r"ending '\.h5'; choose the format by one of \.onnx"),
        ("x", {}, "x has no ending"),
        ("x.onnx", {"float16_weights": True}, r"for \.tflite files"),
        ("x.pt2", {"channels_last": False}, r"for \.tflite files"),
        ("x.tflite", {"processors": ("cpu:0",)}, "a file per branch"),
    ):
        options: dict[str, Any] = more
        with pytest.raises(UsageError, match=said):
            nns.export(graph(), tmp_path / name, **options)
    with pytest.raises(FileError, match="cannot write"):
        nns.export(graph(), tmp_path / "missing" / "x.tflite")
    assert not list(tmp_path.iterdir())


class Words(nn.Module):
    """Reads indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words)  # type: ignore[no-any-return]


def test_what_tflite_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.tflite"
    with pytest.raises(ModelError, match="input 'words' is int64"):
        nns.export(Words(), file, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ModelError, match=r"no counterpart of layer CumSum \(CumSum\)"):
        nns.export(Cumulative(), file, IMAGES)
    with monkeypatch.context() as patch:
        patch.setattr(graph_file, "_LARGEST_FILE", 1 << 10)
        with pytest.raises(ModelError, match="do not fit a TFLite file, which holds 2 GB"):
            nns.export(graph(), file)
    with monkeypatch.context() as patch:
        patch.setattr(tflite_file, "_LIMIT", 0.0)
        with pytest.raises(ModelError, match="nothing was written"):
            nns.export(graph(), file)
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "ai_edge_litert", None)
        with pytest.raises(MissingExtraError, match=r"nnstretch\[litert\]"):
            nns.export(graph(), file)
    assert not list(tmp_path.iterdir())


class Cumulative(nn.Module):
    """Sums that TFLite has in other words only."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Ends(nn.Module):
    """Returns the same tensor twice, once as an image and once turned, and a constant."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.relu()
        return y, y.permute(0, 2, 3, 1), torch.arange(6.0).reshape(1, 1, 2, 3) + x.sum() * 0


def test_ends_that_share_a_tensor(tmp_path: Path) -> None:
    made = nns.export(Ends(), tmp_path / "x.tflite", IMAGES)
    found = run_tflite(made.path.read_bytes(), [IMAGES.numpy()], channels_last=True)
    relu = IMAGES.relu().numpy()
    assert np.array_equal(found[0], relu)
    assert np.array_equal(found[1], relu.transpose(0, 2, 3, 1))
    assert np.array_equal(found[2].ravel(), np.arange(6.0))
