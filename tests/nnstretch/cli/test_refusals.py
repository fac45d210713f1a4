"""The command line as a user calls it: one clear line for everything that can be wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from nnstretch.cli.application import what_is_kept
from nnstretch.cli.main import main
from nnstretch.devices.engine.binding.library import engine
from nnstretch.errors import FileError
from nnstretch.package.format import FORMAT_VERSION, read_package
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.support.settings import write_text
from tests.kits.command_line import Answer, Cli, answer_of, refuses
from tests.kits.processes.forks import Command

pytestmark = pytest.mark.usefixtures("network")


def subprocess_cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nnstretch.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


def test_no_command_writes_over_what_it_reads(cli: Cli, onnx_file: Path, folder: Path) -> None:
    model = str(onnx_file)
    (folder / "w.safetensors").write_bytes(b"weights")
    before = onnx_file.read_bytes()
    for command in (
        ("export", model, "-o", model),
        ("quantize", model, "--data", "random", "-o", model),
        ("quantize", f"{model}:w.safetensors", "--data", "random", "-o", model),
        ("train", "net.py:small", "--data", "digits", "-w", "w.safetensors", "-o", "w.safetensors"),
        ("train", "net.py:small", "--data", "digits", "--teacher", "w.safetensors", "-o", "./w.safetensors"),
    ):
        refuses(cli(*command), "the command reads this file; write another one")
    assert onnx_file.read_bytes() == before


def test_models_that_are_none(cli: Cli, onnx_file: Path, folder: Path) -> None:
    (folder / "text.onnx").write_text("hello")
    (folder / "half.onnx").write_bytes(onnx_file.read_bytes()[:2000])
    (folder / "empty.onnx").touch()
    (folder / "text.nns").write_text("hello")
    (folder / "list.json").write_text("[]")
    refuses(cli("run", "missing.onnx"), "missing.onnx", "No such file")
    refuses(cli("run", "text.onnx"), "text.onnx", "not an ONNX file")
    refuses(cli("compile", "half.onnx"), "half.onnx", "truncated")
    refuses(cli("tune", "empty.onnx"), "empty.onnx", "empty")
    refuses(cli("bench", "text.onnx"), "text.onnx")
    (folder / "directory").mkdir()
    refuses(cli("run", "directory"), "directory is a folder", "ONNX file")
    refuses(cli("bench", "directory"), "directory is a folder")
    refuses(cli("bench", str(folder)), f"{folder} is a folder")
    refuses(
        cli("bench", str(onnx_file), "--plan", "missing.json"),
        "no plan missing.json",
        "nnstretch tune MODEL -o missing.json",
    )
    refuses(cli("bench", str(onnx_file), "--plan", "text.onnx"), "text.onnx is damaged")
    refuses(cli("bench", str(onnx_file), "--plan", "list.json"), "list.json is no plan", "tune -o")
    refuses(cli("report", "text.onnx"), "text.onnx is a model; `bench text.onnx -o report.html`")
    (folder / "w.safetensors").write_bytes(b"\xff")
    refuses(cli("report", "w.safetensors"), "w.safetensors holds weights", "nnstretch evaluate MODEL -w w.safetensors")
    refuses(cli("compile", str(onnx_file), "-o", "x.onnx"), "-o x.onnx", "written as .nns")
    refuses(cli("compile", str(onnx_file), "-o", "x.bin"), "-o x.bin", "written as .nns")
    refuses(cli("train", "net.py:small", "--data", "digits", "-o", "net.py"), "-o net.py", "written as .safetensors")
    refuses(cli("run", str(onnx_file), "-o", "x.txt"), "-o x.txt", "written as .npz")
    refuses(cli("run", str(onnx_file), "--timeline", "x.gif"), "--timeline x.gif", "written as .json, .svg, .html")
    refuses(cli("tune", str(onnx_file), "-o", "x.onnx"), "-o x.onnx", "written as .json")
    refuses(cli("profiles", "export", "-o", "x.onnx"), "-o x.onnx", "written as .json")
    refuses(cli("zoo", "resnet18", "-o", "x.nns"), "-o x.nns", "written as .onnx")
    refuses(
        cli("quantize", str(onnx_file), "--data", "missing.npz", "-o", "x.onnx"), "cannot read missing.npz: No such"
    )
    quantize = ("quantize", str(onnx_file), "--data", "digits")
    refuses(cli(*quantize, "-o", "x.nns"), "-o x.nns", "written as .onnx")
    refuses(cli(*quantize, "-o", "missing/x.onnx"), "cannot write missing/x.onnx")
    refuses(cli("train", "resnet18", "--data", "digits", "-o", "x.pt"), "-o x.pt", "written as .safetensors")
    refuses(cli("run", str(onnx_file), "--timeline", "t.png"), "--timeline t.png", ".json, .svg, .html")
    assert not (folder / "t.png").exists()
    (folder / "photos").mkdir()
    refuses(cli("evaluate", str(onnx_file), "--data", "photos"), "write folder:photos for the images in that folder")
    refuses(cli("run", str(onnx_file), "--timeline", "directory"), "cannot write directory", "--timeline")
    refuses(cli("run", "resnet18", "--weights", "directory"), "directory", "it is a folder")
    refuses(cli("train", "text.nns", "--data", "digits", "-o", "w.safetensors"), "text.nns is a package", "made from")
    refuses(cli("run", ""), "there is neither a file nor a zoo network called ''")
    refuses(cli("run", "net:small"), "for a function in net.py, write net.py:small")
    refuses(cli("zoo", "resnet5"), "did you mean", "resnet50")
    refuses(cli("run", "resnet5"), "did you mean", "resnet50")
    refuses(cli("run", "net.py"), "net.py:FACTORY")
    refuses(cli("run", "net.py:tall"), "tall")
    refuses(cli("run", "net.py:wants_an_argument"), "without arguments")
    refuses(cli("run", "net.py:not_a_module"), "int")
    refuses(cli("stretch", "half.onnx"), "half.onnx", "truncated")
    sweep = ("--objectives", "latency,accuracy", "--data", "folder:missing", "-p", "sim:phone/cpu,sim:phone/gpu")
    refuses(cli("sweep", "designs", "squeezenet1_1", *sweep), "accuracies need a trained network", "--weights")
    refuses(cli("sweep", "designs", str(onnx_file), *sweep), "missing is no folder data set")  # the file has weights
    for model in (str(onnx_file), "net.py:tall"):
        refuses(
            cli("stretch", model, "--num-classes", "5"), "--num-classes is for zoo networks", "leave the option out"
        )
    assert sorted(p.name for p in folder.iterdir() if p.suffix == ".nns") == ["text.nns"]


def test_shapes_and_feeds(cli: Cli, onnx_file: Path) -> None:
    name = onnxruntime.InferenceSession(str(onnx_file)).get_inputs()[0].name
    np.save("good.npy", np.zeros((1, 1, 16, 16), np.float32))
    np.save("double.npy", np.zeros((1, 1, 16, 16)))
    np.save("large.npy", np.zeros((1, 1, 17, 16), np.float32))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    run = ("run", str(onnx_file), "--no-tune")
    refuses(cli(*run, "--shape", "x=1,a"), "x=1,a")
    refuses(cli(*run, "--shape", "nobody=1,1,16,16"), "nobody")
    refuses(cli(*run, "-i", "nobody=good.npy"), "nobody", name)
    refuses(cli(*run, "-i", f"{name}=double.npy"), "float64", "float32")
    refuses(cli(*run, "-i", f"{name}=large.npy"), "[1, 1, 17, 16]", "[1, 1, 16, 16]")
    refuses(cli(*run, "-i", f"{name}=objects.npy"), "objects.npy")
    refuses(cli(*run, "-i", f"{name}=missing.npy"), "missing.npy")
    Path("photo.png").write_bytes(b"PNG")
    refuses(cli(*run, "-i", f"{name}=photo.png"), "photo.png is not a .npy file", "--image")
    refuses(cli(*run, "-i", "good"), "NAME=FILE.npy")
    refuses(cli(*run, "-i", "good.npy", "-i", "double.npy"), "NAME=FILE.npy")
    refuses(cli(*run, "-i", f"{name}=good.npy", "-i", f"{name}=good.npy"), "twice")
    huge = ("--batch", "100000000000")
    refuses(
        cli("run", "net.py:small", "--no-tune", *huge), "an input of 100000000000×1×16×16", "more memory than there is"
    )
    np.save("objects.npz", np.array([{}]), allow_pickle=True)
    Path("objects.npz.npy").rename("objects.npz")
    Path("empty.npz").touch()
    for file in ("objects.npz", "empty.npz"):
        refuses(
            cli("quantize", str(onnx_file), "--data", file, "-o", "x.onnx"), f"{file} is not a .npz file of numbers"
        )


def test_packages_name_the_processors_that_they_keep(cli: Cli, package: Path) -> None:
    own = ",".join(Plan.from_json(read_package(package).first.plan).processors)
    refuses(cli("run", str(package), "-p", "cpu:0,opencl:0"), f"made with its own processors ({own}); leave")


def test_packages_that_are_damaged_or_newer(cli: Cli, package: Path, folder: Path) -> None:
    data = package.read_bytes()
    flipped = bytearray(data)
    flipped[data.index(b'"subgraphs"') + 3] ^= 1
    (folder / "flipped.nns").write_bytes(bytes(flipped))
    (folder / "half.nns").write_bytes(data[: len(data) // 2])
    newer = data.replace(b'"format": 1', f'"format": {FORMAT_VERSION + 1}'.encode())
    (folder / "newer.nns").write_bytes(newer)
    refuses(cli("run", "flipped.nns"), "damaged", "checksum")
    refuses(cli("run", "half.nns"), "half.nns", "not a whole")
    refuses(cli("run", "newer.nns"), "upgrade")
    refuses(cli("run", "missing.nns"), "missing.nns")
    refuses(cli("tune", str(package)), "package")
    refuses(cli("run", str(package), "-p", "cpu:0"), "package")
    refuses(cli("evaluate", str(package), "--data", "digits", "--engine", "torch"), "package")


def test_processors(cli: Cli, onnx_file: Path) -> None:
    run = ("run", str(onnx_file), "--no-tune")
    refuses(cli(*run, "-p", "gpu"), "gpu", "cpu[:CORES")
    refuses(cli(*run, "-p", "cpu:100000"), "100000")
    refuses(cli(*run, "-p", "cpu:0,cpu:0"), "twice")
    refuses(cli("stretch", "net.py:small", "-p", "cpu:0"), "processor")
    refuses(cli("bench", str(onnx_file), "--threads", "100000"), "100000")
    refuses(cli("bench", str(onnx_file), "--threads", ""), "--threads ''")
    refuses(cli("bench", str(onnx_file), "--against", "abacus"), "abacus", "openvino")
    refuses(cli("bench", str(onnx_file), "--against", "ort,,"), "--against 'ort,,' has an empty name", "openvino")
    refuses(cli("run", str(onnx_file), "-p", "cpu:0,,opencl"), "a processor has no name", "single commas")


def test_no_opencl_driver(onnx_file: Path) -> None:
    environment = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent", "OCL_ICD_FILENAMES": ""}
    done = subprocess_cli("run", str(onnx_file), "-p", "opencl", env=environment)
    refuses((done.returncode, done.stdout, done.stderr), "OpenCL", "pocl-opencl-icd")
    listed = subprocess_cli("devices", "--json", env=environment)
    assert listed.returncode == 0
    kinds = [one["kind"] for one in json.loads(listed.stdout)["processors"]]
    assert kinds[0] == "cpu" and "opencl" not in kinds


def test_commands_that_do_not_exist(cli: Cli) -> None:
    refuses(cli("frobnicate"), "frobnicate")
    for option in ("--install-completion", "--show-completion"):
        refuses(cli(option, "zsh"), f"{option} is for the shell that it is run in", "run it in zsh")
    refuses(cli("compare", "a.onnx", "b.onnx"), "there is no command compare", "`bench`")
    refuses(cli("help"), "`nnstretch --help` lists the commands")
    refuses(cli("sweep", "dessigns", "net.py:small"), "sweep has no part dessigns; did you mean sweep designs?")
    refuses(cli("sweep", "net.py:small"), "sweep is followed by one of designs", "nnstretch sweep designs net.py:small")


def test_arguments_without_an_option(cli: Cli) -> None:
    refuses(cli("run"), "MODEL")
    refuses(cli("run", "net.onnx", "runs", "3"), "run takes only MODEL without an option, so 'runs 3' is too much")
    refuses(cli("devices", "cpu"), "devices takes nothing without an option, so 'cpu' is too much")
    refuses(cli("run", "--model", "resnet18"), "MODEL is given without an option")


def test_options_that_a_command_lacks(cli: Cli) -> None:
    refuses(cli("bench", "resnet18", "--warmup", "3"), "runs that warm up need no option; bench makes some")
    refuses(cli("run", "resnet18", "--warmup=3"), "runs that warm up need no option; run makes some")
    refuses(cli("bench", "resnet18", "--when-hot", "stop"), "--stop-when-hot ends the measurement")
    refuses(cli("stretch", "resnet18", "--max-latency", "9"), "stretch has no --max-latency; --latency-target 12ms")
    refuses(cli("sweep", "designs", "resnet18", "--latency-target", "9ms"), "--max-latency 12ms is the largest")
    refuses(cli("tune", "resnet18", "--budget", "9"), "tune has no --budget", "the same command goes on")
    refuses(cli("run", "resnet18", "--budget", "9"), "run has no option --budget", "one of nnstretch stretch, bench")
    refuses(cli("export", "resnet18", "--fp16"), "export has no --fp16; export --float16 stores")
    refuses(cli("bench", "resnet18", "--providers", "CPUExecutionProvider"), "--processors names what computes")
    refuses(cli("bench", "resnet18", "--treads", "2"), "bench has no option --treads; did you mean --threads")
    refuses(cli("train", "--batch", "2"), "train has no option --batch; did you mean --batch-size?")
    refuses(cli("sweep", "designs", "--bogus"), "see nnstretch sweep designs --help")
    refuses(cli("run", "resnet18", "--litert", "lib.so"), "run has no --litert", "-p litert", "--engines litert")


def test_values_of_options(cli: Cli) -> None:
    refuses(cli("sweep", "designs", "net.py:small", "--max-latency", "soon"), "'soon' is no time above 0", "12ms")
    refuses(cli("sweep", "designs", "net.py:small", "--max-memory", "lots"), "'lots' is no amount of memory", "200MB")
    for words in (("stretch",), ("sweep", "designs")):
        for seconds in ("--timeout", "--time-limit"):
            refuses(cli(*words, "resnet18", seconds, "many"), "'--timeout' / '--time-limit'", "write a number")
    refuses(cli("run", "resnet18", "--runs", "many"), "--runs", "write a whole number")
    refuses(
        cli("sweep", "designs", "net.py:small", "-p", "cpu:0,cpu:1", "--image-sizes", "16,-1"), "--image-sizes -1 is no"
    )
    refuses(cli("sweep", "tune", "net.py:small", "-p", "cpu:0,cpu:1"), "--processors cpu:0,cpu:1 names several")


def test_options_that_need_others(cli: Cli) -> None:
    refuses(cli("bench", "resnet18", "--design", "d.json", "-o", "d.txt"), "d.txt", ".json, .html")
    refuses(cli("bench", "resnet18", "--original-weights", "w.safetensors"), "--original-weights", "--design")
    refuses(cli("zoo", "--num-classes", "3"), "the options are for one network")
    refuses(cli("run", "net.py:small", "--max-error", "0.1"), "--max-error needs --check")


def test_weights_and_networks(cli: Cli) -> None:
    Path("w.pt").write_bytes(b"PK")
    refuses(cli("run", "net.py:small", "-w", "w.pt"), "w.pt is no .safetensors file", "safetensors.torch.save_file")
    refuses(
        cli("bench", "resnet18", "-w", "3"), "cannot read 3: there is no such file; weights are a .safetensors file"
    )
    refuses(cli("zoo", "resnet18", "--weights", "missing.safetensors"), "missing.safetensors")
    refuses(cli("bench", "resnet18", "vgg16", "--design", "d.json"), "one network")
    refuses(cli("bench", "resnet18", "vgg16", "--weights", "w.safetensors"), "--weights is for one network; 2")
    refuses(cli("bench", "resnet18", "--weights", "w.safetensors"), "w.safetensors")


def test_data_sets_and_engines(cli: Cli) -> None:
    options = ("net.py:small", "--image-size", "16", "--data", "text.txt", "-o", "q.onnx")
    refuses(cli("quantize", *options), "no data set is called 'text.txt'")
    refuses(cli("evaluate", "resnet18", "--data", "digits", "--engine", "abacus"), "abacus")


def test_trainings_that_cannot_be(cli: Cli) -> None:
    refuses(cli("train", "resnet18", "--data", "nothing", "-o", "w.safetensors"), "nothing", "digits")
    refuses(
        cli("train", "resnet18", "--data", "digits:3", "-o", "w.safetensors"), "digits takes nothing behind a colon"
    )
    refuses(cli("train", "resnet18", "--data", "digits", "--recipe", "stew", "-o", "w.safetensors"), "stew", "quick")
    for run in ("w.run", "runs/new"):
        opt = ("--opt", "stew", "-o", "w.safetensors", "--run-dir", run)
        refuses(cli("train", "net.py:small", "--data", "digits", *opt), "opt is 'stew'")
        assert not Path(Path(run).parts[0]).exists()
    refuses(
        cli("train", "resnet18", "--data", "digits", "--teacher", "resnet18", "-o", "w.safetensors"), "MODEL:WEIGHTS"
    )
    teacher = ("train", "net.py:small", "--data", "digits", "-o", "w.safetensors", "--teacher")
    refuses(cli(*teacher, "t.safetensors"), "write MODEL:WEIGHTS, as in MODEL:t.safetensors")
    refuses(cli(*teacher, "net.py:small"), "names no weights", "as in net.py:small:teacher.safetensors")
    refuses(
        cli("train", "net.py:small", "--data", "digits", "--unlabelled", "textures", "-o", "w.safetensors"),
        "--unlabelled", "--design", "blockwise_epochs",
    )  # fmt: skip
    Path("d.json").write_text('{"format": 1,\n "id": }')
    refuses(
        cli("train", "net.py:small", "--data", "digits", "--design", "d.json", "-o", "w.safetensors"),
        "d.json: not a whole design (line 2, column 8: expecting value); make it again with `nnstretch stretch`",
    )


def test_places_that_cannot_be_written(cli: Cli, onnx_file: Path, folder: Path) -> None:
    (folder / "file").touch()
    for place in ("file/x", "/proc/x", "missing/x"):
        refuses(cli("compile", str(onnx_file), "-o", place), f"cannot write {place}")
        refuses(cli("run", str(onnx_file), "-o", place), place)
        refuses(cli("zoo", "resnet18", "-o", place), place)
        refuses(cli("tune", str(onnx_file), "-o", place), place)
        refuses(cli("train", "net.py:small", "--data", "digits", "-o", place), place)
    refuses(cli("compile", str(onnx_file), "-o", str(folder)), "directory")
    for command in (("compile",), ("run", "--no-tune"), ("quantize", "--data", "digits")):
        refuses(cli(*command, str(onnx_file), "-o", "new/"), "cannot write new/: it is a directory", "as in new/NAME")
    refuses(cli("stretch", "net.py:small", "-o", "file/x"), "file/x")


def test_a_pipe_or_device_is_not_replaced(cli: Cli, onnx_file: Path, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for command in (("compile",), ("run", "--no-tune"), ("tune",)):
        refuses(cli(command[0], str(onnx_file), *command[1:], "-o", "pipe"), "cannot write pipe", "-o")
    assert (folder / "pipe").is_fifo()
    with pytest.raises(FileError, match="cannot write pipe: it is a device or pipe"):
        write_text(Path("pipe"), "text")
    assert [p.name for p in folder.iterdir() if p.name not in ("net.py", "pipe")] == []


def test_folders_of_commands_that_fail_are_removed(cli: Cli, onnx_file: Path, folder: Path) -> None:
    (folder / "text.onnx").write_text("hello")
    (folder / "before").mkdir()
    for place in ("new/inner", "before"):
        refuses(cli("stretch", "text.onnx", "-o", place), "text.onnx")
        refuses(cli("compile", "text.onnx", "--standalone", "-o", place), "text.onnx")
        refuses(cli("export", str(onnx_file), "-o", "x.onnx", "--per-branch", place), "has no branches")
    assert sorted(p.name for p in folder.iterdir()) == ["before", "net.py", "text.onnx"]


def test_a_disk_without_room(onnx_file: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A limit on the size of files stands for the full disk: writing fails in the middle."""

    def limited(*arguments: str) -> Answer:
        streams = tmp_path_factory.mktemp("streams")
        status, out, err = Command.start(*arguments, folder=folder, streams=streams, most_bytes=20_000).ended()
        assert status is not None
        return status, out, err

    engine()  # has been built: its files are larger
    (folder / "small.nns").write_bytes(b"what was there before")
    refuses(limited("compile", str(onnx_file), "-p", "cpu:0", "--no-tune", "-o", "small.nns"), "cannot write small.nns")
    assert (folder / "small.nns").read_bytes() == b"what was there before"
    refuses(limited("export", "net.py:small", "-o", "small.pt2", "--no-check"), "cannot write small.pt2")
    train = ("train", "squeezenet1_1", "--data", "digits", "--epochs", "1", "-o", "w.safetensors")
    refuses(limited(*train), "cannot write w.run/checkpoints/last.safetensors")
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["net.py", "small.nns"]


def test_an_output_without_room() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nnstretch.cli.main", "zoo", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    refuses((done.returncode, "", done.stderr), "No space left")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(13, "Permission denied", "x.onnx"),
            "error: x.onnx: Permission denied; change its permissions",
        ),
        (OSError(24, "Too many open files"), "error: the system: Too many open files; raise the limit"),
        (TimeoutError("timed out"), "error: the system: timed out; "),
    ],
)
def test_errors_of_the_system_are_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("nnstretch.zoo.names", fails)
    refuses(cli("zoo"), words)


def test_a_reader_that_has_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nnstretch.cli.main", "zoo", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_to_resume_from(
    cli: Cli, folder: Path, tmp_path_factory: pytest.TempPathFactory, number: int, status: int
) -> None:
    arguments = (
        "train", "net.py:small", "--data", "digits", "--image-size", "16", "--epochs", "3", "--threads", "1",
        "-o", "w.safetensors",
    )  # fmt: skip
    command = Command.start(*arguments, folder=folder, streams=tmp_path_factory.mktemp("streams"))
    checkpoint = folder / "w.run" / "checkpoints" / "last.safetensors"
    while not checkpoint.exists() and command.process.is_alive():
        time.sleep(0.005)
    assert command.process.pid is not None
    os.kill(command.process.pid, number)
    ended, out, err = command.ended()
    assert ended == status, err
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("stopped after step ")
    assert line.endswith(f"resume with: nnstretch {' '.join(arguments)} --resume")
    assert not (folder / "w.safetensors").exists()
    answer = answer_of(cli(*arguments, "--resume", "--json"))
    assert [record["epoch"] for record in answer["history"]] == [1, 2, 3]
    assert answer["run"] == "w.run"


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("nnstretch.cli.commands.zoo._list", broken)
    with pytest.raises(ZeroDivisionError):
        main(["zoo"])


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("tune model.onnx", "the same command goes on from there"),
        ("tune model.onnx --fresh", "the same command without --fresh goes on from there"),
        ("stretch model.onnx --fresh", "the same command without --fresh goes on from there"),
        ("sweep designs model.py:net --storage s.journal", "the same command with --resume goes on from there"),
        ("sweep designs model.py:net --storage=s.journal", "the same command with --resume goes on from there"),
        ("sweep designs model.py:net", ""),
        ("doctor", ""),
    ],
)
def test_an_interrupted_command_says_how_it_goes_on(command: str, end: str) -> None:
    said = what_is_kept(command.split())
    assert said.endswith(end)
    assert bool(said) == bool(end)
