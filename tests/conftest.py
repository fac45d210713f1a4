"""What all tests share: a cache of their own, one torch thread, deterministic hypothesis, rare collections, the OpenCL rule."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

# Tests run side by side, so each gets one thread. torch and numpy read these when loaded, which is later.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
# torch's compiler gets a kernel or two to compile: headers compiled ahead, or a pool of processes, take longer than they save.
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
# PoCL compiles in a quarter of the time without optimisation: kernels are optimised where `optimised_opencl` is used.
OPENCL_OPTIONS = "POCL_EXTRA_BUILD_FLAGS"
os.environ[OPENCL_OPTIONS] = "-cl-opt-disable"

ROOT = Path(__file__).resolve().parent.parent
PROBE = ROOT / "scripts" / "probe_opencl.py"
ENGINES = ROOT / "out" / "test-engines"
DAYS_KEPT = 14
OPENCL_REPORT = pytest.StashKey[str | None]()
CACHE_DIR = pytest.StashKey[Path]()

hypothesis.settings.register_profile("nnstretch", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("nnstretch")


def is_xdist_worker(config: pytest.Config) -> bool:
    """Tell whether this process runs tests for another one, whose environment it has inherited."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache folder: the workers of a parallel run share it, so the engine is built once.

    Engines are kept from session to session, since their names hold a hash of all that they are made from; CI=true builds them
    again. `NNSTRETCH_TEST_CACHE_DIR` names a folder to keep as a whole.
    """
    if is_xdist_worker(config):
        return
    kept = os.environ.get("NNSTRETCH_TEST_CACHE_DIR")
    if kept is None:
        folder = config.stash[CACHE_DIR] = Path(tempfile.mkdtemp(prefix="nnstretch-test-cache-"))
        if os.environ.get("CI") != "true":
            (folder / "engine").symlink_to(engines_of_earlier_sessions())
    os.environ["NNSTRETCH_CACHE_DIR"] = kept or str(config.stash[CACHE_DIR])


def engines_of_earlier_sessions() -> Path:
    """The folder of engines that tests have built, without those that are older than two weeks."""
    ENGINES.mkdir(parents=True, exist_ok=True)
    oldest = time.time() - DAYS_KEPT * 86_400
    for path in ENGINES.rglob("*"):
        with suppress(OSError):  # another session has removed it
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
    return ENGINES


def pytest_sessionstart(session: pytest.Session) -> None:
    """Builds the engine in parallel runs before the first test, whose time limit would count it on a slow machine."""
    if is_xdist_worker(session.config):
        from nnstretch.devices.engine.build.engine_library import build_engine
        from nnstretch.errors import NNStretchError

        with suppress(NNStretchError):  # the tests that need it say why
            build_engine()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's cache folder."""
    folder = config.stash.get(CACHE_DIR, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every worker begins with files of slow tests: the short tests left at the end keep all workers busy.

    Workers get equal parts of the list and take tests from each other once theirs are done. Files stay whole, as their tests
    share what they make.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [path for path, tests in files.items() if any(test.get_closest_marker("slow") for test in tests)]
    short = [test for path, tests in files.items() if path not in slow for test in tests]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    part = -(-len(items) // workers)
    ordered: list[pytest.Item] = []
    for number in range(workers):
        own = [test for path in slow[number::workers] for test in files[path]]
        more = max(part - len(own), 0)
        ordered += [*own, *short[:more]]
        short = short[more:]
    items[:] = ordered + short


def pytest_collection_finish() -> None:
    """Keeps the garbage collector off what collecting has made, which it would go through hundreds of times.

    Half a million objects of libraries and tests stay until the end: that took a tenth of the tests' time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture(scope="module")
def optimised_opencl() -> Iterator[None]:
    """Has PoCL optimise kernels, as it does for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(OPENCL_OPTIONS)
        yield


def why_no_opencl(config: pytest.Config) -> str | None:
    """Return None if an OpenCL device works, else why none does; asked once per process.

    Another process does the probing: a broken driver may crash, and what a test puts into the environment
    must be there before a driver is loaded into this process.
    """
    if OPENCL_REPORT not in config.stash:
        command = [sys.executable, str(PROBE)]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        why_not = " ".join(f"{probe.stdout} {probe.stderr}".split()) or "no OpenCL platform was found"
        config.stash[OPENCL_REPORT] = None if probe.returncode == 0 else why_not
    return config.stash[OPENCL_REPORT]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `opencl` where no device works, or fail it where one was promised."""
    if item.get_closest_marker("opencl") is None:
        return
    why_not = why_no_opencl(item.config)
    if why_not is None:
        return
    if os.environ.get("NNSTRETCH_REQUIRE_OPENCL") == "1":
        pytest.fail(f"NNSTRETCH_REQUIRE_OPENCL=1, but no OpenCL device works: {why_not}", pytrace=False)
    pytest.skip(f"no OpenCL device works: {why_not}")
