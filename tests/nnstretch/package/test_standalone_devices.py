"""Standalone models with OpenCL queues: what goes wrong with drivers, devices and files, and what is left behind."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa, parse_target
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.devices.opencl.drivers import device_info
from nnstretch.errors import PackageError, UsageError
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import write_standalone
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.support.settings import cache_dir
from tests.devices.opencl.test_other_drivers import OCLGRIND
from tests.kits.c_libraries import c_library, thread_sanitized_sources
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.model_files import after_kernels, changed
from tests.kits.model_fuzz import fuzz_program
from tests.kits.networks.model_library import ModelError, ModelLibrary
from tests.kits.opencl.opencl_faults import Faults, host_library
from tests.nnstretch.package.test_standalone_opencl import PROCESSORS, Case, are_equal, make_case, network, refusal, run

pytestmark = pytest.mark.opencl

HERE = Path(__file__).parent
KITS_FOLDER = HERE.parents[1] / "kits" / "opencl"
SUPPRESSIONS = HERE.parents[1] / "devices" / "engine" / "thread_sanitizer.supp"
LOADS = 200
MOST_CALLS = 30
OPENERS = ("clGetPlatformIDs", "clGetDeviceIDs")
"""Functions that drivers are loaded by, once per process."""
MAKERS = (
    *("clCreateContext", "clCreateCommandQueue", "clSVMAlloc", "clCreateBuffer", "clCreateSubBuffer"),
    *("clCreateProgramWithSource", "clBuildProgram", "clCreateKernel", "clGetKernelInfo", "clSetKernelArg"),
)
RUNNERS = ("clEnqueueNDRangeKernel", "clFlush", "clGetEventInfo", "clWaitForEvents")
RELEASERS = tuple(f"clRelease{what}" for what in ("Context", "CommandQueue", "Program", "Kernel", "MemObject"))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Two queues, one kernel on the device."""
    return make_case(tmp_path_factory.mktemp("case"), RandomNetwork(0, 2, nodes=2, size=5).graph(), PROCESSORS)


def right(models: ModelLibrary, model: int, case: Case) -> bool:
    """Whether a loaded model computes the session's outputs."""
    return are_equal(models.run(model, case.x, [y.shape for y in case.outputs]), case.outputs)


# -- drivers that fail ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("engine"), host_library())


def numbers() -> Iterator[int]:
    """Numbers of calls: the first ones, then some."""
    yield from (1, 2, 3, 4)
    number = 6
    while True:
        yield number
        number += number // 2


def attempt(models: ModelLibrary, case: Case) -> str:
    """Loads, runs and frees a model. Returns the error, or "" if the answer is right."""
    try:
        with models.loaded(case.model) as model:
            assert right(models, model, case)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("function", OPENERS)
def test_drivers_that_do_not_answer(case: Case, faults: Faults, function: str, tmp_path: Path) -> None:
    """The next load tries again."""
    models = ModelLibrary(tmp_path, str(host_library()), cache_dir("opencl"))
    faults.set(function)
    assert "no OpenCL driver with a device is found" in attempt(models, case)
    assert faults.clear() == 1
    assert attempt(models, case) == ""


def test_every_call_of_every_function_may_fail(case: Case, faults: Faults, tmp_path: Path) -> None:
    """Loading or the run fails and says where, or the answer is right; in all cases nothing is left."""
    models = ModelLibrary(tmp_path, str(host_library()), cache_dir("opencl"))
    before = faults.live_objects
    failed = {}
    for function in (*MAKERS, *RUNNERS, *RELEASERS):
        for number in numbers():
            faults.set(function, number)
            if error := attempt(models, case):
                failed[function] = error
            assert (faults.live_events, faults.live_objects) == (0, before), (function, number)
            if not faults.clear() or number > MOST_CALLS:  # events are polled any number of times
                break
    assert {*MAKERS, "clEnqueueNDRangeKernel", "clFlush"} - failed.keys() == set()
    assert all("error -5" in text or "memory" in text for text in failed.values()), failed
    assert attempt(models, case) == ""


class StubFaults:
    """The stub in this process, whose calls fail when a test wants it (opencl_stub_faults.c)."""

    def __init__(self) -> None:
        sources = [KITS_FOLDER / name for name in ("opencl_stub.c", "opencl_double.c")]
        self.path = c_library(KITS_FOLDER / "opencl_stub_faults.c", includes=sources)
        self._library = ctypes.CDLL(str(self.path))
        self._library.stub_set.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int)
        for name in ("stub_clear", "stub_left"):
            getattr(self._library, name).restype = ctypes.c_int64

    def set(self, function: str, number: int, *, breaks_builds: bool = False) -> None:
        """Has one call of a function fail, by its number from 1."""
        self._library.stub_set(function.encode(), number, breaks_builds)

    def clear(self) -> int:
        """Ends the fault; returns the number of calls that failed."""
        return int(self._library.stub_clear())

    @property
    def left(self) -> int:
        """Objects and events that are not released, and accesses out of turn."""
        return int(self._library.stub_left())


@pytest.fixture(scope="module")
def stub_faults() -> StubFaults:
    return StubFaults()


IGNORED, REPORTED = "ignored", "reported"
"""Whether the answer is right in spite of the fault, because there is another way, or the fault is an error."""


@pytest.mark.parametrize(
    ("function", "sharing", "result"),
    [
        ("clGetPlatformInfo", "mapped", IGNORED),
        ("clGetDeviceInfo", "mapped", IGNORED),
        ("clGetDeviceInfo", "coherent", IGNORED),
        ("clGetProgramInfo", "mapped", IGNORED),
        ("clCreateProgramWithBinary", "mapped", IGNORED),
        ("clEnqueueMapBuffer", "mapped", REPORTED),
        ("clEnqueueUnmapMemObject", "mapped", REPORTED),
        ("clEnqueueReadBuffer", "copied", REPORTED),
        ("clEnqueueWriteBuffer", "copied", REPORTED),
        ("clFinish", "copied", IGNORED),
    ],
)
def test_every_other_call_may_fail(
    case: Case,
    stub_faults: StubFaults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    sharing: str,
    result: str,
) -> None:
    """Calls that PoCL does not see, or that other ways of sharing memory make: nothing is left, and the next load works."""
    monkeypatch.setenv("STUB_SHARING", sharing)
    kernels = tmp_path / "kernels"
    attempts = count()

    def answer() -> str:
        """What a fresh load and a run give: the outputs or the error. Drivers are listed once per library."""
        folder = tmp_path / str(next(attempts))
        folder.mkdir()
        models = ModelLibrary(folder, str(stub_faults.path), kernels)
        try:
            with models.loaded(case.model) as model:
                return str([y.tobytes() for y in models.run(model, case.x, [y.shape for y in case.outputs])])
        except ModelError as error:
            return f"error: {error}"

    wanted = answer()
    assert not wanted.startswith("error")
    failed: list[str] = []
    for number in numbers():
        if function == "clGetProgramInfo":
            shutil.rmtree(kernels)  # programs are built again, and stored
        stub_faults.set(function, number)
        found = answer()
        struck = stub_faults.clear()
        assert stub_faults.left == 0, (function, number)
        if not struck:
            assert number > 1, f"{function} is not called"
            break
        if found != wanted:
            failed.append(found)
        if number > MOST_CALLS:
            break
    assert answer() == wanted
    assert all(text.startswith("error: ") and "\n" not in text for text in failed), failed
    assert bool(failed) == (result == REPORTED), failed


@pytest.mark.parametrize("number", [1, 99])
def test_a_build_that_fails_is_one_line_with_or_without_its_log(
    case: Case, stub_faults: StubFaults, tmp_path: Path, number: int
) -> None:
    models = ModelLibrary(tmp_path, str(stub_faults.path))
    stub_faults.set("clGetProgramBuildInfo", number, breaks_builds=True)
    with pytest.raises(ModelError, match=r"does not compile on device 0 .*: error -5") as refused:
        models.load(case.model)
    assert ("the log of the stub" in str(refused.value)) == (number > 1)
    assert stub_faults.clear() == (number == 1)
    assert stub_faults.left == 0


def test_models_are_loaded_and_freed_in_any_order(case: Case, faults: Faults, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, str(host_library()), cache_dir("opencl"))
    before = faults.live_objects
    held = [models.load(case.model) for _ in range(3)]
    assert all(right(models, model, case) for model in held)
    models.free(held.pop(0))
    held.append(models.load(case.model))
    assert all(right(models, model, case) for model in reversed(held))
    for model in held:
        models.free(model)
    assert faults.live_objects == before


# -- other drivers: a stub, and those that are installed -------------------------------------------------------------


@pytest.fixture(scope="module")
def stub() -> Path:
    """A driver whose kernels compute other things, in every way of sharing memory."""
    return c_library(KITS_FOLDER / "opencl_stub.c", includes=(KITS_FOLDER / "opencl_double.c",))


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("two"), *network("two devices"))


def stubbed(case: Case, stub: Path, folder: Path, *options: str | Path, **settings: Any) -> tuple[bytes, str]:
    """The outputs that the executable makes with the stub, and what is written to the standard error."""
    case.x.tofile(folder / "x")
    paths = [folder / f"y{i}" for i in range(len(case.outputs))]
    named = [word for path in paths for word in ("-o", path)]
    executable = build_binaries(parse_target("local")).executable
    done = run(executable, "-m", case.model, "--opencl", stub, folder / "x", *named, "-n", "20", *options, **settings)
    return b"".join(path.read_bytes() for path in paths), done.stderr


def test_every_way_of_sharing_memory(two_devices: Case, case: Case, stub: Path, tmp_path: Path) -> None:
    """The outputs are equal, nobody touches memory of the other side, and nothing is left: the stub reports both."""
    for each in (two_devices, case):
        answers = {
            stubbed(each, stub, tmp_path, STUB_PLATFORM=platform, STUB_SHARING=sharing, STUB_TYPE=kind)
            for platform in ("Stub", "Portable Computing Language")
            for sharing in ("copied", "mapped", "coherent")
            for kind in ("cpu", "gpu")
        }
        assert len(answers) == 1


def test_kernels_are_recorded_where_the_driver_can_do_that(two_devices: Case, stub: Path, tmp_path: Path) -> None:
    """Outputs stay the same, and nothing is left; a driver without the extension is named once per device."""
    wanted, _ = stubbed(two_devices, stub, tmp_path)
    for extensions, notes in (("cl_khr_icd cl_khr_command_buffer", 0), ("cl_khr_command_buffer_multi_device", 2)):
        settings = {"STUB_EXTENSIONS": extensions, "NNSTRETCH_COMMAND_BUFFERS": "1"}
        for sharing in ("copied", "mapped", "coherent"):
            found, said = stubbed(two_devices, stub, tmp_path, STUB_SHARING=sharing, **settings)
            assert found == wanted
            assert said.count("kernels are enqueued one by one: the device has no cl_khr_command_buffer") == notes


def test_built_programs_are_kept(case: Case, stub: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kernels"

    def read() -> int:
        """The number of programs that are read."""
        return stubbed(case, stub, tmp_path, "--cache", folder)[1].count("a binary")

    assert read() == 0
    kept = sorted(folder.glob("*.bin"))
    assert kept == sorted(path for path in folder.iterdir() if path.name != "pocl")
    assert read() == len(kept) > 0
    content = kept[0].read_bytes()
    for damaged in (b"", content[:20], content[:-1], content[:40] + bytes([content[40] ^ 1]) + content[41:]):
        kept[0].write_bytes(damaged)
        assert read() == len(kept) - 1
        assert kept[0].read_bytes() == content
    assert all(hashlib.sha256(path.read_bytes()[32:]).digest() == path.read_bytes()[:32] for path in kept)
    read_only = tmp_path / "a file"
    read_only.touch()
    assert stubbed(case, stub, tmp_path, "--cache", read_only)[1] == ""


@pytest.mark.skipif(not OCLGRIND.exists(), reason="Oclgrind is not installed")
def test_another_driver_computes_the_same(two_devices: Case, tmp_path: Path) -> None:
    """Oclgrind reports accesses beyond memory, too."""
    log = tmp_path / "log"
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    (vendors / "driver.icd").write_text(f"{OCLGRIND}\n")
    places = dict.fromkeys(("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"), str(vendors))
    y, _ = stubbed(two_devices, Path("libOpenCL.so.1"), tmp_path, OCLGRIND_LOG=str(log), **places)
    wanted = np.concatenate([one.reshape(-1) for one in two_devices.outputs])
    assert relative_error(np.frombuffer(y, np.float32), wanted) < 1e-5
    assert not log.read_text()


def test_nothing_is_left_behind_by_many_loads(case: Case, stub: Path, tmp_path: Path) -> None:
    """In a process of its own, which ends with the stub's report of what is left."""
    code = f"""
from pathlib import Path
from tests.kits.networks.model_library import ModelLibrary
models = ModelLibrary(Path({str(tmp_path)!r}), {str(stub)!r})
def load(times):
    for _ in range(times):
        models.free(models.load(Path({str(case.model)!r})))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages, len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))
print(*load(20), *load({LOADS}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    pages, files, threads, later_pages, *later = map(int, done.stdout.split())
    assert later == [files, threads]
    assert later_pages - pages < LOADS


# -- forks ----------------------------------------------------------------------------------------------------------


def test_children_of_a_fork_free_and_refuse(case: Case, tmp_path: Path) -> None:
    """In a process of its own, which has loaded no driver before."""
    code = f"""
import os, pickle, sys
from pathlib import Path
from tests.kits.networks.model_library import ModelError, ModelLibrary
models = ModelLibrary(Path({str(tmp_path)!r}), cache=Path({str(cache_dir("opencl"))!r}))
path = Path({str(case.model)!r})
if not os.fork():
    models.free(models.load(path))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
model = models.load(path)
if not os.fork():
    models.free(model)
    try:
        models.load(path)
    except ModelError as error:
        os._exit(0 if "loaded before this process was forked" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
models.free(models.load(path))
models.free(model)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


# -- what is chosen -------------------------------------------------------------------------------------------------


def test_devices_are_chosen_by_number_and_by_name(case: Case, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, opencl_library(), cache_dir("opencl"))
    name = device_info(0).name
    assert models.device_names()[0] == name
    for device in ("0", name, name[3:9], device_info(0).platform):
        with models.loaded(case.model, device=device) as model:
            assert right(models, model, case)
    for device in ("99", "no such device"):
        with pytest.raises(ModelError, match=f"no OpenCL device {device}; this machine has 0 = ") as refused:
            models.load(case.model, device=device)
        assert name[:20] in str(refused.value)


def test_the_device_of_another_number_is_found_by_its_name(case: Case, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, opencl_library(), cache_dir("opencl"))
    name, platform = device_info(0).name, device_info(0).platform
    index = after_kernels(case.model) + 2  # after the number of devices and the first one's queue
    moved = changed(case.model, tmp_path / "moved.nnm", numbers={index: 7})
    with models.loaded(moved) as model:
        assert right(models, model, case)
    for old, new in ((platform, "P" * len(platform)), (name, "N" * len(name))):
        other = changed(case.model, tmp_path / "a.nnm", texts={old: new})
        with models.loaded(other) as model:  # by the name, then by the number
            assert right(models, model, case)
    both = changed(case.model, tmp_path / "b.nnm", {name: "N" * len(name)}, {index: 7})
    with pytest.raises(ModelError, match="no OpenCL device 7"):
        models.load(both)


def test_libraries_that_cannot_be_opened(case: Case, tmp_path: Path) -> None:
    executable = build_binaries(parse_target("local")).executable
    for library_name, words in (
        ("/nowhere/x.so", "x.so cannot be opened"),
        ("libm.so.6", "has no function clGetPlatformIDs"),
    ):
        for line in (
            refusal(executable, "-m", case.model, "--opencl", library_name),
            refusal(executable, "-m", case.model, NNSTRETCH_OPENCL_LIBRARY=library_name),
        ):
            assert words in line
    empty = tmp_path / "vendors"
    empty.mkdir()
    assert "no OpenCL driver with a device" in refusal(
        executable, "-m", case.model, OCL_ICD_VENDORS=str(empty), OPENCL_VENDOR_PATH=str(empty)
    )


def test_static_executables_for_devices_are_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="linked statically and cannot open OpenCL"):
        write_standalone(case.compiled, "a", parse_target(f"{local_isa().name}-linux-musl"), tmp_path)


def test_programs_of_older_headers_find_their_function(case: Case, tmp_path: Path) -> None:
    """Its options have no OpenCL part; what lies behind them is not read."""
    loaded = ctypes.CDLL(str(shutil.copy(build_binaries(parse_target("local")).library, tmp_path / "old.so")))
    old = (ctypes.c_int64 * 4)(0, 0, 0, -1)
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    loaded.nns_model_free.argtypes = (ctypes.c_void_p,)
    for options in (None, old):
        arguments = str(case.model).encode(), options, ctypes.byref(model), error, ctypes.c_size_t(512)
        assert loaded.nns_model_load(*arguments) == 0, error.value
        loaded.nns_model_free(model)


# -- trust ----------------------------------------------------------------------------------------------------------


def test_foreign_sources_are_refused_where_trust_is_limited(case: Case, tmp_path: Path) -> None:
    executable = build_binaries(parse_target("local")).executable
    foreign = changed(case.model, tmp_path / "a.nnm", {"/* Common": "/* Uncomm"})
    words = "has an OpenCL source conv.cl that this library was not built with"
    assert words in refusal(executable, "-m", foreign, "--trusted-sources")
    assert words in refusal(executable, "-m", foreign, NNSTRETCH_TRUSTED_SOURCES="1")
    with pytest.raises(PackageError, match=words):
        StandaloneSession(foreign, trusted_sources=True)
    models = ModelLibrary(tmp_path, opencl_library(), cache_dir("opencl"))
    with models.loaded(foreign) as model:
        assert right(models, model, case)
    with models.loaded(case.model, trusted=True) as model:
        assert right(models, model, case)


def test_sources_that_do_not_fit_are_refused(case: Case, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, opencl_library(), cache_dir("opencl"))
    for old, new, words in (
        ("floatb;", "floatb ", "does not compile on device 0"),
        ("kernel void conv", "kernel void vonc", "has no kernel conv"),
        ("kind, a, b;\n}", "kind,a,b,zz;}", "takes .* integers and the model gives"),
    ):
        file = changed(case.model, tmp_path / "a.nnm", texts={old: new})
        with pytest.raises(ModelError, match=words):
            models.load(file)


# -- sanitizers -----------------------------------------------------------------------------------------------------

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")


@pytest.mark.slow
@needs_gcc
def test_damaged_models_are_refused_or_run_without_a_wrong_access(
    two_devices: Case, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fuzz_program(tmp_path, monkeypatch)
    for sharing in ("copied", "mapped", "coherent"):
        settings: dict[str, Any] = {
            "NNSTRETCH_OPENCL_LIBRARY": str(stub),
            "STUB_SHARING": sharing,
            "STUB_PLATFORM": "Portable Computing Language",
            "ASAN_OPTIONS": "allocator_may_return_null=1",
        }
        done = run(program, two_devices.model, tmp_path / "copy.nnm", "1200", "1", **settings)
        refused, ran = map(int, done.stdout.split())
        assert refused > 300
        assert ran > 100


@pytest.mark.slow
@needs_gcc
def test_no_race_between_queues_and_devices(
    two_devices: Case, case: Case, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "engine_sources", lambda target, _: thread_sanitized_sources(target))
    runner = standalone.build_runner(BuildTarget(local_isa()), "thread")
    sanitized = c_library(KITS_FOLDER / "opencl_stub.c", "thread", includes=(KITS_FOLDER / "opencl_double.c",))
    for sharing in ("copied", "mapped", "coherent"):
        settings: dict[str, Any] = {
            "TSAN_OPTIONS": f"halt_on_error=1 suppressions={SUPPRESSIONS}",
            "STUB_SHARING": sharing,
            "STUB_PLATFORM": "Portable Computing Language",
        }
        command = (runner, "--opencl", sanitized, "--runs", "30", "--warmup", "0", "--timeline")
        answer = json.loads(run(*command, two_devices.model, case.model, **settings).stdout)
        assert not any("error" in entry for entry in answer["models"])


# -- files of earlier versions, damaged files -----------------------------------------------------------------------


def test_a_stored_file_of_version_2_is_read(tmp_path: Path) -> None:
    """Made by the version before OpenCL queues: y = relu(x) for vectors of 4 floats."""
    stored = HERE / "version_2.nnm"
    assert struct.unpack_from("<q", stored.read_bytes(), 8) == (2,)
    models = ModelLibrary(tmp_path)
    x = np.linspace(-1, 1, 12, dtype=np.float32)
    if local_isa().name != "x86-64-v4":
        with pytest.raises(ModelError, match="the model is for x86-64-v4"):
            models.load(stored)
        return
    with models.loaded(stored) as model:
        assert np.array_equal(models.run(model, x, [(1, 3, 2, 2)])[0].reshape(-1), np.maximum(x, 0))
