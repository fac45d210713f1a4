"""An engine whose OpenCL functions fail on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nnstretch.scheduler.runtime import loading
from tests.kits.opencl.opencl_faults import Faults


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The loader of that engine's OpenCL functions."""
    return Faults(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def faults(loader: Faults, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """New sessions get their OpenCL functions from the faulty loader."""
    loader.clear()
    monkeypatch.setattr(loading, "engine", lambda: loader.engine)
    yield loader
    loader.clear()
