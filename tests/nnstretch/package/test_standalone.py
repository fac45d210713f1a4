"""Standalone models: the folder that is made, what runs in it without Python, and every way in which a file can be wrong."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.cli.main import main
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors, foreign_processors
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import (
    ISAS,
    BuildTarget,
    Isa,
    local_features,
    local_isa,
    parse_target,
)
from nnstretch.errors import DeviceError, FeedError, FileError, PackageError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.resolve import load_model
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import check, standalone_files, write_model_file, write_standalone
from nnstretch.package.standalone_head import is_standalone
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.passes import optimize
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import make_plan
from tests.kits.c_libraries import sources_with_kernels_of
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.typed_networks import NETWORKS as TYPED_NETWORKS
from tests.kits.kernels.cpu_features import runnable_isas
from tests.kits.model_fuzz import fuzz_program

HERE = Path(__file__).parent
TOLERANCE = 1e-4
HEADER_WORDS = 8

NETWORK = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 20, 3, 2, 1), nn.Hardswish())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.depthwise = nn.Sequential(nn.Conv2d(20, 20, 5, 1, 2, groups=20), nn.ReLU6())
        self.pointwise = nn.Conv2d(20, 20, 1)
        self.grouped = nn.Conv2d(20, 24, 3, 1, 1, groups=4)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(44, 10), nn.Softmax(1))

    def forward(self, x):
        x = self.pool(self.stem(x))
        y = x + self.pointwise(self.depthwise(x))
        return self.head(torch.cat([y, torch.sigmoid(self.grouped(y))], 1))


def small():
    torch.manual_seed(0)
    return Small(), torch.zeros(1, 3, 30, 26)
"""


@dataclass(frozen=True)
class Case:
    """A standalone folder with an input and ONNX Runtime's answer to it."""

    folder: Path
    name: str
    x: np.ndarray
    y: np.ndarray

    @property
    def executable(self) -> Path:
        return self.folder / self.name

    @property
    def model(self) -> Path:
        return self.folder / f"{self.name}.nnm"


def case_of(folder: Path, name: str, onnx_file: Path) -> Case:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(onnx_file), options)
    (wanted,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(wanted.shape).astype(np.float32)
    return Case(folder, name, x, np.asarray(session.run(None, {wanted.name: x})[0]))


def run(*command: str | Path, status: int = 0, features: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program without Python and library paths; its environment holds NNSTRETCH_CPU_FEATURES alone, or nothing."""
    environment = {} if features is None else {"NNSTRETCH_CPU_FEATURES": features}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=250, env=environment
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def answer(
    case: Case, folder: Path, *prefix: str | Path, threads: int | None = None, features: str | None = None
) -> np.ndarray:
    """What the executable makes of the case's input."""
    np.save(folder / "x.npy", case.x)
    options = () if threads is None else ("--threads", str(threads))
    run(
        *prefix, case.executable, folder / "x.npy", "-o", folder / "y.npy", "--repeat", "1", *options, features=features
    )
    return np.asarray(np.load(folder / "y.npy"))


def refuses(*command: str | Path, words: Sequence[str] = ()) -> None:
    """Status 2, and one line on the standard error, nothing on the other."""
    done = run(*command, status=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with most kinds of layers, as an ONNX file."""
    folder = tmp_path_factory.mktemp("network")
    (folder / "net.py").write_text(NETWORK)
    save(load_model(f"{folder / 'net.py'}:small"), folder / "small.onnx")
    return folder / "small.onnx"


@pytest.fixture(scope="module")
def small(network: Path) -> Case:
    """The network, compiled for this machine by the command."""
    folder = network.parent / "small"
    assert main(["compile", str(network), "--standalone", "--no-tune", "--threads", "1", "-o", str(folder)]) == 0
    return case_of(folder, "small", network)


def planned(network: Path, target: BuildTarget, threads: int) -> Compiled:
    return plan_model(
        load_model(str(network)), foreign_processors(target.isa, CompileOptions(threads=threads)), tune=False
    )


# -- what is made, and what it computes -----------------------------------------------------------------------------


def test_the_executable_computes_what_onnx_runtime_does(small: Case, tmp_path: Path) -> None:
    assert relative_error(answer(small, tmp_path), small.y) < TOLERANCE


def test_raw_files_are_read_and_written_too(small: Case, tmp_path: Path) -> None:
    small.x.tofile(tmp_path / "x.f32")
    done = run(small.executable, tmp_path / "x.f32", "--output", tmp_path / "y.f32", "-n", "0", "-m", small.model)
    y = np.fromfile(tmp_path / "y.f32", np.float32)
    assert relative_error(y.reshape(small.y.shape), small.y) < TOLERANCE
    assert f"largest at {y.argmax()}" not in done.stdout  # the text names the number, too
    assert f"at {y.argmax()}\n" in done.stdout


def test_the_executable_describes_its_model(small: Case) -> None:
    info = run(small.executable, "--info").stdout
    assert info.splitlines()[0] == f"small on 1 thread, {local_isa().name}"
    assert "float32 1x3x30x26" in info
    assert "float32 1x10" in info
    assert "--threads" in run(small.executable, "--help").stdout


@pytest.mark.parametrize("compiler", [("gcc",), (sys.executable, "-m", "ziglang", "cc")], ids=["gcc", "zig"])
def test_the_example_runs_a_zoo_network(compiler: tuple[str, ...], zoo_network: Case, tmp_path: Path) -> None:
    if not shutil.which(compiler[0]):
        pytest.skip(f"{compiler[0]} is not there")
    folder = tmp_path / "installed"
    shutil.copytree(zoo_network.folder, folder)
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99")
    command = (*compiler, *flags, "example.c", "-o", "example", "-L.", "-lnnstretch", "-Wl,-rpath,$ORIGIN")
    subprocess.run(command, cwd=folder, check=True)
    zoo_network.x.tofile(tmp_path / "x")
    done = run(folder / "example", folder / zoo_network.model.name, tmp_path / "x", tmp_path / "y")
    y = np.fromfile(tmp_path / "y", np.float32).reshape(zoo_network.y.shape)
    assert relative_error(y, zoo_network.y) < TOLERANCE
    assert f"largest at {zoo_network.y.argmax()}," in done.stdout


@pytest.fixture(scope="module")
def zoo_network(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("zoo")
    assert main(["zoo", "squeezenet", "-o", str(folder / "squeezenet.onnx")]) == 0
    assert main(["compile", "squeezenet", "--standalone", "--no-tune", "-o", str(folder / "made")]) == 0
    return case_of(folder / "made", "squeezenet", folder / "squeezenet.onnx")


def test_cxx_reads_the_header(small: Case) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not there")
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", str(small.folder / "nnstretch.h")]
    subprocess.run(command, check=True)


def test_the_command_answers_with_what_it_wrote(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made"
    capsys.readouterr()
    assert main(["compile", str(network), "--standalone", "--no-tune", "-o", str(folder), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["target"] == str(parse_target("local"))
    assert {what: Path(entry["file"]) for what, entry in info["files"].items()} == standalone_files("small", folder)
    assert {path.name for path in folder.iterdir()} == {
        "small",
        "small.nnm",
        "libnnstretch.so",
        "nnstretch.h",
        "example.c",
    }
    assert os.access(folder / "small", os.X_OK)


def test_the_runner_is_written_where_it_is_asked_for(network: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert main(["compile", str(network), "--standalone", "--runner", "--no-tune", "-o", str(folder)]) == 0
    done = run(folder / "nns-bench", "--runs", "1", folder / "small.nnm")
    assert json.loads(done.stdout)["models"][0]["name"] == "small"


def test_equal_models_are_equal_files(network: Path, tmp_path: Path) -> None:
    compiled = planned(network, parse_target("local"), 1)
    for name in ("a", "b"):
        write_model_file(compiled, "small", local_isa(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# -- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_queues_run_on_the_cores_that_there_are(small: Case, tmp_path: Path, seed: int, threads: int | None) -> None:
    """Two queues of two and one cores, on machines with any number of cores."""
    network = RandomNetwork(seed, 2)
    queues = [CpuProcessor(ProcessorSpec("cpu", cores=cores), local_isa()) for cores in ((0, 1), (2,))]
    compiled = make_plan(optimize(network.graph()), queues, queues[0])
    assert len(compiled.plan.queues) == 2
    write_model_file(compiled, "random", local_isa(), tmp_path / "random.nnm")
    np.save(tmp_path / "x.npy", network.input)
    expected = network.expected()
    outputs = [tmp_path / f"y{i}.npy" for i in range(len(expected))]
    named = [word for path in outputs for word in ("-o", path)]
    options = () if threads is None else ("-t", str(threads))
    run(small.executable, "-m", tmp_path / "random.nnm", tmp_path / "x.npy", *named, "-n", "2", *options)
    for path, y in zip(outputs, expected, strict=True):
        assert relative_error(np.load(path), y) < TOLERANCE


def test_queues_run_on_the_cores_that_they_were_planned_for(small: Case, network: Path, tmp_path: Path) -> None:
    """Which is seen when one of them does not exist: then only, the queue moves."""
    core = max(os.sched_getaffinity(0))
    for cores, threads in (((core,), 1), ((core, core), 2), ((core, 1023), min(2, len(os.sched_getaffinity(0))))):
        cpu = CpuProcessor(ProcessorSpec("cpu", cores=cores), local_isa())
        compiled = make_plan(optimize(load_model(str(network))), [cpu], cpu)
        write_model_file(compiled, "small", local_isa(), tmp_path / "a.nnm")
        info = run(small.executable, "-m", tmp_path / "a.nnm", "-n", "0").stdout
        assert info.startswith(f"small on {threads} thread")


def test_groups_of_cores_of_another_machine() -> None:
    other = next(isa for isa in ISAS if isa != local_isa())
    named = foreign_processors(other, CompileOptions("cpu:4-7,cpu:0-3")).named
    assert [processor.spec.cores for processor in named] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert [processor.spec.cores for processor in foreign_processors(other, CompileOptions()).named] == [(0,)]
    assert [processor.spec.cores for processor in foreign_processors(other, CompileOptions(threads=4)).named] == [
        (0, 1, 2, 3)
    ]
    (known,) = foreign_processors(other, CompileOptions(), ("some", "features")).named
    assert {routine.features for routine in known.routines} == {frozenset({"some", "features"})}
    for wrong in ("opencl:0", "cpu:0,opencl:0@1", "cpu:1024", "cpu:0,cpu:0"):
        with pytest.raises(UsageError):
            foreign_processors(other, CompileOptions(wrong))


def test_cores_can_be_named(small: Case) -> None:
    core = min(os.sched_getaffinity(0))
    info = run(small.executable, "-n", "0", "--cores", f"{core}").stdout
    assert info.startswith("small on 1 thread,")
    info = run(small.executable, "-n", "0", "--cores", f"{core}+{core}").stdout
    assert info.startswith("small on 2 threads,")


# -- other machines -------------------------------------------------------------------------------------------------


def emulator(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    return found


@pytest.mark.slow
def test_a_static_executable_for_aarch64_runs_under_qemu(network: Path, tmp_path: Path) -> None:
    qemu = emulator("qemu-aarch64-static")
    target = parse_target("aarch64-linux-musl")
    write_standalone(planned(network, target, 4), "small", target, tmp_path)
    case = case_of(tmp_path, "small", network)
    # No C library of that architecture is here, so this would fail if it were not linked statically.
    assert relative_error(answer(case, tmp_path, qemu), case.y) < TOLERANCE


@pytest.mark.slow
def test_a_library_for_aarch64_is_built(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target("aarch64-linux-gnu")
    sources = sources_with_kernels_of(target, "linux-musl")  # which run in an emulator
    monkeypatch.setattr(standalone, "engine_sources", lambda *_: sources)
    files = write_standalone(planned(network, target, 1), "small", target, tmp_path)
    for what in ("library", "executable"):
        content = files[what].read_bytes()
        assert content[:5] == b"\x7fELF\x02"
        assert struct.unpack_from("<H", content, 18) == (183,)  # EM_AARCH64
    assert b"nns_model_load\0" in files["library"].read_bytes()


RUNNABLE = [isa for isa in runnable_isas() if isa != local_isa()]


@pytest.mark.slow
@pytest.mark.parametrize("isa", RUNNABLE, ids=[isa.name for isa in RUNNABLE])
def test_lower_levels_of_this_machine(isa: Isa, network: Path, tmp_path: Path) -> None:
    target = BuildTarget(isa)  # with this machine's C library, as other tests build these engines
    write_standalone(planned(network, target, 1), "small", target, tmp_path)
    case = case_of(tmp_path, "small", network)
    assert relative_error(answer(case, tmp_path), case.y) < TOLERANCE


LESSER = {"x86-64-v4": ("Haswell", "avx512f"), "x86-64-v3": ("Nehalem", "fma"), "x86-64-v2": ("Conroe", "sse4_2")}
"""For each instruction set an emulated CPU below it, and what that lacks."""


@pytest.mark.skipif(local_isa().name not in LESSER, reason=f"no emulated CPU is below {local_isa().name}")
def test_a_cpu_that_lacks_the_instruction_set_is_reported(small: Case) -> None:
    qemu = emulator("qemu-x86_64-static")
    cpu, missing = LESSER[local_isa().name]
    done = run(qemu, "-cpu", cpu, small.executable, status=2)
    assert done.stderr.splitlines()[-1].startswith(f"error: this CPU lacks {missing}, which {local_isa().name} has")


def test_a_hidden_feature_of_the_instruction_set_is_missing(small: Case) -> None:
    feature = max(local_isa().features)
    done = run(small.executable, status=2, features=f"-{feature}")
    assert done.stderr.startswith(
        f"error: this CPU lacks {feature}, which {local_isa().name} has; compile the model for"
    )


@pytest.mark.slow
@pytest.mark.skipif("fma" not in local_features(), reason="this CPU has no fused multiply-add")
def test_one_executable_holds_the_variants_of_its_kernels(network: Path, tmp_path: Path) -> None:
    """A model for x86-64-v2 uses fused multiply-add where the CPU has it."""
    target = BuildTarget(next(isa for isa in ISAS if isa.name == "x86-64-v2"))
    write_standalone(planned(network, target, 1), "small", target, tmp_path)
    case = case_of(tmp_path, "small", network)
    answers = []
    for mask, used in ((None, "x86-64-v2 + fma"), ("-fma", "x86-64-v2"), ("-fma,-avx2", "x86-64-v2")):
        info = run(case.executable, "--info", features=mask).stdout.splitlines()[0]
        assert info == f"small on 1 thread, {used}"
        answers.append(answer(case, tmp_path, features=mask))
        assert relative_error(answers[-1], case.y) < TOLERANCE
    assert not np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[1], answers[2])


def test_targets_are_read_as_they_are_written() -> None:
    assert parse_target("local") == BuildTarget(local_isa())
    for isa in ISAS:
        for system in ("linux-gnu", "linux-musl"):
            assert str(parse_target(f"{isa.name}-{system}")) == f"{isa.name}-{system}"
        assert str(parse_target(isa.name)) == f"{isa.name}-linux-gnu"
    for wrong in ("", "aarch64-", "aarch64-windows", "x86-64", "aarch64-linux-gnu-"):
        with pytest.raises(UsageError, match="unknown target"):
            parse_target(wrong)


def test_nothing_can_be_measured_for_another_machine() -> None:
    other = next(isa for isa in ISAS if isa != local_isa())
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(0,)), other)
    assert processor.blocked.block == other.block
    with pytest.raises(DeviceError, match="without measuring"):
        assert processor.fingerprint


# -- what is refused when it is made --------------------------------------------------------------------------------


def test_plans_that_need_more_than_the_engine_are_refused(network: Path, tmp_path: Path) -> None:
    compiled = planned(network, parse_target("local"), 1)
    plan = compiled.plan
    steps = (replace(plan.steps[0], kind="call", layer="odd/layer"), *plan.steps[1:])
    with pytest.raises(UsageError, match="computes odd/layer"):
        write_model_file(replace(compiled, plan=replace(plan, steps=steps)), "a", local_isa(), tmp_path / "a")
    with pytest.raises(PackageError, match="vectors of"):
        write_model_file(replace(compiled, plan=replace(plan, block=3)), "a", local_isa(), tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", "a b"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        standalone_files(name, Path())


@pytest.mark.parametrize("name", ["libnnstretch.so", "nnstretch.h", "example.c", "nns-bench"])
def test_names_by_which_one_file_would_overwrite_another_are_refused(name: str) -> None:
    """The executable has the model's name, beside files that are called the same in every folder."""
    with pytest.raises(UsageError, match="cannot be called"):
        standalone_files(name, Path())
    files = standalone_files(f"{name}.x", Path())
    assert len(set(files.values())) == len(files) == 5
    assert {path.name for what, path in files.items() if what not in ("model", "executable")} == {
        "libnnstretch.so", "nnstretch.h", "example.c",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target", "local"), "--standalone"),
        (("--runner",), "--standalone"),
        (("--standalone", "--target", "z80"), "unknown target"),
        (("--standalone", "--target", "aarch64", "-p", "cpu:0,opencl:0"), "only groups of CPU cores"),
        (("--standalone", "-o", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], words: str, network: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if local_isa().name == "aarch64":
        arguments = tuple(word.replace("aarch64", "x86-64-v3") for word in arguments)
    capsys.readouterr()
    assert main(["compile", str(network), "--no-tune", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


# -- what is refused when it is run ---------------------------------------------------------------------------------


def changed(case: Case, path: Path, change: Callable[[bytearray], object], *, mend: bool = True) -> Path:
    """A copy of the model with a change, and a checksum that fits it."""
    content = bytearray(case.model.read_bytes())
    change(content)
    if mend:
        struct.pack_into("<Q", content, 56, 0)
        start = struct.unpack_from("<q", content, 40)[0]
        struct.pack_into("<Q", content, 56, check(content[:start], bytes(content[start:])))
    path.write_bytes(content)
    return path


def _set_format(number: int, content: bytearray) -> None:
    struct.pack_into("<q", content, 8, number)


def test_files_that_are_no_models(small: Case, tmp_path: Path) -> None:
    refuses(small.executable, "-m", tmp_path / "none", words=["cannot open", "none"])
    refuses(small.executable, "-m", tmp_path, words=[str(tmp_path)])
    for content in (b"", b"x", bytes(64), b"\x7fELF" + bytes(100)):
        (tmp_path / "a").write_bytes(content)
        refuses(small.executable, "-m", tmp_path / "a", words=["no model file"])


def test_damaged_files(small: Case, tmp_path: Path) -> None:
    whole = small.model.read_bytes()
    for keep in (8, 63, 64, 100, len(whole) - 1):
        (tmp_path / "a").write_bytes(whole[:keep])
        refuses(small.executable, "-m", tmp_path / "a")
    (tmp_path / "a").write_bytes(whole + b"x")
    refuses(small.executable, "-m", tmp_path / "a", words=["copy it again"])
    flipped = changed(small, tmp_path / "a", lambda c: c.__setitem__(200, c[200] ^ 4), mend=False)
    refuses(small.executable, "-m", flipped, words=["checksum"])
    for other in (1, 18):
        file = changed(small, tmp_path / "a", partial(_set_format, other))
        refuses(small.executable, "-m", file, words=[f"format {other}", "nnstretch compile MODEL --standalone"])


def test_no_damaged_byte_gives_an_answer(small: Case, tmp_path: Path) -> None:
    """Every byte of header and program in turn, and bytes all over padding and weights."""
    library = ctypes.CDLL(str(small.folder / "libnnstretch.so"))
    whole = small.model.read_bytes()
    words, text, start = struct.unpack_from("<3q", whole, 24)
    head = 8 * HEADER_WORDS + 8 * words + text
    rng = np.random.default_rng(0)
    places = [*range(head), *rng.integers(head, start, 100), *rng.integers(start, len(whole), 500), len(whole) - 1]
    path = tmp_path / "a"
    path.write_bytes(whole)
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)

    def load() -> int:
        return int(library.nns_model_load(str(path).encode(), None, ctypes.byref(model), error, ctypes.c_size_t(512)))

    assert load() == 0
    library.nns_model_free(model)
    with path.open("r+b", buffering=0) as file:
        for place in map(int, places):
            file.seek(place)
            file.write(bytes([whole[place] ^ 1 << int(rng.integers(8))]))
            assert load() != 0, place
            assert model.value is None
            assert error.value.startswith(str(path).encode())
            assert b"\n" not in error.value
            file.seek(place)
            file.write(whole[place : place + 1])
    assert load() == 0
    library.nns_model_free(model)


def test_models_for_other_libraries(small: Case, network: Path, tmp_path: Path) -> None:
    other = next(isa for isa in ISAS if isa.architecture != local_isa().architecture)
    write_model_file(planned(network, BuildTarget(other), 1), "small", other, tmp_path / "a")
    refuses(small.executable, "-m", tmp_path / "a", words=[other.name, local_isa().name, "--target"])
    kernel = changed(small, tmp_path / "a", lambda c: c.__setitem__(slice(None), c.replace(b"\0dense", b"\0dance")))
    refuses(small.executable, "-m", kernel, words=["no kernel dance"])


def test_inputs_that_do_not_fit(small: Case, tmp_path: Path) -> None:
    wrong = tmp_path / "x.npy"
    for array, words in (
        (small.x.astype(np.float64), ["float32"]),
        (small.x[:, :, 1:], ["has shape (1, 3, 29, 26), and input", "1x3x30x26"]),
        (small.x[0], ["has shape (3, 30, 26)"]),
        (np.asfortranarray(small.x), ["Fortran"]),
    ):
        np.save(wrong, array)
        refuses(small.executable, wrong, words=words)
    np.save(wrong, small.x)
    whole = wrong.read_bytes()
    for content in (whole[:-1], whole + b"x", whole[:20], b"", b"\x93NUMPY\x01\0\xff\xff" + whole[10:]):
        wrong.write_bytes(content)
        refuses(small.executable, wrong, words=[str(wrong)])
    small.x[:, :, 1:].tofile(tmp_path / "x.raw")
    refuses(small.executable, tmp_path / "x.raw", words=["x.raw has ", "bytes", "not text"])
    refuses(small.executable, tmp_path / "none.npy", words=["cannot open"])
    np.save(wrong, small.x)
    refuses(small.executable, wrong, wrong, words=["2 inputs"])


def test_the_library_checks_the_sizes_of_a_run(small: Case) -> None:
    library = ctypes.CDLL(str(small.folder / "libnnstretch.so"))
    assert not hasattr(library, "nns_model_run"), "programs made for the function without sizes would run it"
    model, text = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    assert library.nns_model_load(str(small.model).encode(), None, ctypes.byref(model), text, ctypes.c_size_t(256)) == 0
    x, y = np.ascontiguousarray(small.x), np.zeros_like(small.y)

    def refusal(x_bytes: int, y_bytes: int, n_inputs: int = 1, n_outputs: int = 1) -> str:
        inputs, outputs = ((ctypes.c_int64 * 2)(a.ctypes.data, n) for a, n in ((x, x_bytes), (y, y_bytes)))
        status = library.nns_model_run_sized(model, inputs, n_inputs, outputs, n_outputs, text, ctypes.c_size_t(256))
        assert (status == 0) == (text.value == b"")
        return text.value.decode()

    name = run(small.executable, "--info").stdout.splitlines()[1].split()[1].rstrip(":")
    for wrong in (0, 4, x.nbytes - 1, x.nbytes + 4, -1):
        assert refusal(wrong, y.nbytes) == f"input {name} has {wrong} bytes and needs {x.nbytes}: 2340 float32 numbers"
    assert refusal(x.nbytes, y.nbytes + 4).endswith("has 44 bytes and needs 40: 10 float32 numbers")
    for counts in ((0, 1), (2, 1), (1, 0), (1, 2), (-1, 1)):
        assert "the model has 1 inputs and 1 outputs" in refusal(x.nbytes, y.nbytes, *counts)
    assert not y.any()
    assert refusal(x.nbytes, y.nbytes) == ""
    assert relative_error(y, small.y) < TOLERANCE
    library.nns_model_free(model)


def test_sessions_in_python_compute_the_same(small: Case, tmp_path: Path) -> None:
    with StandaloneSession(small.model) as session:
        (x,), (y,) = session.get_inputs(), session.get_outputs()
        assert (x.shape, y.shape, x.type) == ((1, 3, 30, 26), (1, 10), "tensor(float)")
        session.run(None, {x.name: small.x})
        (found,) = session.run(None, {x.name: small.x})
        assert relative_error(found, small.y) < TOLERANCE
        assert np.array_equal(session.run([y.name], {x.name: np.asfortranarray(small.x)})[0], found)
        for feeds in ({}, {"z": small.x}, {x.name: small.x[:, :, 1:]}, {x.name: small.x.astype(np.float64)}):
            with pytest.raises(FeedError, match=x.name):
                session.run(None, feeds)
        with pytest.raises(FeedError, match="nothing"):
            session.run(["nothing"], {x.name: small.x})
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run(None, {x.name: small.x})
    StandaloneSession(small.model, threads=1).close()


def test_files_that_sessions_refuse(small: Case, network: Path, tmp_path: Path) -> None:
    assert is_standalone(small.model)
    shutil.copy(small.model, tmp_path / "renamed")
    assert is_standalone(tmp_path / "renamed")
    assert not is_standalone(network)
    assert not is_standalone(tmp_path)
    with pytest.raises(FileError, match="none"):
        StandaloneSession(tmp_path / "none.nnm")
    for content in (b"", b"x" * 100):
        (tmp_path / "a.nnm").write_bytes(content)
        with pytest.raises(PackageError, match="no model file"):
            StandaloneSession(tmp_path / "a.nnm")
    with pytest.raises(PackageError, match="checksum"):
        StandaloneSession(changed(small, tmp_path / "a.nnm", lambda c: c.__setitem__(-1, c[-1] ^ 4), mend=False))
    with pytest.raises(PackageError, match="format 18"):
        StandaloneSession(changed(small, tmp_path / "a.nnm", partial(_set_format, 18)))
    other = next(isa for isa in ISAS if isa.architecture != local_isa().architecture)
    write_model_file(planned(network, BuildTarget(other), 1), "small", other, tmp_path / "a.nnm")
    with pytest.raises(PackageError, match=f"{other.name}.*--target {local_isa().name}"):
        StandaloneSession(tmp_path / "a.nnm")


def test_no_library_beside_a_model_is_loaded(small: Case, tmp_path: Path) -> None:
    """It may be anybody's program."""
    shutil.copy(small.model, tmp_path / "small.nnm")
    (tmp_path / "libnnstretch.so").write_text("not a library")
    with StandaloneSession(tmp_path / "small.nnm") as session:
        assert session.get_inputs()


def test_outputs_take_the_place_of_files_only(small: Case, tmp_path: Path) -> None:
    """Of a device, such as /dev/null, nothing would be left."""
    (tmp_path / "link.npy").symlink_to(tmp_path / "kept.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    for other in (tmp_path / "link.npy", tmp_path / "pipe.npy"):
        refuses(small.executable, "-o", other, words=[f"cannot write {other}", "no regular file"])
    assert (tmp_path / "link.npy").is_symlink()
    assert (tmp_path / "pipe.npy").is_fifo()


def test_more_threads_than_cores_are_named(small: Case) -> None:
    """As in Python: no more are used, and a line says so."""
    done = run(small.executable, "--threads", "1000", "--repeat", "2")
    (line,) = done.stderr.splitlines()
    used = re.match(r"\S+ on (\d+) thread", done.stdout)
    assert used is not None
    assert line.startswith(f"warning: --threads is 1000, and {used[1]} ")
    times = re.search(r"median ([\d.]+) ms, p90 ([\d.]+) ms", done.stdout)
    assert times is not None and float(times[1]) <= float(times[2])


def test_options_that_cannot_be_met(small: Case, tmp_path: Path) -> None:
    refuses(small.executable, "-o", tmp_path / "no" / "y.npy", words=["cannot write"])
    refuses(small.executable, "-o", tmp_path / "a", "-o", tmp_path / "b", words=["2 files"])
    for option in ("--threads", "--repeat"):
        for value in ("", "x", "-1", "99999999999999999999"):
            refuses(small.executable, f"{option}={value}", words=[option])
    for value in ("", "x", "3-1", "0-", "0+", "0-99999", "0 1"):
        refuses(small.executable, f"--cores={value}", words=["no list of cores"])
    refuses(small.executable, "--cores", "1023", words=["core 1023"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")
def test_damaged_models_are_refused_or_run_without_a_wrong_access(
    small: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fuzz_program(tmp_path, monkeypatch)
    rounds_of = {small.model: 4000}
    for number, make in enumerate(TYPED_NETWORKS.values()):
        model = tmp_path / f"{number}.nnm"
        write_model_file(plan_model(make().graph(), build_processors("cpu:0"), tune=False), "typed", local_isa(), model)
        rounds_of[model] = 600
    for model, rounds in rounds_of.items():
        refused, ran = map(int, run(program, model, tmp_path / "copy.nnm", str(rounds), "1").stdout.split())
        assert refused > rounds // 4
        assert ran > rounds // 40
