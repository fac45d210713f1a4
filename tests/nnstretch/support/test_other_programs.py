"""CPU time of other programs: on made-up counters, and on this machine beside children of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.support import other_programs
from nnstretch.support.other_programs import CoreWatch, OtherPrograms, busy_seconds, family_seconds

TICK = 1 / os.sysconf("SC_CLK_TCK")
_BUSY = "import time\nend = time.perf_counter() + {}\nwhile time.perf_counter() < end: pass\n"


def write_process(proc: Path, pid: int, parent: int, ticks: int, name: str = "a program") -> None:
    """A process whose user, system and ended children's times add up to `ticks`."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    times = (ticks - 3 * (ticks // 4), *[ticks // 4] * 3)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {' 0' * 9} {' '.join(map(str, times))} 20 0 1\n")


@contextmanager
def scratch() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


@given(st.dictionaries(st.integers(2, 60), st.tuples(st.integers(1, 60), st.integers(0, 10**6)), max_size=20))
def test_a_family_is_a_process_and_its_descendants(processes: Mapping[int, tuple[int, int]]) -> None:
    with scratch() as proc:
        for pid, (parent, ticks) in processes.items():
            write_process(proc, pid, parent if parent != pid else 1, ticks, name=") S 1 (")
        (proc / "7000").mkdir()  # has ended since the folder was listed
        family = {2}
        while more := {pid for pid, (parent, _) in processes.items() if parent in family and parent != pid} - family:
            family |= more
        expected = sum(processes[pid][1] for pid in family if pid in processes) * TICK
        assert family_seconds(proc, 2) == pytest.approx(expected)


def test_only_the_usable_cores_count(tmp_path: Path) -> None:
    rows = ("cpu 9 9 9 9 9 9 9 9 9 9", "cpu0 1 2 4 1000 1000 8 16 32 0 0", "cpu1 64 0 0 5 5 0 0 0 0 0", "intr 5 5")
    (tmp_path / "stat").write_text("\n".join(rows))
    assert busy_seconds(tmp_path, {0}) == pytest.approx(63 * TICK)
    assert busy_seconds(tmp_path, {0, 1}) == pytest.approx(127 * TICK)
    assert busy_seconds(tmp_path, {0, 2}) is None
    assert busy_seconds(tmp_path / "elsewhere", {0}) is None


def test_the_time_of_children_is_ours_while_they_run_and_after_their_end() -> None:
    running = subprocess.Popen([sys.executable, "-c", _BUSY.format(60)])
    try:
        before, begin = family_seconds(Path("/proc"), os.getpid()), time.perf_counter()
        subprocess.run([sys.executable, "-c", _BUSY.format(0.5)], check=True)
        spent, elapsed = family_seconds(Path("/proc"), os.getpid()) - before, time.perf_counter() - begin
    finally:
        running.kill()
        running.wait()
    assert spent > 0.1  # both together; on a busy machine they may get little time
    assert spent < (elapsed + 0.1) * (os.cpu_count() or 1)


def test_a_watch_compares_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0])
    busy, own = iter([50.0, 53.5]), iter([20.0, 22.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(other_programs, "busy_seconds", lambda *_: next(busy))
    monkeypatch.setattr(other_programs, "family_seconds", lambda *_: next(own))
    assert CoreWatch().others() == OtherPrograms(0.75, len(os.sched_getaffinity(0)))


def test_nothing_is_said_of_a_short_time_or_of_an_unknown_kernel(tmp_path: Path) -> None:
    assert CoreWatch().others() is None
    watch = CoreWatch(tmp_path)
    time.sleep(0.6)
    assert watch.others() is None
