"""The compared commits: git's names of them, and their checkouts in temporary folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nnstretch.errors import UsageError
from nnstretch.support.settings import cache_dir

LETTERS = ("a", "b")
"""Names of the two commits in results: "b" is judged against "a"."""
FOLDER_PREFIX = "nnstretch-regression-"
"""Begin of the names of temporary folders."""


class Commit(NamedTuple):
    """One of the two commits: its name as the caller wrote it, the full hash, and the first line of its message."""

    name: str
    hash: str
    subject: str


class Checkout(NamedTuple):
    """A commit that is checked out: the folder to import the package from, and the folder of its caches."""

    imports: Path
    cache: Path

    def for_pair(self, number: int) -> Checkout:
        """The same with the cache of one pair of processes, which is made if it does not exist.

        It shares nothing with other caches but the engine's builds, which are named by their sources.

        Raises:
            FileError, UsageError: it cannot be made.
        """
        cache = self.cache / str(number)
        engine = cache_dir("engine").resolve()
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (cache / "engine").symlink_to(engine)
        except OSError as error:
            raise UsageError(
                f"cannot make the cache folder {cache}: {error.strerror}; choose another --keep-cache"
            ) from error
        return self._replace(cache=cache)


@dataclass(frozen=True)
class Repository:
    """A git repository of the project.

    Attributes:
        root: a folder inside it.
    """

    root: Path

    def commit(self, name: str) -> Commit:
        """The commit of a hash, branch or tag.

        Raises:
            UsageError: there is none, or the folder is no git repository.
        """
        if self._git("rev-parse", "--git-dir", check=False).returncode:
            raise UsageError(f"{self.root} is no git repository that can be read; clone the project with git")
        found = self._git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        if found.returncode:
            raise UsageError(
                f"{name!r} is no commit of this repository; give a hash, a branch, a tag or such as HEAD~1"
            )
        number = found.stdout.strip()
        return Commit(name, number, self._git("log", "-1", "--format=%s", number).stdout.strip())

    @contextmanager
    def checked_out(self, commits: Sequence[Commit], kept: Path | None) -> Iterator[tuple[Checkout, ...]]:
        """Checks the commits out, until the block ends. Their caches are temporary, or in the folder `kept`.

        Raises:
            UsageError: git cannot check one out, or it holds no package.
        """
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)).resolve()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            made: list[Checkout] = []
            for letter, commit in zip(LETTERS, commits, strict=True):
                tree = folder / letter / "checkout"
                stack.callback(self._remove_worktree, tree)
                tree.parent.mkdir()
                self._git("worktree", "add", "--quiet", "--detach", "--force", str(tree), commit.hash)
                # A commit that is compared with itself has two caches.
                name = commit.hash if letter == "a" or commit.hash != commits[0].hash else f"{commit.hash}-again"
                cache = (kept.absolute() / name) if kept else folder / letter / "cache"
                made.append(Checkout(_import_folder(tree, commit), cache))
            yield tuple(made)

    def _remove_worktree(self, tree: Path) -> None:
        """Removes a worktree, also an incomplete one, and git's record of it."""
        if self._git("worktree", "remove", "--force", "--force", str(tree), check=False).returncode:
            shutil.rmtree(tree, ignore_errors=True)
            self._git("worktree", "prune", check=False)

    def _git(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs git in the repository, without its hooks.

        Raises:
            UsageError: it fails; the message is the last line that it wrote.
        """
        command = ["git", "-C", str(self.root), "-c", "core.hooksPath=/dev/null", *arguments]
        # What a hook of another repository has set does not count here.
        environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
        try:
            # A session of its own: Ctrl-C does not end git in the middle of its work.
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, start_new_session=True, env=environment
            )
        except OSError as error:
            raise UsageError(f"cannot start git: {error.strerror}; install it") from error
        if check and done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            raise UsageError(f"git {arguments[0]} fails: {lines[-1]}")
        return done


def _import_folder(tree: Path, commit: Commit) -> Path:
    """A folder in which a checkout's folders have the names by which they are imported.

    Raises:
        UsageError: the checkout holds no package.
    """
    if not (tree / "nnstretch" / "__init__.py").is_file():
        raise UsageError(f"commit {commit.name} holds no package nnstretch")
    about = tree / "pyproject.toml"
    settings = tomllib.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    folders: Mapping[str, str] = settings.get("tool", {}).get("setuptools", {}).get("package-dir", {})
    imports = tree.with_name("imports")
    imports.mkdir()
    (imports / "nnstretch").symlink_to(tree / "nnstretch")
    for package, source in sorted(folders.items()):
        link = imports.joinpath(*package.split("."))
        if package.startswith("nnstretch.") and not link.exists():
            link.symlink_to(tree / source)  # it lies in the checkout itself, in the folder of the package around it
    return imports
