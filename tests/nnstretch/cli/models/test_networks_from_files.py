"""Networks of ONNX and TFLite files in the commands: they keep their weights, names and preprocessing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch.cli.commands.train import _teacher_parts
from nnstretch.cli.models.networks import Network, NetworkOptions, build_network, preprocessing_of_file
from nnstretch.cli.training import training_images
from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.resolve import stated_image_size, stated_input_shape
from nnstretch.frontends.torch_module import export
from nnstretch.training.data.preprocessing import PREPROCESSING_KEY, Preprocessing
from nnstretch.training.recipe_files import load_recipe


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    module = nn.Sequential(
        block(3, 16), block(16, 16), block(16, 32, 2), block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)
    )  # fmt: skip
    graph = export(module.eval(), torch.randn(1, 3, 24, 24), input_names=["image"], output_names=["logits"])
    graph.metadata_props["author"] = "me"
    graph.metadata_props[PREPROCESSING_KEY] = Preprocessing(
        image_size=24, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)
    ).to_json()
    path = tmp_path_factory.mktemp("files") / "small.onnx"
    save(graph, path)
    return path


def check_ends(network: Network) -> None:
    graph = network.export()
    assert [value.name for value in (*graph.graph.inputs, *graph.graph.outputs)] == ["image", "logits"]
    assert graph.metadata_props["author"] == "me"
    assert "0.1" in graph.metadata_props[PREPROCESSING_KEY]


def test_a_branched_network_keeps_names_and_preprocessing(file: Path) -> None:
    network = build_network(str(file), NetworkOptions())
    check_ends(network)
    processors = "sim:phone/cpu,sim:phone/gpu"
    result = nns.stretch(str(file), processors=processors, best_effort=True, even_if_slower=True, designs=1)[0]
    check_ends(replace(network, module=result.module, design=result.design))


def test_images_are_those_of_the_file(file: Path) -> None:
    assert stated_image_size(stated_input_shape(str(file))) == 24
    stated = preprocessing_of_file(str(file))
    assert stated is not None
    np.testing.assert_allclose(stated.mean, (0.1, 0.2, 0.3))
    images = training_images("digits", str(file), load_recipe("quick", str(file)))
    assert (images.image_size, images.channels) == (24, 3)
    assert images.preprocessing.mean == stated.mean


def test_other_images_than_the_network_takes_are_refused(file: Path) -> None:
    with pytest.raises(
        ModelError, match=r"small.onnx is for images of 3×24×24, which --image-size or the data contradict"
    ):
        build_network(str(file), NetworkOptions(in_channels=1))
    assert build_network(str(file), NetworkOptions(image_size=40)).example_input.shape[-1] == 40  # it pools its map


def test_teachers_in_files_have_weights(file: Path) -> None:
    assert _teacher_parts(str(file)) == (str(file), None)
    assert _teacher_parts("resnet18:a.safetensors") == ("resnet18", Path("a.safetensors"))
    with pytest.raises(UsageError, match="or the name of an ONNX or TFLite file"):
        _teacher_parts("resnet18")


def test_names_of_no_file_are_refused_by_stretch() -> None:
    with pytest.raises(ModelError, match="no zoo network is called 'resnet'; did you mean"):
        nns.stretch("resnet")
    with pytest.raises(UsageError, match="example_input is of type NoneType"):
        nns.stretch(nn.ReLU())
