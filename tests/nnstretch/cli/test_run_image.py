"""`nnstretch run --image`: classes, boxes and class maps of an image, from files, packages and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.kits.command_line import Cli, answer_of, refuses

SIDE = 64


def write_network(path: Path, answer: np.ndarray, *, names: str = "", channels: int = 3, width: int = SIDE) -> str:
    """A network that answers every image with the same numbers, plus 0 times its mean."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["answer", "nothing"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(answer.astype(np.float32), "answer"),
        numpy_helper.from_array(np.zeros((), np.float32), "zero"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, SIDE, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(answer.shape))
    graph = helper.make_graph(nodes, "constant", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    if names:
        helper.set_model_props(model, {"names": names})
    onnx.save(model, path)
    return str(path)


@pytest.fixture
def image(tmp_path: Path) -> str:
    """An image twice as wide as high: in an input of 64 × 64 it has 16 rows of border above and below."""
    path = tmp_path / "image.png"
    Image.fromarray(np.full((100, 200, 3), 50, np.uint8)).save(path)
    return str(path)


def boxes() -> np.ndarray:
    """One box of class 1: left 16, top 24, right 48, bottom 40 in pixels of the input."""
    found = np.zeros((1, 6, 84), np.float32)
    found[0, :, 7] = (32, 32, 32, 16, 0.1, 0.75)
    return found


def test_boxes_are_those_of_the_image_and_drawn(cli: Cli, tmp_path: Path, image: str) -> None:
    model = write_network(tmp_path / "detector.onnx", boxes(), names="{0: 'bus', 1: 'cat'}")
    compiled = str(tmp_path / "detector.nns")
    answer_of(cli("compile", model, "--no-tune", "-o", compiled, "--json"))
    for network in (model, compiled):
        picture = str(tmp_path / "drawn.png")
        extra = ["--no-tune"] if network == model else []
        answer = answer_of(cli("run", network, *extra, "--image", image, "-o", picture, "-n", "1", "--json"))
        (found,) = answer["detections"]
        assert (found["class"], found["name"], found["score"]) == (1, "cat", 0.75)
        assert found["box"] == [50.0, 25.0, 150.0, 75.0]
        pixels = np.asarray(Image.open(picture))
        assert pixels.shape == (100, 200, 3)
        assert (pixels[75, 60:140] != 50).any(axis=1).all()
        Path(picture).unlink()
    _, out, _ = cli("run", model, "--no-tune", "--image", image, "-n", "1", "--conf", "0.8")
    assert "no box is as probable" in out


def test_classes_and_class_maps(cli: Cli, tmp_path: Path, image: str) -> None:
    classifier = write_network(tmp_path / "classifier.onnx", np.log([[0.2, 0.7, 0.1]]), channels=1)
    answer = answer_of(cli("run", classifier, "--no-tune", "--image", image, "-n", "1", "--json"))
    assert [(one["class"], one["share"]) for one in answer["classes"]] == [(1, 0.7), (0, 0.2), (2, 0.1)]
    scores = np.zeros((1, 3, 8, 8), np.float32)
    scores[0, 2, :, 4:] = 1
    segmenter = write_network(tmp_path / "segmenter.onnx", scores)
    picture = str(tmp_path / "map.jpg")
    answer = answer_of(cli("run", segmenter, "--no-tune", "--image", image, "-o", picture, "-n", "1", "--json"))
    assert [(one["class"], one["share"]) for one in answer["classes"]] == [(0, 0.5), (2, 0.5)]
    assert Image.open(picture).size == (SIDE, SIDE)


def test_outputs_that_are_not_shown_are_named(cli: Cli, tmp_path: Path, image: str) -> None:
    path = tmp_path / "two.onnx"
    model = onnx.load(write_network(path, np.zeros((1, 3))))
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 3]))
    onnx.save(model, path)
    said = cli("run", str(path), "--no-tune", "--image", image, "-n", "1")[2]
    assert "the classes are those of output y; -o FILE.npz writes z, too" in said


def test_an_input_that_is_not_square(cli: Cli, tmp_path: Path, image: str) -> None:
    scores = np.zeros((1, 2, 8, 16), np.float32)
    scores[0, 1, :, 4:] = 1
    segmenter = write_network(tmp_path / "wide.onnx", scores, width=2 * SIDE)
    picture = str(tmp_path / "map.png")
    answer = answer_of(cli("run", segmenter, "--no-tune", "--image", image, "-o", picture, "-n", "1", "--json"))
    assert [(one["class"], one["share"]) for one in answer["classes"]] == [(1, 0.75), (0, 0.25)]
    assert Image.open(picture).size == (2 * SIDE, SIDE)


def test_what_cannot_be_shown_is_refused(cli: Cli, tmp_path: Path, image: str) -> None:
    classifier = write_network(tmp_path / "classifier.onnx", np.zeros((1, 3)))
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    cases = {
        ("--image", image, "-o", str(tmp_path / "x.png")): "classes of the whole image, which are not drawn",
        ("--image", str(tmp_path / "absent.jpg")): "absent.jpg",
        ("--image", str(text)): "no image that Pillow knows",
        ("--image", image, "--input", "x=y.npy"): "--image is the input",
        ("--image", image, "--conf", "2"): "--conf is 2; 0 to 1",
        ("--iou", "0.5"): "add --image FILE",
        ("--image", image, "--iou", "0.5"): "--conf and --iou choose boxes, and the outputs of ",
        ("-o", str(tmp_path / "x.png")): "add --image FILE",
    }
    for arguments, wanted in cases.items():
        refuses(cli("run", classifier, "--no-tune", "-n", "1", *arguments), wanted)
    assert not (tmp_path / "x.png").exists()
    wide = write_network(tmp_path / "wide.onnx", np.zeros((1, 3)), channels=4)
    refuses(cli("run", wide, "--no-tune", "--image", image), "1,3,H,W")
