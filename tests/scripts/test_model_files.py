"""Files of models as their libraries export them: seeded, kept, whole or not at all; what cannot be made is named."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from nnstretch.errors import FileError, ModelError, UsageError
from scripts.studies import model_files
from scripts.studies.model_files import Recipe


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such shape")


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())


def missing(library: str) -> nn.Module:
    raise ModuleNotFoundError(f"No module named {library!r}", name=library)


RECIPES: Mapping[str, Recipe] = {
    "refusing": Recipe(Refusing, 8),
    "detector": Recipe(lambda: missing("ultralytics"), 8),
    "small": Recipe(small, 8),
}


def test_a_model_that_fails_is_named_and_ends_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = Namespace(names=[], output=tmp_path / "new" / "models", dynamo=False)
    assert model_files.write_all(given, RECIPES) == model_files.FAILED
    said = capsys.readouterr()
    assert [path.name for path in given.output.iterdir()] == ["small.onnx"]
    assert "refusing.onnx: failed: RuntimeError: no such shape" in said.err
    assert "detector.onnx: failed: ultralytics is not installed; in a virtual environment of your own: pip" in said.err
    assert "small.onnx: 0.0 MB" in said.out

    made = (given.output / "small.onnx").read_bytes()
    (given.output / "small.onnx").write_bytes(b"mine")
    assert model_files.write_all(Namespace(names=["small"], output=given.output, dynamo=False), RECIPES) == 0
    assert "small.onnx: kept" in capsys.readouterr().out
    assert (given.output / "small.onnx").read_bytes() == b"mine"
    model_files.write(RECIPES["small"], given.output / "again.onnx")
    assert (given.output / "again.onnx").read_bytes() == made  # seeded


def test_statistics_are_those_of_a_trained_network(tmp_path: Path) -> None:
    model_files.write(RECIPES["small"], tmp_path / "small.onnx")
    network = model_files.seeded(small())
    mean = network[1].running_mean
    assert mean is not None
    assert float(mean.abs().sum()) > 0
    model = onnx.load(tmp_path / "small.onnx")
    assert model.opset_import[0].version == model_files.OPSET
    assert [one.name for one in model.graph.input] == ["x"]
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}  # folded: evaluation mode


def test_any_model_of_timm_by_either_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images have the size that the library states."""

    def network(name: str) -> nn.Module:
        made = small()
        made.__dict__["default_cfg"] = {"input_size": (3, 24, 24)}
        return made

    monkeypatch.setattr(model_files, "timm_network", network)
    for dynamo in (False, True):
        folder = tmp_path / str(dynamo)
        assert model_files.write_all(Namespace(names=["timm:small"], output=folder, dynamo=dynamo), RECIPES) == 0
        (image,) = onnx.load(folder / "small.onnx").graph.input
        assert [axis.dim_value for axis in image.type.tensor_type.shape.dim] == [1, 3, 24, 24]


def test_no_weights_are_all_the_same() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    for weight in network.parameters():
        nn.init.zeros_(weight)
    model_files.seeded(network)
    assert [bool(weight.std() > 0) for weight in network.parameters()] == [True, False, True, False]  # not biases


def test_names_and_folders_that_do_not_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model 'large'; there are refusing, detector, small, and timm:NAME"):
        model_files.write_all(Namespace(names=["large"], output=tmp_path, dynamo=False), RECIPES)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="choose another folder with -o"):
        model_files.write_all(Namespace(names=["small"], output=tmp_path / "file", dynamo=False), RECIPES)
    with pytest.raises(FileError, match="cannot write"):
        model_files.write(RECIPES["small"], tmp_path / "absent" / "small.onnx")
    with pytest.raises(ModelError, match="install cv2"):
        model_files.write(Recipe(lambda: missing("cv2")), tmp_path / "small.onnx")


def test_networks_of_the_script_itself_have_the_stated_shapes() -> None:
    assert model_files.UNet((4, 8, 16))(torch.zeros(1, 3, 16, 16)).shape == (1, 21, 16, 16)
    assert model_files.SuperResolution()(torch.zeros(1, 3, 8, 8)).shape == (1, 3, 32, 32)
    assert {"convnext_tiny", "yolov8n", "unet", "deeplabv3_mobilenet_v3_large"} <= set(model_files.all_recipes())
