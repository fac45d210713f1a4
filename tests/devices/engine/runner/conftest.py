"""The runner, and a small model of two queues."""

from pathlib import Path

import pytest

from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.standalone import build_runner
from tests.kits.boards.runner import write_model
from tests.kits.graphs.graphs import RandomNetwork


@pytest.fixture(scope="session")
def runner() -> Path:
    return build_runner(parse_target("local"))


@pytest.fixture(scope="session")
def network() -> RandomNetwork:
    return RandomNetwork(1, 2)


@pytest.fixture(scope="session")
def model(network: RandomNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(network, tmp_path_factory.mktemp("models") / "random.nnm", ((0,), (1,)))
