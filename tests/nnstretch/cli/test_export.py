"""`nnstretch export`: files that other engines run, and one line for what cannot be written."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from nnstretch.branching.design.design import save_design
from nnstretch.frontends.onnx_file import load
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.networks.tiny_branching import branched

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

pytestmark = pytest.mark.usefixtures("network")

TINY = """
import torch
from tests.kits.networks.tiny_branching import SIDE, original


def tiny():
    return original(), torch.zeros(1, 1, SIDE, SIDE)
"""


def test_the_three_formats(cli: Cli, onnx_file: Path, folder: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 16, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(onnx_file)
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    for model in (str(onnx_file), "net.py:small"):
        made = answer_of(cli("export", model, "-o", "x.tflite", "--json"))
        assert made["format"] == "TFLite"
        assert made["bytes"] == (folder / "x.tflite").stat().st_size
        assert made["max_rel_error"] < 1e-5
        runner = interpreter.Interpreter("x.tflite").get_signature_runner()
        (name,) = runner.get_input_details()
        (y,) = runner(**{name: x.transpose(0, 2, 3, 1)}).values()
        assert np.allclose(y, expected, atol=1e-5)
    assert answer_of(cli("export", str(onnx_file), "-o", "y.onnx", "--json"))["max_rel_error"] is None
    assert [value.name for value in load("y.onnx").graph.inputs] == [session.get_inputs()[0].name]
    assert "torch.export" in cli("export", "net.py:small", "-o", "z.pt2")[1]
    assert np.allclose(torch.export.load("z.pt2").module()(torch.from_numpy(x)).detach(), expected, atol=1e-5)


def test_batch_layout_and_float16(cli: Cli, folder: Path) -> None:
    options = ("--float16", "--channels-first", "--batch", "3", "--no-check", "--json")
    assert answer_of(cli("export", "net.py:small", "-o", "x.tflite", *options))["max_rel_error"] is None
    opened = interpreter.Interpreter("x.tflite")
    assert opened.get_input_details()[0]["shape"].tolist() == [3, 1, 16, 16]
    assert np.float16 in [about["dtype"] for about in opened.get_tensor_details()]


def test_a_design(cli: Cli, folder: Path) -> None:
    (folder / "tiny.py").write_text(TINY)
    save_design(branched(0.5, 0.5).design, folder / "design.json")
    options = ("--design", "design.json", "--per-branch", "parts", "-p", "cpu:0,cpu:1")
    made = answer_of(cli("export", "tiny.py:tiny", "-o", "x.tflite", *options, "--json"))
    assert made["index"] == "parts/branches.json"
    assert [Path(path).name for path in made["branches"]] == [
        *(f"segment{s}-branch{b}.tflite" for s in (0, 1) for b in (0, 1)),
        "head.tflite",
    ]
    assert json.loads((folder / "parts" / "branches.json").read_text())["processors"] == ["cpu:0", "cpu:1"]
    assert "largest error" in cli("export", "tiny.py:tiny", "-o", "x.pt2", "--design", "design.json")[1]
    assert cli("export", "tiny.py:tiny", "-o", "x.onnx", "--design", "design.json")[0] == 0
    graph = load("x.onnx").graph
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == ["input", "y"]
    refuses(cli("export", "net.py:small", "-o", "x.onnx", "--design", "design.json"), "design")


def test_random_weights_are_reported(cli: Cli, folder: Path) -> None:
    status, _, err = cli("export", "squeezenet1_1", "--image-size", "32", "-o", "x.onnx")
    assert status == 0
    assert "the weights of squeezenet1_1 are random; give trained ones with --weights" in err


def test_what_cannot_be_written(cli: Cli, onnx_file: Path, package: Path, folder: Path) -> None:
    model = str(onnx_file)
    refuses(cli("export", model, "-o", "x.h5"), "ending '.h5'", ".tflite (TFLite)")
    refuses(cli("export", model, "-o", "x"), "no ending")
    refuses(cli("export", model, "-o", "missing/x.tflite"), "cannot write missing/x.tflite")
    refuses(cli("export", model, "-o", "x.onnx", "--float16"), "float16 weights are for .tflite files")
    refuses(cli("export", model, "-o", "x.onnx", "--channels-first"), "order of axes")
    refuses(cli("export", model, "-o", "x.onnx", "--per-branch", "parts"), "no branches", "--design")
    refuses(cli("export", model, "-o", "x.onnx", "--per-branch", "net.py"), "cannot make directory net.py")
    refuses(cli("export", model, "-o", "x.onnx", "-p", "cpu:0,cpu:1"), "a file per branch")
    refuses(cli("export", str(package), "-o", "x.onnx"), "is a package")
    refuses(cli("export", str(package), "-o", "x.pt2"), "is a package")
    refuses(cli("export", "net.py:small", "-o", "x.pt2", "--shape", "1,1,8,8"), "--image-size")
    refuses(cli("export", "resnet5", "-o", "x.onnx"), "did you mean", "resnet50")
    assert not [path for path in folder.iterdir() if path.suffix in (".h5", ".tflite", ".pt2", ".onnx")]


def test_dynamic_and_integer_inputs(cli: Cli, folder: Path) -> None:
    cases: tuple[tuple[str, int, list[str | int | None]], ...] = (
        ("open", TensorProto.FLOAT, ["n", 3, 8, 8]),
        ("words", TensorProto.INT64, [1, 4]),
    )
    for name, kind, shape in cases:
        ends = [helper.make_tensor_value_info(end, kind, shape) for end in "xy"]
        graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "graph", ends[:1], ends[1:])
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opset), folder / f"{name}.onnx")
    assert cli("export", "open.onnx", "-o", "x.tflite")[0] == 0  # for one image
    assert cli("export", "open.onnx", "-o", "x.tflite", "--shape", "2,3,8,8")[0] == 0
    assert cli("export", "open.onnx", "-o", "x.tflite", "--batch", "2")[0] == 0
    refuses(cli("export", "words.onnx", "-o", "w.tflite"), "input 'x' is int64")
    assert not (folder / "w.tflite").exists()
