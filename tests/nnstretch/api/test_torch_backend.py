"""`torch.compile(backend="nnstretch")` computes what torch computes, and leaves to torch what it cannot."""

from __future__ import annotations

import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnstretch.api import torch_backend
from nnstretch.api.torch_backend import CompiledGraph, backend, options_of
from nnstretch.frontends.onnx_file import ModelWarning
from tests.kits.boards.cores import OWN_CORE

ROOT = Path(__file__).resolve().parents[3]
OPTIONS: dict[str, Any] = {"processors": f"cpu:{OWN_CORE}", "threads": 1, "tune": False}
IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A small network; what is called `between` stands between its two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.between(self.first(x)))
        return y


class Talking(Block):
    def between(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2 if x.sum() > 0 else x


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


class Repeated(nn.Module):
    """Two modules of one class, each a graph of its own: dynamo has one compiled graph for both."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Part(), Part()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
            torch._dynamo.graph_break()
        return x


class Sessions:
    """Counts the graphs that are handed to the backend and the sessions that are made of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs, self.sessions = 0, 0
        compiled = CompiledGraph._compiled

        def counting(graph: CompiledGraph, arguments: Any, constants: Any) -> Any:
            session = compiled(graph, arguments, constants)
            self.sessions += session is not None
            return session

        monkeypatch.setattr(CompiledGraph, "_compiled", counting)

    def compile(self, module: nn.Module, **more: Any) -> Any:
        def counted(graph: Any, examples: Any, **kwargs: Any) -> Any:
            self.graphs += 1
            return backend(graph, examples, **kwargs)

        return torch.compile(module, backend=counted, options={**OPTIONS, **more})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        yield Sessions(monkeypatch)
    torch._dynamo.reset()


def test_the_entry_point_is_the_backend() -> None:
    group = "torch_dynamo_backends"
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    assert EntryPoint("nnstretch", named["nnstretch"], group).load() is backend


def test_outputs_are_those_of_eager_for_all_shapes_and_weights(made: Sessions) -> None:
    module = Block().eval()
    compiled = made.compile(module)
    images = [IMAGE, IMAGE + 1, IMAGE.repeat(2, 1, 1, 1), IMAGE.repeat(3, 1, 1, 1), IMAGE]
    for image in images:
        torch.testing.assert_close(compiled(image), module(image), atol=1e-4, rtol=1e-4)
    assert made.sessions == 3  # one per shape, whatever dynamo makes of them
    nn.init.constant_(module.get_parameter("second.0.bias"), 1.0)
    torch.testing.assert_close(compiled(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4)
    assert made.sessions == 4


def test_parameters_that_get_other_data_are_seen(made: Sessions) -> None:
    module = Part().eval()
    compiled = made.compile(module)
    for factor in (1.0, 2.0, 3.0, 4.0):
        module.conv.weight.data = factor * module.conv.weight.data  # memory that was freed may come back
        torch.testing.assert_close(compiled(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4)
    assert made.sessions == 4


def test_parameters_of_inference_mode_may_change_unseen(made: Sessions) -> None:
    with torch.inference_mode():
        module = Part().eval()
        compiled = made.compile(module)
        with pytest.warns(ModelWarning, match=r"made under torch.inference_mode\(\)"):
            compiled(IMAGE)
        module.conv.weight.mul_(2)
        torch.testing.assert_close(compiled(IMAGE), module(IMAGE))
    assert made.sessions == 0


def test_graphs_are_compiled_one_at_a_time(made: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [Part().eval(), Part().eval()]
    compiled = [made.compile(module) for module in modules]
    for call in compiled:
        call(IMAGE)
    inside: list[str] = []
    most = 0
    captured = torch_backend._captured

    def slow(*arguments: Any) -> Any:
        nonlocal most
        inside.append("")
        most = max(most, len(inside))
        time.sleep(0.2)
        inside.pop()
        return captured(*arguments)

    def run(number: int) -> Tensor:
        with torch.no_grad():
            modules[number].conv.weight.mul_(2)
            y: Tensor = compiled[number](IMAGE)
            return y

    monkeypatch.setattr(torch_backend, "_captured", slow)
    before = sys.stdout, list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, range(2)))
    assert (most, made.sessions) == (1, 4)
    assert (sys.stdout, list(warnings.filters)) == before
    for y, module in zip(found, modules, strict=True):
        torch.testing.assert_close(y, module(IMAGE), atol=1e-4, rtol=1e-4)


def test_graph_breaks_make_several_graphs(made: Sessions) -> None:
    module = Talking().eval()
    torch.testing.assert_close(made.compile(module)(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4)
    assert made.sessions >= 3  # before the break, the condition, after it


def test_one_graph_with_other_parameters_is_compiled_for_these(made: Sessions) -> None:
    module = Repeated().eval()
    compiled = made.compile(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4)
    assert made.sessions == 2


def test_integers_are_inputs_too(made: Sessions) -> None:
    module = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)).eval()
    words = torch.tensor([[1, 2, 9]])
    with torch.inference_mode():
        torch.testing.assert_close(made.compile(module)(words), module(words), atol=1e-4, rtol=1e-4)
    assert made.sessions == 1


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.flatten(1).view(1, 1, -1, 16)).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_attention_without_dropout_draws_no_random_numbers(made: Sessions) -> None:
    module = Attending().eval()
    with torch.no_grad():
        torch.testing.assert_close(made.compile(module)(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4)
    assert made.sessions == 1


class Noise(Block):
    def between(self, x: Tensor) -> Tensor:
        return x + 0 * torch.rand_like(x)


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1)


@pytest.mark.parametrize(
    ("module", "grad", "why"),
    [
        (Block().eval(), True, "gradients may be asked for"),
        (Block().train(), False, "writes to 3 of its inputs or buffers"),
        (Noise().eval(), False, "draws random numbers"),
        (Flat(), False, "a view of an input"),
        (nn.Hardswish(), False, None),
    ],
)
def test_what_cannot_be_compiled_is_left_to_torch_with_one_warning(
    made: Sessions, module: nn.Module, grad: bool, why: str | None
) -> None:
    image = IMAGE if why else IMAGE.double()
    compiled = made.compile(module)
    with torch.set_grad_enabled(grad):
        expected = module(image)
        with pytest.warns(ModelWarning, match=why or "float64") as warned:
            found = [compiled(image) for _ in range(2)]
    for y in found:
        torch.testing.assert_close(y, expected)
        assert y.requires_grad == expected.requires_grad
    assert len([w for w in warned if w.category is ModelWarning]) == 1
    assert (made.graphs, made.sessions) == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 2}, "option 'speed' of backend nnstretch"),
        ({"processors": "abacus"}, "abacus"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": "4"}, r"option 'threads' .* is '4'; give a value of type int \| None"),
        ({"processors": ["cpu"]}, "give a value of type str"),
        ({"dtype": "float8"}, "dtype 'float8' is not supported"),
    ],
)
def test_wrong_options_are_errors(made: Sessions, options: dict[str, Any], message: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        made.compile(Block().eval(), **options)(IMAGE)


def test_a_type_is_an_option() -> None:
    assert options_of({"dtype": "bfloat16"}).dtype == "bfloat16"


@pytest.mark.opencl
def test_options_say_on_which_processors(made: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    queues: list[tuple[str, ...]] = []
    compiled = CompiledGraph._compiled

    def record_queues(graph: CompiledGraph, arguments: Any, constants: Any) -> Any:
        session = compiled(graph, arguments, constants)
        assert session is not None
        queues.append(tuple(queue.processor for queue in session.plan.queues))
        return session

    monkeypatch.setattr(CompiledGraph, "_compiled", record_queues)
    module, name = Block().eval(), f"opencl:0@{OWN_CORE}"
    torch.testing.assert_close(
        made.compile(module, processors=name, threads=None)(IMAGE), module(IMAGE), atol=1e-4, rtol=1e-4
    )
    assert len(queues) == 1
    assert name in queues[0]
