"""Fixtures of the command line's tests: a network in the working directory, as an ONNX file, and as a package."""

from pathlib import Path

import pytest

from nnstretch.cli.main import main

NETWORK = """
import torch
from torch import nn


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.ReLU())


def small():
    torch.manual_seed(0)
    net = nn.Sequential(
        block(1, 16), block(16, 16), block(16, 16), block(16, 32, 2), block(32, 32), block(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )
    return net, torch.zeros(1, 1, 16, 16)


def unsized():
    return small()[0]


def shallow():
    torch.manual_seed(0)
    return nn.Sequential(
        block(1, 16), block(16, 16), block(16, 32, 2), block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )


def wants_an_argument(n):
    return nn.Conv2d(n, n, 1)


def not_a_module():
    return 42
"""


@pytest.fixture
def network(folder: Path) -> None:
    """A network in the working directory."""
    (folder / "net.py").write_text(NETWORK)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as an ONNX file."""
    from nnstretch.frontends.onnx_file import save
    from nnstretch.frontends.resolve import load_model

    folder = tmp_path_factory.mktemp("onnx")
    (folder / "net.py").write_text(NETWORK)
    save(load_model(f"{folder / 'net.py'}:small"), folder / "small.onnx")
    return folder / "small.onnx"


@pytest.fixture(scope="module")
def package(onnx_file: Path) -> Path:
    """The network as a package."""
    path = onnx_file.with_suffix(".nns")
    assert main(["compile", str(onnx_file), "-o", str(path), "--no-tune", "--threads", "1"]) == 0
    return path
