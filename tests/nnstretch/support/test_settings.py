"""Where files that can be made again are kept, and what happens where they cannot be."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnstretch.errors import FileError, UsageError
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.workload import transfer_bytes, transfer_workload
from nnstretch.support import settings
from nnstretch.support.settings import (
    command_buffers_setting,
    core_speeds,
    remove_stale,
    transfer_delay_us,
    write_text,
)

WHERE = "from nnstretch.support.settings import cache_dir; print(cache_dir('engine')); print(cache_dir())"


def places(tmp_path: Path, **more: str) -> tuple[list[Path], list[str]]:
    """The cache directories of a process whose home cannot be written, and its lines on the standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "NNSTRETCH_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path), **more}
    (tmp_path / "file").touch()  # a file is where a folder should be: there not even root may write
    done = subprocess.run([sys.executable, "-c", WHERE], env=environment, capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


@pytest.mark.parametrize(("text", "found"), [("", 0.0), ("0", 0.0), ("12.5", 12.5), ("1e6", 1e6)])
def test_delays_of_transfers(text: str, found: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_TRANSFER_DELAY_US", text)
    assert transfer_delay_us() == found
    delayed = transfer_workload(TensorType((4,)))
    assert (transfer_bytes(delayed) == 16) == (found == 0)


@pytest.mark.parametrize("text", ["-1", "x", "nan", "inf", "1000001"])
def test_delays_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_TRANSFER_DELAY_US", text)
    with pytest.raises(UsageError, match="NNSTRETCH_TRANSFER_DELAY_US"):
        transfer_delay_us()


@pytest.mark.parametrize(("text", "found"), [("", None), ("0", False), ("1", True)])
def test_command_buffers(text: str, found: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", text)
    assert command_buffers_setting() is found


@pytest.mark.parametrize("text", ["2", "yes", " 1"])
def test_command_buffers_otherwise_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", text)
    with pytest.raises(UsageError, match=f"NNSTRETCH_COMMAND_BUFFERS={text}: give 1"):
        command_buffers_setting()


@pytest.mark.parametrize(
    ("text", "found"), [("", {}), ("1:0.5", {1: 0.5}), ("0:1,2:0.25", {2: 0.25}), ("3:0.01,", {3: 0.01})]
)
def test_speeds_of_cores(text: str, found: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", text)
    assert core_speeds() == found


@pytest.mark.parametrize(
    "text", ["0.5", "1:", "1:2", "1:0", "1:0.001", "-1:0.5", "1:0.5,1:0.5", "1:nan", "x:1", "1:0.5:2"]
)
def test_speeds_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", text)
    with pytest.raises(UsageError, match="write CORE:SPEED for each core"):
        core_speeds()


def test_without_a_writable_home_the_cache_is_temporary_and_kept(tmp_path: Path) -> None:
    (engine, cache), warnings = places(tmp_path)
    assert engine == cache / "engine"
    assert cache.parent == tmp_path
    assert cache.stat().st_mode & 0o077 == 0
    (warning,) = warnings
    assert str(cache) in warning
    assert "NNSTRETCH_CACHE_DIR" in warning
    assert places(tmp_path)[0][1] == cache
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [cache]


def test_a_temporary_cache_that_others_may_change_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / f"nnstretch-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"nnstretch-{os.getuid()}").chmod(0o777)
    (_, cache), _ = places(tmp_path)
    assert cache.parent == tmp_path
    assert cache.stat().st_mode & 0o077 == 0


def test_a_cache_that_was_chosen_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(FileError, match="set NNSTRETCH_CACHE_DIR"):
        settings.cache_dir()


def test_a_readable_cache_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tmp_path / "home"
    (original / "engine" / "objects").mkdir(parents=True)
    (original / "engine" / "x.so").write_text("engine")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    copy = settings._temporary_cache_dir(original)
    assert copy == tmp_path / f"nnstretch-{os.getuid()}"
    assert [path.name for path in (copy / "engine").iterdir()] == ["x.so"]


def test_libraries_get_caches_where_the_home_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.caches_of_libraries() == {}
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    assert set(settings.caches_of_libraries()) == {"PYOPENCL_NO_CACHE", "ZIG_GLOBAL_CACHE_DIR"}


def age(path: Path, hours: float) -> Path:
    """Makes a file or folder as old as a number of hours."""
    then = time.time() - 3600 * hours
    os.utime(path, (then, then))
    return path


def test_a_write_removes_old_temporary_files_of_killed_processes(tmp_path: Path) -> None:
    """Of those in the same folder; what others may have named is kept, whatever its age."""
    kept = [
        tmp_path / ".nnstretch-a.json.new.part",
        tmp_path / ".config",
        tmp_path / "x.part",
        tmp_path / ".nnstretch-x",
    ]
    for file in kept:
        file.touch()
        age(file, 1 if "new" in file.name else 100)
    stale = [tmp_path / ".nnstretch-a.json.old1.part", tmp_path / ".nnstretch-b.nns.old2.part"]
    for file in stale:
        file.touch()
        age(file, 25)
    write_text(tmp_path / "a.json", "{}")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "a.json"])


def test_what_a_killed_process_leaves_is_what_a_write_removes(tmp_path: Path) -> None:
    """Stale names are those that writes use."""
    script = (
        "import os, sys; from pathlib import Path; from nnstretch.support.settings import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as file: os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.json")], check=False)
    (left,) = tmp_path.iterdir()
    age(left, 25)
    remove_stale.cache_clear()
    write_text(tmp_path / "a.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_old_folders_of_builds_are_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / f".build-{name}" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "a.o").touch()
    age(old, 25)
    remove_stale(tmp_path, prefix=".build-", suffix="")
    assert [path.name for path in tmp_path.iterdir()] == [".build-new"]
