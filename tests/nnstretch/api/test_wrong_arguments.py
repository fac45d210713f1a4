"""Wrong arguments of public calls: one line of an NNStretchError, or a TypeError where Python's own calls raise one."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import nnstretch as nns

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }'
X = np.zeros((1, 3), np.float32)
FEEDS = {"x": X}
PYTHON = {
    "raises": "def f():\n    raise ValueError('no')",
    "damaged": "def f(:",
    "ends": "import sys; sys.exit(3)",
    "fails": "raise RuntimeError('at import')",
    "nothing": "def f():\n    return None",
    "wants": "def f(x):\n    return x",
    "text_input": "import torch\ndef f():\n    return torch.nn.Linear(3, 3), 'x'",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are no models, and one that is."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "good.onnx").write_bytes(parser.parse_model(MODEL).SerializeToString())
    for ending in ("onnx", "nns", "json", "pt"):
        (folder / f"empty.{ending}").touch()
        (folder / f"text.{ending}").write_text("hello\n")
        (folder / f"folder.{ending}").mkdir()
        (folder / f"pickled.{ending}").write_bytes(pickle.dumps({"a": 1}))
        torch.save(torch.nn.Linear(2, 2).state_dict(), folder / f"torch.{ending}")
    for name, text in PYTHON.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def here(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    return world


def refuses(call: Callable[[], object], kind: type[Exception] = nns.NNStretchError) -> None:
    with pytest.raises(kind) as caught:
        call()
    if kind is not TypeError:
        assert str(caught.value)
        assert "\n" not in str(caught.value)


FILES = ("missing", "empty", "text", "folder", "pickled", "torch")


@pytest.mark.parametrize("name", [f"{name}.{ending}" for name in FILES for ending in ("onnx", "nns", "pt")])
def test_files_that_are_no_models(here: Path, name: str) -> None:
    refuses(lambda: nns.compile(name))
    refuses(lambda: nns.compile(here / name))


@pytest.mark.parametrize("name", [f"{name}.json" for name in FILES] + ["good.onnx", ""])
def test_files_that_are_no_plans(here: Path, name: str) -> None:
    refuses(lambda: nns.compile("good.onnx", plan=name))


@pytest.mark.parametrize(
    "model",
    ["", " ", ".", "/", ":", "nothing", "resnet18:3", "x\0.onnx", "\0", "missing.py:f", "good.onnx:f", "raises.py"]
    + [f"{name}.py:f" for name in PYTHON]
    + [None, 3, b"resnet18", [], X, object(), torch.nn.Linear, onnx.ModelProto(), parser.parse_model(MODEL).graph],
)
def test_what_names_no_model(here: Path, model: Any) -> None:
    refuses(lambda: nns.compile(model, tune=False))


@pytest.mark.parametrize("example", [None, 3, (), torch.zeros(1, 4)])
def test_example_inputs(example: Any) -> None:
    refuses(lambda: nns.compile(torch.nn.Linear(3, 3), example, tune=False))


OPTIONS: dict[str, list[Any]] = {
    "processors": [None, 3, "", ",", "cpu:999", "gpu", "cpu:-1", ["cpu:0"], b"cpu", "sim:", "\0"],
    "dtype": [3, "float64", "int8", "hybrid"],
    "threads": [0, -1, "2", 1.5],
    "shapes": [3, "x", [], {"x": 3}, {"x": "1,3"}, {"x": (-1, 3)}, {"x": (1.5, 3)}, {3: (1, 3)}, {"z": (1, 3)}],
    "batch": [0, -1, 2, "2", 1.5],
    "engines": [None, 3, "x", ["x"], "ort", [3]],
    "tolerance": [-1, 0, "x", float("nan")],
    "plan": [3, b"x"],
    "streams": [0, -1, "2", 1.5],
    "plans": [3, "cpu:0", [], [3], ["nothing"], [""]],
    "policy": [3, "nothing", "deadline=", "deadline=x"],
    "target": [None, 3, "", "nothing"],
    "progress": [3, "x"],
    "options": [3, "x", nns.StretchOptions()],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OPTIONS.items() for value in values])
def test_options_of_compile(here: Path, name: str, value: Any) -> None:
    untuned: dict[str, Any] = {} if name in ("options", "plan") else {"tune": False}
    refuses(lambda: nns.compile("good.onnx", **untuned, **{name: value}))


@pytest.fixture(scope="module", params=["one plan", "streams", "plans"])
def session(request: pytest.FixtureRequest, world: Path) -> Iterator[nns.Session]:
    options: dict[str, dict[str, Any]] = {
        "one plan": {"processors": "cpu:0"},
        "streams": {"processors": "cpu:0", "streams": 1},
        "plans": {"plans": ["cpu:0", "ort@0"]},
    }
    with nns.compile(world / "good.onnx", tune=False, **options[request.param]) as made:
        yield made


WRONG_FEEDS: list[Any] = [
    *(3, [], "x", X, {3: X}, {"z": X}, {"x": X, 3: X}, {"x": None}, {"x": X[0]}, {"x": X[:0]}, {"x": X.astype(float)}),
    *({"x": [[1], [1, 2]]}, {"x": object()}, {"x": torch.zeros(1, 3, requires_grad=True)}),
]


@pytest.mark.parametrize("feeds", WRONG_FEEDS)
def test_feeds(session: nns.Session, feeds: Any) -> None:
    refuses(lambda: session.run(None, feeds), nns.FeedError)
    refuses(lambda: session.run(None, feeds, deadline=9.0), nns.FeedError)
    refuses(lambda: session.submit(feeds), nns.FeedError)
    refuses(lambda: session.run_many([feeds]), nns.FeedError)
    refuses(lambda: list(session.stream([feeds])), nns.FeedError)
    refuses(lambda: session.time(feeds, warmup=0, runs=1), nns.FeedError)
    refuses(lambda: session.profile(feeds, runs=1), nns.FeedError)
    (error,) = session.run_many([feeds], return_errors=True)
    assert isinstance(error, nns.FeedError)


@pytest.mark.parametrize("names", [3, "y", "yy", b"y", ["z"], [3], [["y"]], object()])
def test_output_names(session: nns.Session, names: Any) -> None:
    refuses(lambda: session.run(names, FEEDS), nns.FeedError)
    refuses(lambda: session.submit(FEEDS, names), nns.FeedError)
    refuses(lambda: session.run_many([FEEDS], names), nns.FeedError)


@pytest.mark.parametrize("deadline", [0, -1, "x", [], float("nan"), float("inf"), 1e300])
def test_deadlines(session: nns.Session, deadline: Any) -> None:
    refuses(lambda: session.run(None, FEEDS, deadline=deadline), nns.UsageError)


@pytest.mark.parametrize(
    "numbers",
    [{"runs": "x"}, {"runs": 1.5}, {"runs": 2**40}, {"warmup": "x"}, {"budget": "x"}, {"budget": float("nan")}],
)
def test_numbers_of_runs(session: nns.Session, numbers: dict[str, Any]) -> None:
    refuses(lambda: session.time(**numbers), nns.UsageError)


def test_long_budgets_are_no_limit(session: nns.Session) -> None:
    for budget in (float("inf"), 1e300):
        assert len(session.time(warmup=0, runs=2, budget=budget)) == 2


@pytest.mark.parametrize("path", ["", ".", "x\0.nns", "missing/folder/x.nns"])
def test_places_for_packages(session: nns.Session, here: Path, path: str) -> None:
    refuses(lambda: session.save(path))


@pytest.mark.parametrize("metadata", [3, "x", {"a": object()}, {("a",): 1}])
def test_metadata(session: nns.Session, tmp_path: Path, metadata: Any) -> None:
    refuses(lambda: session.save(tmp_path / "x.nns", metadata))
    assert not list(tmp_path.iterdir())


def test_closed_sessions(here: Path) -> None:
    session = nns.compile("good.onnx", processors="cpu:0", tune=False)
    session.close()
    session.close()
    with pytest.raises(nns.UsageError, match="the session is closed"):
        session.run(None, FEEDS)
    refuses(lambda: session.submit(FEEDS).result(), nns.UsageError)
    refuses(session.time, nns.UsageError)
    refuses(session.profile, nns.UsageError)


STRETCH: dict[str, list[Any]] = {
    "processors": [None, 3, "cpu:0"],
    "limits": [3],
    **{name: [-1, "x"] for name in ("alpha", "beta", "min_depth", "min_width", "min_macs", "max_segment", "target_ms")},
    "designs": [0, "x", None],
    "multiple": [0, "x"],
    "merge": [None, 3, "x"],
    "time_limit": [-1, "x"],
    "best_effort": [3, "x"],
    "even_if_slower": [3, "x"],
    "fresh": [3, "x"],
    "progress": [3],
    "options": [3, nns.CompileOptions()],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in STRETCH.items() for value in values])
def test_options_of_stretch(name: str, value: Any) -> None:
    network, image = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU()), torch.zeros(1, 3, 8, 8)
    others = {} if name == "options" else {"processors": "cpu:0,ort@0", "measure": False, name: value}
    refuses(lambda: nns.stretch(network, image, **(others or {name: value})))


@pytest.mark.parametrize("wrong", [None, 3, "x", [], X])
def test_modules_of_stretch(wrong: Any) -> None:
    kind = nns.ModelError if isinstance(wrong, str) else nns.UsageError  # a name that nothing has
    refuses(lambda: nns.stretch(wrong, torch.zeros(1, 3, 8, 8)), kind)
    refuses(lambda: nns.stretch(torch.nn.Conv2d(3, 3, 3), wrong), nns.UsageError)


@pytest.mark.parametrize(("name", "size"), [("net.py:make", 224), ("net.py:sized", 16), ("squeezenet1_1", 224)])
def test_names_that_stretch_takes(here: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int) -> None:
    (here / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Conv2d(3, 4, 3)\n"
        "def sized():\n    return make(), torch.zeros(1, 3, 16, 16)\n"
    )
    monkeypatch.setattr("nnstretch.api.stretch.stretch_on", lambda module, image, *_: [(module, image)])
    calls: Any = nns.stretch
    for given, wanted in ((None, size), (torch.zeros(1, 3, 8, 8), 8)):
        ((module, image),) = calls(name, given, "sim:phone/cpu,sim:phone/gpu")
        assert isinstance(module, torch.nn.Module)
        assert image.shape == (1, 3, wanted, wanted)


@pytest.mark.parametrize(
    "options",
    [
        *({"num_classes": 0}, {"num_classes": 1.5}, {"num_classes": "x"}, {"num_classes": 2**60}),
        *({"in_channels": 0}, {"in_channels": None}, {"seed": "x"}, {"seed": 2**70}),
    ],
)
def test_zoo(options: dict[str, Any]) -> None:
    refuses(lambda: nns.create_model("squeezenet1_1", **options), nns.ModelError)
    refuses(lambda: nns.create_model("nothing"), nns.ModelError)


@pytest.mark.parametrize("text", [None, 3, "", "x", "{}", "[]", b"\xff"])
def test_plans_and_designs(text: Any) -> None:
    refuses(lambda: nns.Plan.from_json(text), nns.PackageError)
    refuses(lambda: nns.Design.from_json(text), nns.DesignError)


def test_wrong_types_as_in_python(here: Path) -> None:
    api: Any = nns
    with api.compile("good.onnx", processors="cpu:0", tune=False) as session:
        refuses(api.compile, TypeError)
        for function, name, meant in (
            (api.compile, "nothing", ""),
            (api.compile, "shape", "; did you mean 'shapes'?"),
            (api.compile, "procesors", "; did you mean 'processors'?"),
            (api.stretch, "top", "; did you mean 'designs'?"),
            (api.stretch, "latency_target", "; did you mean 'target_ms'?"),
        ):
            with pytest.raises(TypeError, match=re.escape(f"() has no argument {name!r}{meant}") + "$"):
                function("good.onnx", **{name: 3})
        refuses(lambda: api.list_models(3), TypeError)
        refuses(lambda: api.create_model(3), TypeError)
        refuses(lambda: api.list_devices(progress=3), TypeError)
        refuses(lambda: session.run_many(3), TypeError)
        refuses(lambda: session.save(None), TypeError)
