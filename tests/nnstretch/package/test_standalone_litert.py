"""Standalone models with LiteRT queues: what they compute, what LiteRT's library may do wrong, and what is left behind."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnstretch.api.options import CompileOptions
from nnstretch.branching.transform.network import export_branched
from nnstretch.cli.main import main
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors, foreign_processors
from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, local_isa, parse_target
from nnstretch.devices.engine.build.standalone import build_binaries, build_runner
from nnstretch.devices.external.litert.library import LITERT_VARIABLE, packaged_library
from nnstretch.errors import PackageError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import HAS_CALLS, format_has, write_model_file
from nnstretch.package.standalone_calls import PlanCalls
from nnstretch.package.standalone_head import read_head
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.support.settings import cache_dir
from tests.kits.c_libraries import c_library, thread_sanitized_sources
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.quantized_networks import QuantizedNetwork
from tests.kits.model_files import after_kernels, changed, words_of
from tests.kits.model_fuzz import fuzz_program
from tests.kits.networks.model_library import ModelError, ModelLibrary
from tests.kits.networks.tiny_branching import SIDE, branched
from tests.nnstretch.package.test_standalone_opencl import Case, answers, make_case, run

HERE = Path(__file__).parent
STUB = HERE.parents[1] / "kits" / "litert" / "litert_stub.c"
SUPPRESSIONS = HERE.parents[1] / "devices" / "engine" / "thread_sanitizer.supp"
CORES = "cpu:0,tflite@1"
TOLERANCE = 1e-5
HEADER, CHECK_AT, WORD = 64, 56, 8
MOST_CALLS = 40

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")


@pytest.fixture(scope="module")
def library() -> Path:
    """LiteRT's own library."""
    found = packaged_library()
    if found is None:
        pytest.skip("LiteRT's package has no C library")
    return found


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A network that LiteRT computes alone."""
    return make_case(tmp_path_factory.mktemp("lone"), RandomNetwork(2, 0, nodes=8, size=9).graph(), "tflite@1")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A branched network with a CPU queue, and one call on a LiteRT queue."""
    network = export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE))
    return make_case(tmp_path_factory.mktemp("beside"), network, CORES)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A network of two outputs that LiteRT computes in int8."""
    made = make_case(tmp_path_factory.mktemp("quantised"), QuantizedNetwork(3).graph(), "tflite@1")
    assert {step.routine for step in made.compiled.plan.steps} == {"litert:int8/xnnpack"}
    assert len(made.outputs) == 2
    return made


@pytest.fixture(scope="module", params=["lone", "beside", "quantised"])
def case(request: pytest.FixtureRequest) -> Case:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Case)
    return found


@pytest.fixture(scope="module")
def executable() -> Path:
    return build_binaries(parse_target("local")).executable


def are_close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    return all(relative_error(a, b) < TOLERANCE for a, b in zip(found, wanted, strict=True))


def refusal(*command: str | Path, **more: Any) -> str:
    """The last line of a program that refuses; LiteRT may log others before it."""
    *_, line = run(*command, status=2, **more).stderr.splitlines()
    assert line.startswith("error: ")
    return line


# -- what is computed -----------------------------------------------------------------------------------------------


def test_the_executable_computes_what_the_session_does(
    case: Case, executable: Path, library: Path, tmp_path: Path
) -> None:
    assert {step.kind for step in case.compiled.plan.steps} == (
        {"call"} if len(case.compiled.plan.processors) == 1 else {"kernel", "call"}
    )
    assert are_close(answers(case, tmp_path, executable, "--litert", library), case.outputs)
    info = run(executable, "-m", case.model, "--info", NNSTRETCH_LITERT=str(library)).stdout
    assert "queue 1: litert cpu, core 1" in info


def test_the_libraries_of_c_and_python_do(case: Case, library: Path, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, litert=library)
    for accelerator in (None, "cpu", "builtin"):
        model = models.load(case.model, accelerator=accelerator)
        for _ in range(2):
            assert are_close(models.run(model, case.x, [y.shape for y in case.outputs]), case.outputs)
        models.free(model)
    with StandaloneSession(case.model) as session:
        (x,) = session.get_inputs()
        assert are_close(session.run(None, {x.name: case.x}), case.outputs)


@pytest.mark.opencl
def test_a_race_of_the_runner(lone: Case, beside: Case, library: Path, tmp_path: Path) -> None:
    """CPU, OpenCL and LiteRT plans of one network take turns and agree; LiteRT queues have timelines like others."""
    network = export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE))
    others = []
    for processor in ("cpu:1", "opencl:0@1"):
        compiled = plan_model(network, build_processors(f"cpu:0,{processor}"), tune=False)
        others.append(tmp_path / f"{processor[:3]}.nnm")
        write_model_file(compiled, "model", local_isa(), others[-1])
    options = ("--litert", library, "--cache", cache_dir("opencl"), "--outputs", tmp_path, "--timeline")
    runs = ("--runs", "3", "--warmup", "0")
    runner = build_runner(parse_target("local"))
    answer = json.loads(run(runner, *options, *runs, *others, beside.model, lone.model).stdout)
    kinds = [[queue["kind"] for queue in entry["queues"]] for entry in answer["models"]]
    assert kinds == [["cpu", "cpu"], ["cpu", "opencl"], ["cpu", "litert"], ["cpu", "litert"]]
    for entry in answer["models"]:
        assert entry["runs"] == 3
        assert entry["repeatable"]
        called = [step for step in entry["timeline"] if step["queue"] == 1]
        assert called
        assert all(0 <= step["begin"] <= step["end"] for step in called)
    mixed = answer["models"][2]
    assert [queue["device"] for queue in mixed["queues"]] == [None, "cpu"]
    assert {step["step"] for step in mixed["timeline"]} > {
        step.layer for step in PlanCalls(beside.compiled.plan, {}).steps
    }
    first, *made = [np.fromfile(tmp_path / f"{number}-0.bin", np.float32) for number in range(3)]
    assert all(relative_error(one, first) < TOLERANCE for one in made)


@pytest.mark.opencl
def test_devices_beside_litert(library: Path, executable: Path, tmp_path: Path) -> None:
    """One model with all kinds of queues."""
    mixed = make_case(tmp_path, RandomNetwork(4, 3, nodes=9, size=9).graph(), "cpu:0,opencl:0@1,tflite")
    assert {queue.kind for queue in mixed.compiled.plan.queues} == {"host", "opencl", "call"}
    head = read_head(mixed.model)
    assert head.has_litert
    assert head.has_devices
    command = (executable, "--litert", library, "--cache", cache_dir("opencl"))
    assert are_close(answers(mixed, tmp_path, *command), mixed.outputs)


def threads() -> set[int]:
    """Those of this process."""
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}


def test_a_call_has_the_threads_of_its_queue(library: Path, tmp_path: Path) -> None:
    """One per core, on these cores: that of the queue, and those that LiteRT starts."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    case = make_case(tmp_path, RandomNetwork(2, 0, nodes=4, size=9).graph(), f"tflite@{cores[0]}-{cores[1]}")
    before = threads()
    models = ModelLibrary(tmp_path, litert=library)
    with models.loaded(case.model):
        assert [os.sched_getaffinity(thread) for thread in threads() - before] == [set(cores)] * 2
    assert threads() == before


# -- what commands do -----------------------------------------------------------------------------------------------


def test_compile_makes_a_folder(beside: Case, library: Path, tmp_path: Path) -> None:
    network = tmp_path / "net.onnx"
    save(export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE)), network)
    folder = tmp_path / "made"
    command = ["compile", str(network), "--standalone", "--no-tune", "-p", CORES, "-o", str(folder)]
    assert main(command) == 0
    made = Case(folder / "net.nnm", beside.compiled, beside.x, beside.outputs)
    assert made.model.read_bytes()[HEADER:] != b""
    assert are_close(answers(made, tmp_path, folder / "net", "--litert", library), beside.outputs)


@pytest.mark.parametrize(
    ("processors", "options", "words"),
    [
        ("cpu:0,ort@1", (), "ort:float32/cpu computes"),
        (CORES, ("--target", f"{local_isa().name}-linux-musl"), "linked statically and cannot open LiteRT"),
        ("cpu:0,tflite:npu@1", (), "npu works in standalone models for other machines alone"),
    ],
)
def test_what_compile_refuses(
    processors: str, options: Sequence[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "net.onnx"
    save(RandomNetwork(0, 2, nodes=6, size=9).graph(), network)
    folder = tmp_path / "made"
    command = ("compile", str(network), "--standalone", "--no-tune", "-p", processors, *options, "-o", str(folder))
    assert main(list(command)) == 2
    assert words in " ".join(capfd.readouterr().err.split())
    assert not list(folder.glob("*"))


def test_targets_open_the_library_that_is_named(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tmp_path / "net.onnx"
    save(RandomNetwork(0, 2, nodes=6, size=9).graph(), network)
    monkeypatch.setenv(LITERT_VARIABLE, "/nowhere/x.so")
    command = ["bench", str(network), "--target", "local", "--no-tune", "--budget", "0.05", "-p", CORES, "--json"]
    command += ["--cool-down", "0.01"]  # has the runner measure
    assert main(command) == 1
    assert "LiteRT library /nowhere/x.so cannot be opened" in capfd.readouterr().out
    assert main([*command, "--litert-library", str(library)]) == 0
    (target,) = json.loads(capfd.readouterr().out)["targets"]
    (result,) = target["results"]
    assert result["max_rel_error"] < TOLERANCE
    assert [queue["kind"] for queue in result["queues"]] == ["cpu", "litert"]
    for wrong in ([*command, "--litert-library", "/nowhere/y.so"], ["run", str(network), "--litert-library", "y"]):
        assert main(wrong) == 2
        assert "--litert-library" in capfd.readouterr().err


# -- libraries that fail ----------------------------------------------------------------------------------------------


class Stub:
    """The stand-in library in this process, for models whose calls have the types of one case."""

    def __init__(self, case: Case) -> None:
        self.path = c_library(STUB)
        self._library = ctypes.CDLL(str(self.path))
        self._library.stub_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        for name in ("stub_clear", "stub_left"):
            getattr(self._library, name).restype = ctypes.c_int64
        (step,) = PlanCalls(case.compiled.plan, {}).steps
        words = [len(step.read_types), len(step.write_types)]
        for tensor in (*step.read_types, *step.write_types):
            assert tensor.dtype == DEFAULT_DTYPE
            words += [1, len(tensor.shape), *tensor.shape]
        self.settings = {"STUB_TYPES": " ".join(map(str, words))}

    def set(self, function: str, number: int) -> None:
        """Has one call of a function fail, by its number from 1."""
        self._library.stub_set(function.encode(), number)

    def clear(self) -> int:
        """Ends the fault; returns the number of calls that failed."""
        return int(self._library.stub_clear())

    @property
    def left(self) -> int:
        """Objects that are not released."""
        return int(self._library.stub_left())


@pytest.fixture
def stub(beside: Case, monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub(beside)
    for name, value in made.settings.items():
        monkeypatch.setenv(name, value)
    return made


def attempt(models: ModelLibrary, case: Case, accelerator: str | None = None) -> str:
    """Loads, runs and frees a model. Returns the error, or "" if there is none."""
    model = 0
    try:
        model = models.load(case.model, accelerator=accelerator)
        models.run(model, case.x, [y.shape for y in case.outputs])
    except ModelError as error:
        return str(error)
    finally:
        models.free(model)
    return ""


FUNCTIONS = (
    *("CreateEnvironment", "GetNumAccelerators", "GetAccelerator", "GetAcceleratorHardwareSupport"),
    *("CreateModelFromBuffer", "GetModelSignature", "GetNumSignatureInputs", "GetNumSignatureOutputs"),
    *("GetSignatureInputTensorByIndex", "GetSignatureOutputTensorByIndex", "GetRankedTensorType", "CreateOptions"),
    *("SetOptionsHardwareAccelerators", "CreateOpaqueOptions", "AddOpaqueOptions", "CreateCompiledModel"),
    *("GetCompiledModelInputBufferRequirements", "GetCompiledModelOutputBufferRequirements"),
    *("CreateManagedTensorBufferFromRequirements", "GetTensorBufferPackedSize"),
    *("LockTensorBuffer", "RunCompiledModel", "UnlockTensorBuffer"),
)


def test_every_call_of_every_function_may_fail(beside: Case, stub: Stub, tmp_path: Path) -> None:
    """Loading or the run fails in one line that names the function, and nothing is left."""
    models = ModelLibrary(tmp_path, litert=stub.path)
    assert attempt(models, beside) == ""
    for name in FUNCTIONS:
        for number in count(1):
            stub.set(f"LiteRt{name}", number)
            error = attempt(models, beside)
            struck = stub.clear()
            assert stub.left == 0, (name, number)
            if not struck:
                assert number > 1, f"{name} is not called"
                break
            assert f"LiteRt{name} failed with status 3 (it failed at run time)" in error
            assert number < MOST_CALLS
    assert attempt(models, beside) == ""


def test_a_failed_run_is_no_end(beside: Case, stub: Stub, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, litert=stub.path)
    with models.loaded(beside.model) as model:
        wanted = models.run(model, beside.x, [y.shape for y in beside.outputs])
        stub.set("LiteRtRunCompiledModel", 1)
        with pytest.raises(ModelError, match=r"LiteRT cannot run .*: LiteRtRunCompiledModel failed"):
            models.run(model, beside.x, [y.shape for y in beside.outputs])
        assert np.array_equal(models.run(model, beside.x, [y.shape for y in beside.outputs]), wanted)


@pytest.mark.parametrize(
    ("accelerator", "present", "takes", "words"),
    [
        (None, 1, 1, ""),
        ("tpu", 7, 7, "LiteRT has no accelerator tpu; name cpu, builtin, gpu, npu, gpu\\+cpu or npu\\+cpu"),
        ("gpu", 1, 1, "LiteRT finds no accelerator gpu on this machine"),
        ("npu+cpu", 3, 3, "LiteRT finds no accelerator npu\\+cpu on this machine"),
        ("gpu", 3, 1, "LiteRtCreateCompiledModel failed with status 504 \\(the accelerator does not take all layers"),
        ("gpu", 3, 3, ""),
        ("gpu+cpu", 3, 1, ""),
        ("npu", 7, 4, ""),
    ],
)
def test_accelerators(
    beside: Case,
    stub: Stub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str | None,
    present: int,
    takes: int,
    words: str,
) -> None:
    monkeypatch.setenv("STUB_ACCELERATORS", str(present))
    monkeypatch.setenv("STUB_TAKES", str(takes))
    error = attempt(ModelLibrary(tmp_path, litert=stub.path), beside, accelerator)
    assert bool(error) == bool(words)
    assert stub.left == 0
    if words:
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(error)


def test_plans_for_other_machines_name_the_accelerator(tmp_path: Path) -> None:
    """Whose GPU and NPU are not here."""
    network = export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE))
    isa = next(isa for isa in ISAS if isa.architecture != local_isa().architecture)
    for number, delegate in enumerate(("xnnpack", "builtin", "gpu", "npu")):
        for processors in (f"cpu:0,litert:{delegate}@1", f"litert:{delegate}@1,cpu:0"):
            compiled = plan_model(network, foreign_processors(isa, CompileOptions(processors)), tune=False)
            write_model_file(compiled, "model", isa, tmp_path / "model.nnm")
            assert words_of(tmp_path / "model.nnm")[after_kernels(tmp_path / "model.nnm") + 2] == number
    with pytest.raises(UsageError, match="standalone models cannot use ONNX Runtime"):
        foreign_processors(isa, CompileOptions("cpu:0,ort@1"))


def test_the_accelerator_is_the_one_of_the_file(beside: Case, stub: Stub, executable: Path, tmp_path: Path) -> None:
    at = after_kernels(beside.model)
    settings = {**stub.settings, "STUB_ACCELERATORS": "7", "STUB_TAKES": "7", LITERT_VARIABLE: str(stub.path)}
    for number, name in enumerate(("cpu", "builtin", "gpu", "npu", "gpu+cpu", "npu+cpu")):
        model = changed(beside.model, tmp_path / "a.nnm", numbers={at + 2: number})
        info = run(executable, "-m", model, "--info", status=0, **settings).stdout
        assert f"queue 1: litert {name}, core 1" in info


def test_libraries_that_cannot_be_opened(lone: Case, executable: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.c"
    old.write_text("int LiteRtCreateModelFromFd(void) { return 0; }\n")
    for library_name, words in (
        ("/nowhere/x.so", "the LiteRT library /nowhere/x.so cannot be opened"),
        ("libm.so.6", "has no function LiteRtCreateModelFromFd; name a libLiteRt.so of version 2.1.6 or later"),
        (str(c_library(old)), "has no function LiteRtCreateEnvironment; name a libLiteRt.so of version 2.1.6"),
    ):
        assert words in refusal(executable, "-m", lone.model, "--litert", library_name)
        assert words in refusal(executable, "-m", lone.model, NNSTRETCH_LITERT=library_name)
    assert "libLiteRt.so cannot be opened" in refusal(executable, "-m", lone.model)


def test_a_missing_library_is_an_error_of_the_session(lone: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LITERT_VARIABLE, "/nowhere/x.so")
    with pytest.raises(PackageError, match=r"/nowhere/x\.so cannot be opened"):
        StandaloneSession(lone.model)


def test_another_size_of_a_tensor_is_refused(
    beside: Case, stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guess of LiteRT's types that were wrong would show so, or as other types."""
    models = ModelLibrary(tmp_path, litert=stub.path)
    monkeypatch.setenv("STUB_PADS", "1")
    assert "bytes for a tensor of" in attempt(models, beside)
    monkeypatch.setenv("STUB_TYPES", f"{stub.settings['STUB_TYPES']}0")
    assert "has other inputs or outputs than the model" in attempt(models, beside)
    assert stub.left == 0


def test_a_programs_older_header_has_no_litert(beside: Case, stub: Stub, tmp_path: Path) -> None:
    """What lies behind the options of such a program is not read."""
    loaded = ctypes.CDLL(str(shutil.copy(build_binaries(parse_target("local")).library, tmp_path / "old.so")))
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    loaded.nns_model_free.argtypes = (ctypes.c_void_p,)
    os.environ[LITERT_VARIABLE] = str(stub.path)
    try:
        options = (ctypes.c_int64 * 5)(0, 0, 0, 0, -1)
        arguments = str(beside.model).encode(), options, ctypes.byref(model), error, ctypes.c_size_t(512)
        assert loaded.nns_model_load_on(*arguments) == 0, error.value
    finally:
        del os.environ[LITERT_VARIABLE]
    loaded.nns_model_free(model)


def test_children_of_a_fork_free_a_model(lone: Case, library: Path, tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from tests.kits.model_files import after_kernels, changed, words_of
from tests.kits.networks.model_library import ModelLibrary
models = ModelLibrary(Path({str(tmp_path)!r}), litert=Path({str(library)!r}))
path = Path({str(lone.model)!r})
model = models.load(path)
if not os.fork():
    models.free(model)
    models.free(models.load(path))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
models.free(model)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_nothing_is_left_behind_by_many_loads(lone: Case, library: Path, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, litert=library)

    def left() -> tuple[int, int]:
        return len(threads()), len(list(Path("/proc/self/fd").iterdir()))

    models.free(models.load(lone.model))
    before = left()
    for _ in range(10):
        models.free(models.load(lone.model))
    assert left() == before


# -- damaged files ----------------------------------------------------------------------------------------------------


def test_only_models_with_calls_have_their_format(lone: Case, tmp_path: Path) -> None:
    assert format_has(read_head(lone.model).format, HAS_CALLS)
    other = make_case(tmp_path, RandomNetwork(2, 0, nodes=4, size=5).graph(), "cpu:0")
    assert not read_head(other.model).has_litert


def test_words_of_calls_that_do_not_fit_are_refused(beside: Case, stub: Stub, tmp_path: Path) -> None:
    models = ModelLibrary(tmp_path, litert=stub.path)
    at = after_kernels(beside.model)
    words = words_of(beside.model)
    n_queues, queue, _, n_calls, call_queue, place, size, n_reads, n_writes, *types = words[at:]
    assert (n_queues, queue, n_calls, call_queue, n_reads, n_writes) == (1, 1, 1, 0, 1, 1)
    assert place % 16 == 0
    for offset, number in (
        (0, 2), (1, 0), (1, 2), (2, -1), (2, 6), (3, 0), (3, 1 << 60), (4, 1), (4, -1), (5, -16), (5, place + 4),
        (5, 1 << 62), (6, 0), (6, size + (1 << 30)), (7, 0), (7, 17), (8, 0), (8, 5), (9, 0), (9, 14), (9, 4), (10, 9),
        (11, 1 << 31), (11, 0), (14, types[5] + 1),
    ):  # fmt: skip
        file = changed(beside.model, tmp_path / "a.nnm", numbers={at + offset: number})
        with pytest.raises(ModelError, match=r"damaged|other inputs|no valid TFLite file"):
            models.load(file)
    assert stub.left == 0
    steps = [i for i in range(len(words) - 6) if words[i : i + 3] == [2, 0, 1] and words[i + 4] == 1]
    (step,) = steps  # kind, call, one read, its buffer, one write
    for word, number in ((step + 1, 1), (step + 1, -1), (step + 3, -1)):
        file = changed(beside.model, tmp_path / "a.nnm", numbers={word: number})
        with pytest.raises(ModelError, match="damaged"):
            models.load(file)


def test_a_damaged_tflite_file_is_refused(lone: Case, executable: Path, library: Path, tmp_path: Path) -> None:
    """With a checksum that fits: LiteRT checks it."""
    at = after_kernels(lone.model)
    place, size = words_of(lone.model)[at + 5 : at + 7]
    cut = changed(lone.model, tmp_path / "cut.nnm", numbers={at + 6: size // 2})
    moved = changed(lone.model, tmp_path / "moved.nnm", numbers={at + 5: place + 16, at + 6: size - 16})
    for file in (cut, moved):
        line = refusal(executable, "-m", file, "--litert", library)
        assert "LiteRtCreateModelFromBuffer failed with status 501 (no valid TFLite file)" in line


@pytest.mark.slow
@needs_gcc
def test_damaged_models_are_refused_or_run_without_a_wrong_access(
    beside: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(beside)
    program = fuzz_program(tmp_path, monkeypatch)
    settings: dict[str, Any] = {
        **stub.settings,
        LITERT_VARIABLE: str(stub.path),
        "ASAN_OPTIONS": "allocator_may_return_null=1",
    }
    done = run(program, beside.model, tmp_path / "copy.nnm", "1500", "1", **settings)
    refused, ran = map(int, done.stdout.split())
    assert refused > 300
    assert ran > 100


@pytest.mark.slow
@needs_gcc
def test_no_race_between_queues_and_calls(beside: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "engine_sources", lambda target, _: thread_sanitized_sources(target))
    runner = standalone.build_runner(BuildTarget(local_isa()), "thread")
    sanitized = c_library(STUB, "thread")
    settings: dict[str, Any] = {
        **Stub(beside).settings,
        "TSAN_OPTIONS": f"halt_on_error=1 suppressions={SUPPRESSIONS}",
    }
    command = (runner, "--litert", sanitized, "--runs", "30", "--warmup", "0", "--timeline")
    answer = json.loads(run(*command, beside.model, beside.model, **settings).stdout)
    assert not any("error" in entry for entry in answer["models"])
