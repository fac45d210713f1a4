"""Networks of factories, `FILE.py:FACTORY`, in the commands."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from nnstretch.api.options import CompileOptions
from nnstretch.cli.models.networks import NetworkOptions, build_network
from nnstretch.cli.models.sources import Source
from nnstretch.frontends.onnx_file import save
from nnstretch.training.weights import save_weights
from tests.kits.command_line import Cli, said

FACTORY = """
import random

import numpy as np
import torch
from torch import nn

SHIFT = torch.randn(1)


def make():
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    made[3].bias.data += SHIFT + random.random() + np.random.random()
    return made


def sized():
    return nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)


def wide():
    return make(), torch.zeros(1, 3, 8, 12)
"""

WEIGHTS = "the weights are those that net.py:{} makes, random ones unless it loads others; --weights takes a file"
SIZE = "input 1×3×224×224 is assumed, as net.py:make returns no example input; {} names another"


def test_weights_are_those_of_the_seed_and_other_draws_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(FACTORY)

    def weights(seed: int) -> list[np.ndarray]:
        network = build_network(f"{file}:make", NetworkOptions(image_size=16, seed=seed))
        return [parameter.detach().numpy() for parameter in network.module.parameters()]

    generators = random.getstate(), torch.get_rng_state()
    first, again, other = weights(1), weights(1), weights(2)
    assert random.getstate() == generators[0]
    assert torch.equal(torch.get_rng_state(), generators[1])
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.usefixtures("folder")
def test_images_that_are_no_squares_are_those_of_the_input() -> None:
    """Of a factory, of weights that were trained with others, and of a file."""
    Path("net.py").write_text(FACTORY)
    assert Source("net.py:wide", CompileOptions()).inputs_text == "input 1×3×8×12"
    network = build_network("net.py:wide", NetworkOptions(image_size=(16, 32)))
    assert network.example_input.shape == (1, 3, 16, 32)
    save_weights(network.module, Path("w.safetensors"), network.metadata())
    source = Source("net.py:wide", CompileOptions(), Path("w.safetensors"))
    assert source.inputs_text == "input 1×3×16×32"
    save(source.load(), Path("wide.onnx"))
    assert build_network("wide.onnx", NetworkOptions()).example_input.shape == (1, 3, 16, 32)
    assert Source("net.py:wide", CompileOptions(), image_size=16).inputs_text == "input 1×3×16×16"


@pytest.mark.usefixtures("folder")
def test_what_a_factory_leaves_open_is_said() -> None:
    Path("net.py").write_text(FACTORY)
    for name, shapes, more in (
        ("make", {}, [SIZE.format("--shape or --image-size")]),
        ("make", {"": (1, 3, 16, 16)}, []),
        ("sized", {}, []),
    ):
        source = Source(f"net.py:{name}", CompileOptions(shapes=shapes))
        assert source.assumptions.splitlines() == [WEIGHTS.format(name), *more]
        assert source.note == source.assumptions
    save_weights(build_network("net.py:make", NetworkOptions(image_size=16)).module, Path("w.safetensors"), {})
    trained = Source("net.py:make", CompileOptions(), Path("w.safetensors"))
    assert trained.assumptions == SIZE.format("--image-size")
    assert Source("net.py:make", CompileOptions(), image_size=16).assumptions == WEIGHTS.format("make")
    assert Source("squeezenet1_1", CompileOptions(shapes={"x": (1, 3, 32, 32)})).assumptions == ""


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command", [("run", "--runs=1"), ("tune",), ("compile",), ("bench", "--rounds=1", "--against=", "--budget=0")]
)
def test_commands_say_what_they_assume_of_a_factory(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("nnstretch.frontends.resolve._USUAL_SIZE", 8)
    Path("net.py").write_text(FACTORY)
    status, _, err = cli(command[0], "net.py:make", *command[1:], *(() if command[0] == "tune" else ("--no-tune",)))
    assert status == 0
    assert WEIGHTS.format("make") in said(err)
    assert any("3,8,8" in line.replace("×", ",") and "--shape" in line for line in said(err))
