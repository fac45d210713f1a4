"""What tests of the comparison of commits share: a repository, a model and a folder for temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnstretch.bench.regression.commits import Repository
from tests.kits.processes.pretending_commits import assert_nothing_left, make_repository, write_model


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(make_repository(tmp_path_factory.mktemp("repository")))


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture
def temporary(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, in which nothing may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert_nothing_left(repository.root, folder)
