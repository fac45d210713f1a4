"""Stages of a job: nothing is done twice, lost, or mixed with products of other settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nnstretch.cli.console import exit_status
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.errors import FileError, StoppedError, UsageError
from nnstretch.support.locks import lock_folder


class Work:
    """A stage's work that counts its calls."""

    def __init__(self, fails: bool = False) -> None:
        self.calls = 0
        self.found: list[list[str]] = []
        self.fails = fails

    def __call__(self, folder: Path) -> Answer:
        self.calls += 1
        self.found.append(sorted(path.name for path in folder.iterdir()))
        (folder / "product").write_text(str(self.calls))
        if self.fails:
            raise KeyboardInterrupt
        return {"product": "product", "number": self.calls}


def test_a_stage_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    work = Work()
    for was_done in (False, True):
        stage = Job(tmp_path).run("first", {"epochs": 3, "scale": (1, 2)}, work)
        assert stage.was_done is was_done
        assert stage.answer == {"product": "product", "number": 1}
        assert stage.file("product").read_text() == "1"
    assert work.calls == 1


def test_a_stage_that_was_stopped_finds_what_it_had_written(tmp_path: Path) -> None:
    work = Work(fails=True)
    with pytest.raises(KeyboardInterrupt):
        Job(tmp_path).run("first", {}, work)
    work.fails = False
    assert not Job(tmp_path).run("first", {}, work).was_done
    assert work.found == [["stage.json"], ["product", "stage.json"]]


@pytest.mark.parametrize("stopped", [False, True])
def test_products_of_other_settings_are_kept(tmp_path: Path, stopped: bool) -> None:
    work = Work(fails=stopped)
    try:
        Job(tmp_path).run("first", {"epochs": 3, "lr": 0.1}, work)
    except KeyboardInterrupt:
        assert stopped
    with pytest.raises(UsageError, match=r"epochs was 3 and is 4; give --redo first to replace them .* -o$"):
        Job(tmp_path).run("first", {"epochs": 4, "lr": 0.1}, Work())
    assert (tmp_path / "first" / "product").read_text() == "1"


def test_a_stage_that_wrote_nothing_is_begun_with_other_settings(tmp_path: Path) -> None:
    def fail(folder: Path) -> Answer:
        raise FileError("nothing")

    with pytest.raises(FileError):
        Job(tmp_path).run("first", {"epochs": 3}, fail)
    assert Job(tmp_path).run("first", {"epochs": 4}, Work()).answer["number"] == 1


def pipeline(folder: Path, work: Callable[[Path], Answer], redo: str | None = None) -> Job:
    job = Job(folder, redo)
    job.run("first", {}, work)
    job.run("second", {}, work, ["first"])
    job.run("third", {}, work, ["second", "left-out"])
    return job


def test_redo_of_a_kind_replaces_all_its_stages(tmp_path: Path) -> None:
    for redo, calls in ((None, 3), ("second", 2)):
        work, job = Work(), Job(tmp_path, redo)
        for name in ("first", "second-a", "second-b"):
            job.run(name, {}, work)
        assert work.calls == calls


@pytest.mark.parametrize(("redo", "calls"), [("first", 3), ("second", 2), ("third", 1)])
def test_redo_replaces_a_stage_and_what_follows(tmp_path: Path, redo: str, calls: int) -> None:
    pipeline(tmp_path, Work())
    again = Work()
    job = pipeline(tmp_path, again, redo)
    assert again.calls == calls
    assert [stage.was_done for stage in job.stages.values()] == [*[True] * (3 - calls), *[False] * calls]
    assert all(found == ["stage.json"] for found in again.found)


def test_products_that_are_given_up_before_a_stage_are_given_up_once(tmp_path: Path) -> None:
    """Another process may run the stage in between."""
    Job(tmp_path).run("first-a", {}, Work())
    job = Job(tmp_path, redo="first")
    job.renew("first-a")
    assert not job.is_done("first-a")
    Job(tmp_path).run("first-a", {}, Work())
    assert job.is_done("first-a")
    assert job.run("first-a", {}, Work()).was_done


def test_time_in_which_several_stages_of_a_kind_ran_counts_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for name, begin, seconds in (("a", 0, 5), ("b-1", 10, 20), ("b-2", 12, 4), ("b-3", 25, 10), ("b-4", 50, 1)):
        job.stages[name] = Stage(tmp_path, {}, begin, seconds, was_done=True)
    assert job.seconds() == {"a": 5, "b": 26}


def test_a_stage_does_not_follow_another_run_of_the_one_before(tmp_path: Path) -> None:
    pipeline(tmp_path, Work())
    Job(tmp_path, redo="first").run("first", {}, Work())  # interrupted before the second stage
    job, second = Job(tmp_path), Work()
    job.run("first", {}, Work())
    with pytest.raises(UsageError, match="first was run again; give --redo second"):
        job.run("second", {}, second, ["first"])
    assert second.calls == 0


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom nnstretch.support.locks import lock_folder\n"
        f"with lock_folder(Path({str(tmp_path)!r}), '-o'): pass"
    )
    with lock_folder(tmp_path, "-o"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert f"another process is writing to {tmp_path}; wait for its end" in done.stderr
    with lock_folder(tmp_path, "-o"):
        pass


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    Job(tmp_path).run("first", {}, Work())
    for text in ("{", "{}", '["x"]'):
        (tmp_path / "first" / "stage.json").write_text(text)
        with pytest.raises(FileError, match=r"stage\.json is damaged: .*; remove its folder"):
            Job(tmp_path).run("first", {}, Work())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(FileError, match=r"cannot write to .*file/x: Not a directory; choose another folder with -o"),
        lock_folder(tmp_path / "file" / "x", "-o"),
    ):
        pass


def test_a_script_that_a_signal_has_stopped_ends_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise StoppedError("stopped after step 3", 143)

    assert exit_status(work) == 143
    assert capsys.readouterr().err == "stopped after step 3\n"
