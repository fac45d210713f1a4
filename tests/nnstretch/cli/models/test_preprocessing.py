"""The preprocessing of a training travels with weights and everything made of them; evaluations and calibrations use it."""

from dataclasses import asdict
from pathlib import Path

import onnx
import pytest
from PIL import Image

from nnstretch.cli.models.networks import NetworkOptions, build_network
from nnstretch.errors import FileError
from nnstretch.package import read_package
from nnstretch.training.data.preprocessing import (
    PREPROCESSING_KEY,
    Preprocessing,
    preprocessing_beside,
    stated_preprocessing,
    write_preprocessing,
)
from nnstretch.training.weights import save_weights
from nnstretch.vision.classes import stated_names
from tests.kits.command_line import Cli, answer_of, refuses

SOURCES = """
from dataclasses import dataclass
import numpy as np
import torch
from nnstretch.training.data.preprocessing import Preprocessing
from nnstretch.training.data.split import RawImages, dataset_of

class Sign(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(1, 2, 1, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([-1.0, 1.0]).reshape(2, 1, 1, 1))

    def forward(self, x):
        return self.layer(x).mean(dim=(2, 3))

def sign():
    return Sign(), torch.zeros(1, 1, 8, 8)

@dataclass(frozen=True, eq=False)
class Greys(RawImages):
    labels: np.ndarray
    preprocessing: Preprocessing

    def raw(self, index, epoch):
        return np.full((10, 12, 1), (100, 150)[self.labels[index]], np.uint8)

def greys():
    split = Greys(np.arange(40) % 2, Preprocessing(8, 1, (0.9,), (0.1,)))
    return dataset_of("greys", ("dark", "light"), [split, split, split])
"""
OF_TRAINING = Preprocessing(8, 1, (125 / 255,), (0.5,), 0.8, "nearest")
QUICK = ("--data", "own.py:greys", "--json")


@pytest.fixture
def weights(folder: Path) -> Path:
    """Weights whose network tells the two greys apart if they lie on both sides of zero."""
    (folder / "own.py").write_text(SOURCES)
    network = build_network("own.py:sign", NetworkOptions())
    about = {"preprocessing": asdict(OF_TRAINING), "classes": ["dark", "light"]}
    save_weights(network.module, folder / "sign.safetensors", network.metadata(**about))
    return folder / "sign.safetensors"


def test_every_form_of_a_network_is_evaluated_with_the_preprocessing_of_its_training(cli: Cli, weights: Path) -> None:
    network = ("own.py:sign", "--weights", str(weights))
    untuned = ("--no-tune", "--threads", "1")
    assert answer_of(cli("evaluate", "own.py:sign", "--engine", "torch", *QUICK))["top1"] == 50.0
    assert cli("compile", *network, *untuned, "-o", "sign.nns")[0] == 0
    assert cli("quantize", *network, "--data", "own.py:greys", "--images", "8", "-o", "int8.onnx")[0] == 0
    assert cli("compile", "int8.onnx", *untuned, "-o", "int8.nns")[0] == 0
    assert cli("compile", *network, *untuned, "--standalone", "-o", "alone")[0] == 0
    assert stated_names(read_package(Path("sign.nns")).metadata) == {0: "dark", 1: "light"}
    (alone,) = Path("alone").glob("*.nnm")
    assert preprocessing_beside(alone) == OF_TRAINING
    (stated,) = [entry for entry in onnx.load("int8.onnx").metadata_props if entry.key == PREPROCESSING_KEY]
    assert stated_preprocessing({PREPROCESSING_KEY: stated.value}, "int8.onnx") == OF_TRAINING
    for form in (
        (*network, "--engine", "torch"),
        (*network, "--engine", "onnxruntime"),
        (*network, *untuned),
        ("sign.nns",),
        ("int8.onnx", *untuned),
        ("int8.onnx", "--engine", "onnxruntime"),
        ("int8.nns",),
        (str(alone),),
    ):
        assert answer_of(cli("evaluate", *form, *QUICK))["top1"] == 100.0, form


def test_branched_networks_inherit_it(cli: Cli, weights: Path) -> None:
    network = build_network("own.py:sign", NetworkOptions(image_size=16), weights)
    assert network.preprocessing is not None
    assert network.preprocessing.image_size == 16
    save_weights(network.module, weights.with_name("again.safetensors"), network.metadata())
    again = build_network("own.py:sign", NetworkOptions(image_size=8), weights.with_name("again.safetensors"))
    assert again.preprocessing == OF_TRAINING


def test_a_preprocessing_that_cannot_be_read_is_one_line(cli: Cli, weights: Path) -> None:
    network = build_network("own.py:sign", NetworkOptions())
    save_weights(network.module, weights, network.metadata(preprocessing={"image_size": 0}))
    answer = cli("evaluate", "own.py:sign", "--weights", str(weights), "--engine", "torch", "--data", "own.py:greys")
    refuses(answer, "states a preprocessing that cannot be read")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"nnstretch.preprocessing": {"image_size": 0}}'])
def test_a_preprocessing_beside_a_model_is_read_or_refused(tmp_path: Path, content: str) -> None:
    model = tmp_path / "net.nnm"
    assert preprocessing_beside(model) is None
    assert write_preprocessing(model, OF_TRAINING).name == "net.nnm.json"
    assert preprocessing_beside(model) == OF_TRAINING
    (tmp_path / "net.nnm.json").write_text(content)
    with pytest.raises(FileError, match="preprocessing") as caught:
        preprocessing_beside(model)
    assert "\n" not in str(caught.value)


def test_test_images_that_cannot_be_decoded_are_refused_or_skipped_and_counted(cli: Cli, weights: Path) -> None:
    for split, count in (("train", 1), ("val", 1), ("test", 20)):
        for label, value in (("dark", 100), ("light", 150)):
            folder = Path("photos") / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("L", (10, 12), value).save(folder / f"{number}.png")
    Path("photos/test/dark/17.png").write_bytes(b"no image")
    given = ("evaluate", "own.py:sign", "-w", str(weights), "--engine", "torch", "--data", "folder:photos", "--json")
    refuses(cli(*given), "1 of 40 test images cannot be decoded: photos/test/dark/17.png", "--skip-unreadable")
    answer = answer_of(cli(*given, "--skip-unreadable"))
    assert (answer["images"], answer["skipped"], answer["top1"]) == (39, 1, 100.0)
    status, out, err = cli(*given[:-1], "--skip-unreadable")
    assert status == 0
    assert "on 39 images of folder:photos (1 more cannot be decoded)" in " ".join(out.split())
    assert "17.png" in out + err
