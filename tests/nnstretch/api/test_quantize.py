"""`nns.quantize`: a model in any form becomes an int8 file, and wrong arguments are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch

import nnstretch as nns

if TYPE_CHECKING:
    from nnstretch.quantization import Method

EXAMPLES = [{"x": np.random.default_rng(seed).standard_normal((1, 3, 8, 8), np.float32)} for seed in range(4)]


def module() -> torch.nn.Module:
    """A small network of two layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    ).eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as an ONNX file, whose input is called `x`."""
    path = tmp_path_factory.mktemp("model") / "float.onnx"
    torch.onnx.export(module(), (torch.zeros(1, 3, 8, 8),), path, input_names=["x"], dynamo=True, external_data=False)
    return path


def test_every_form_of_calibration_data_gives_the_same_file(file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "examples.npz", x=np.concatenate([one["x"] for one in EXAMPLES]))
    made = nns.quantize(file, EXAMPLES, tmp_path / "a.onnx")
    assert made.int8 > made.others
    assert made.kept == ()
    assert made.error is not None
    assert 0 < made.error < 0.1
    assert str(made).startswith(f"{made.int8} layers in int8, {made.others} in float32; output error ")
    assert nns.quantize(file, tmp_path / "examples.npz", tmp_path / "b.onnx").error == made.error
    session = nns.compile(tmp_path / "a.onnx", tune=False)
    exact = module()(torch.from_numpy(EXAMPLES[0]["x"])).detach().numpy()
    assert np.abs(session.run(None, EXAMPLES[0])[0] - exact).max() < 0.1 * np.abs(exact).max()


def test_options_reach_the_quantiser(file: Path, tmp_path: Path) -> None:
    made = nns.quantize(file, EXAMPLES, tmp_path / "q.onnx", method="mse", keep_float=["auto:1"], bias_correction=True)
    assert made.kept[0] == made.sensitivity[0].name  # the most sensitive layer
    assert len(made.sensitivity) == 2
    assert made.corrected == 1
    assert made.rounded == ()
    rounded = nns.quantize(file, EXAMPLES, tmp_path / "r.onnx", rounding="adaptive").rounded
    assert len(rounded) == 2
    assert all(layer.error <= layer.nearest for layer in rounded)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda file, folder: nns.quantize(file, EXAMPLES, folder / "q.tflite"), "q.onnx"),
        (lambda file, folder: nns.quantize(file, EXAMPLES, folder / "q.onnx", images=0), "images is 0"),
        (lambda file, folder: nns.quantize(file, cast("Any", EXAMPLES[0]), folder / "q.onnx"), "a list of mappings"),
        (lambda file, folder: nns.quantize(file, cast("Any", [np.zeros(3)]), folder / "q.onnx"), "a list of mappings"),
        (
            lambda file, folder: nns.quantize(file, cast("Any", np.zeros((2, 3))), folder / "q.onnx"),
            "mappings, one per run",
        ),
        (
            lambda file, folder: nns.quantize(file, EXAMPLES, folder / "q.onnx", method=cast("Method", "median")),
            "median",
        ),
        (lambda file, folder: nns.quantize(file, EXAMPLES, folder / "q.onnx", keep_float=["auto:0"]), "auto:0"),
        (lambda file, folder: nns.quantize(file, [], folder / "q.onnx"), "no"),
        (lambda file, folder: nns.quantize(file, folder / "none.npz", folder / "q.onnx"), "none.npz"),
    ],
)
def test_wrong_arguments_are_refused(
    call: Callable[[Path, Path], object], text: str, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(nns.NNStretchError, match=text) as caught:
        call(file, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "q.onnx").exists()
