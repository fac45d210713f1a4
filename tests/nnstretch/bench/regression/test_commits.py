"""Commits by name and their checkouts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nnstretch.bench.regression.commits import Repository
from nnstretch.errors import UsageError
from tests.kits.processes.pretending_commits import git


def test_a_commit_has_its_hash_and_subject(repository: Repository) -> None:
    found = repository.commit("base")
    assert found == ("base", git(repository.root, "rev-parse", "base").strip(), "base")
    with pytest.raises(UsageError, match="'nowhere' is no commit of this repository"):
        repository.commit("nowhere")


def test_a_folder_outside_of_repositories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no git repository that can be read; clone the project with git"):
        Repository(tmp_path).commit("HEAD")


def test_settings_of_a_hook_do_not_count(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert repository.commit("base").subject == "base"


def test_checkouts_exist_until_the_block_ends(repository: Repository, temporary: Path) -> None:
    commits = [repository.commit(name) for name in ("base", "slow")]
    with repository.checked_out(commits, None) as checkouts:
        for commit, checkout in zip(commits, checkouts, strict=True):
            assert (checkout.imports / "nnstretch/__init__.py").read_text().startswith(f"# {commit.name}\n")
            assert (checkout.imports / "nnstretch/devices/__init__.py").is_file()
            cache = checkout.for_pair(1).cache
            assert cache == checkout.for_pair(1).cache == checkout.cache / "1"
            assert cache.is_relative_to(temporary)
            assert (cache / "engine").is_symlink()
        assert git(repository.root, "worktree", "list").count(str(temporary)) == 2


def test_a_failure_leaves_no_checkout(repository: Repository, temporary: Path) -> None:
    commits = [repository.commit(name) for name in ("base", "empty")]
    with (
        pytest.raises(UsageError, match="commit empty holds no package nnstretch"),
        repository.checked_out(commits, None),
    ):
        pass


def test_a_cache_that_cannot_be_made_is_refused(repository: Repository, temporary: Path, tmp_path: Path) -> None:
    kept = tmp_path / "file"
    kept.write_text("")
    commit = repository.commit("base")
    with (
        repository.checked_out((commit, commit), kept) as (checkout, _),
        pytest.raises(UsageError, match=r"cannot make the cache folder .*; choose another --keep-cache"),
    ):
        checkout.for_pair(0)
