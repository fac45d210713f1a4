"""Every command in README and docs runs, in order, as a reader would type it.

`scripts/run_docs.py` runs the fenced blocks. Commands within sentences must be understood by the command line.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from nnstretch.cli.application import make_app
from scripts.run_docs import (
    ELSEWHERE,
    PAGES,
    ROOT,
    blocks,
    environment_of_commands,
    is_runnable,
    recorded,
    run_page,
    without_blocks,
)
from tests.kits.processes.fork_server import Forks

KINDS = {"bash", "python", "py", "yaml", "c", "json", "text", "xml", "{toctree}", "{eval-rst}"}
REPLACED = {
    # Tests share the cores, so meeting points cost more than on a reader's machine.
    "nnstretch stretch": "nnstretch stretch --alpha 100 --beta 100",
    # One epoch and two rounds take the same way as more.
    **{f"--epochs {count}": "--epochs 1" for count in (2, 3, 6, 8)},
    "--set epochs=2": "--set epochs=1",
    "--rounds 3": "--rounds 2",
    "--budget 1": "--budget 0.1",
    "--seconds 1 ": "--seconds 0.1 ",
    "macs --trials 12": "macs --no-tune -n 2",
    "macs --trials 16": "macs --no-tune -n 3",
    "--images 16": "--images 4",
    # A network for the digits; that of three channels stays.
    **{f"mobilenetv3_small {option}": f"tiny.py:tiny {option}" for option in ("--data digits", "-w weights")},
    "mobilenetv3_small:weights": "tiny.py:tiny:weights",
    # The tutorial's network is smaller. Few widths are searched, for each of which kernels are compiled for OpenCL.
    "layer(1, 64, stride=2), *(layer(64, 64) for _ in range(6))": "layer(1, 16, stride=2), *(layer(16, 16) for _ in range(2))",
    "nn.Linear(64, 10)]": "nn.Linear(16, 10)]",
    "--top 1 --even-if-slower -o designs": "--top 1 --min-depth 1 --min-width 1 --even-if-slower -o designs",
    # What is tuned in an emulator has one convolution: every candidate of a layer runs there for long.
    "nnstretch tune model.onnx --target": "nnstretch tune small.onnx --target",
    "bench model.onnx --target qemu:aarch64:cortex-a76 --plan": "bench small.onnx --target qemu:aarch64:cortex-a76 --plan",
    # Pages on tuning, and those that compile for one place, tune; others compute with the usual parameters.
    "nnstretch bench model.onnx --target": "nnstretch bench --no-tune model.onnx --target",
    "nnstretch bench model.onnx": "nnstretch bench model.onnx --rounds 2 --no-tune",
    "nnstretch bench model.py:network": "nnstretch bench model.py:network --no-tune",
    "nnstretch bench int8.onnx": "nnstretch bench int8.onnx --rounds 2 --no-tune",
    "nnstretch run int8.onnx\n": "nnstretch run int8.onnx --no-tune\n",
    "nnstretch evaluate int8.onnx": "nnstretch evaluate int8.onnx --no-tune",
    "-o branched.nns": "--no-tune -o branched.nns",
    "-o adaptive.nns": "--no-tune -o adaptive.nns",
}
"""Parts of commands and files, and what is used instead."""

TINY = """
from torch import nn

def tiny():
    body = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
"""

_INLINE = re.compile(r"`nnstretch (?P<arguments>[a-z][^`]*)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def case(page: Path) -> object:
    commands = "".join(block.commands for block in blocks(page.read_text(encoding="utf-8")))
    absent = "coco:" in commands and find_spec("pycocotools") is None
    marks = [pytest.mark.slow, *[pytest.mark.opencl] * ("opencl" in commands)]
    return pytest.param(page, id=name_of(page), marks=[*marks, pytest.mark.skipif(absent, reason="needs pycocotools")])


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with the input of the file that readers bring (`scripts.run_docs.MODEL`), and a fifth of its layers."""
    lines = """
        stem = Conv<strides = [2, 2]>(x, a)
        active = Relu(stem)
        small = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(active)
        squeezed = Conv(small, b)
        squeeze = Relu(squeezed)
        one = Conv(squeeze, c)
        three = Conv<pads = [1, 1, 1, 1]>(squeeze, d)
        both = Concat<axis = 1>(one, three)
        wide = Relu(both)
        classes = Conv(wide, e)
        means = GlobalAveragePool(classes)
        y = Flatten(means)
    """
    weights = {"a": (32, 3, 3, 3), "b": (16, 32, 1, 1), "c": (32, 16, 1, 1), "d": (32, 16, 3, 3), "e": (10, 64, 1, 1)}
    return written(tmp_path_factory.mktemp("model") / "model.onnx", lines, weights)


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with the same input and output, and one convolution."""
    lines = """
        pooled = MaxPool<kernel_shape = [8, 8], strides = [8, 8]>(x)
        classes = Conv(pooled, a)
        means = GlobalAveragePool(classes)
        y = Flatten(means)
    """
    return written(tmp_path_factory.mktemp("small") / "small.onnx", lines, {"a": (10, 3, 1, 1)})


def written(path: Path, lines: str, weights: Mapping[str, tuple[int, ...]]) -> Path:
    """A file of a network whose nodes are `lines`, with random weights of given shapes."""
    head = '<ir_version: 8, opset_import: ["": 18]> model (float[1, 3, 64, 64] x) => (float[1, 10] y)'
    proto = onnx.parser.parse_model(f"{head} {{{lines}}}")
    generator = np.random.default_rng(0)
    for name, shape in weights.items():
        weight = (generator.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Programs that run in forks: of all pages but README, whose commands have processes of their own."""
    folder = tmp_path_factory.mktemp("forks")
    server = Forks(folder, environment_of_commands())
    yield folder
    server.close()


@pytest.mark.parametrize("page", [case(page) for page in PAGES if is_runnable(page)])
def test_commands_of_a_page_run(
    page: Path,
    model_file: Path,
    small_file: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "cpu:1" in page.read_text(encoding="utf-8") and not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("the page's commands use the cores 0 and 1")
    if "qemu:aarch64" in page.read_text(encoding="utf-8") and shutil.which("qemu-aarch64-static") is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    (tmp_path / "model.onnx").symlink_to(model_file)
    (tmp_path / "small.onnx").symlink_to(small_file)
    (tmp_path / "tiny.py").write_text(TINY)
    is_readme = (
        page.name == "README.md"
    )  # whose commands run as a reader's: in processes of their own, kernels optimised
    if is_readme:
        monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS")
    programs = None if is_readme else request.getfixturevalue("forks")
    for block, done in run_page(page, tmp_path, REPLACED, programs):
        assert done.returncode == 0, f"{block.text}\n{done.stdout}"
        assert "nothing was retrained" not in done.stdout, block.text


@pytest.mark.parametrize(
    ("command", "status", "printed"),
    [
        ("nnstretch bench missing.onnx", 2, "error: cannot read missing.onnx"),
        (
            "python -c 'import os, sys; print(sys.argv, os.environ[\"PLACE\"], os.getcwd()); sys.exit(3)' a",
            3,
            "['-c', 'a'] here {}",
        ),
        ("python file.py", 1, "ZeroDivisionError"),
        ("echo '[1]' | python -m json.tool --compact", 0, "[1]"),
        ("python -c 'import atexit; atexit.register(print, 5)'", 0, "5"),
        ("exec python -c 'import os; os.abort()'", -6, ""),
    ],
)
def test_forks_do_what_processes_do(forks: Path, tmp_path: Path, command: str, status: int, printed: str) -> None:
    (tmp_path / "file.py").write_text("1 / 0")
    environment = {**environment_of_commands(forks), "PLACE": "here"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert printed.format(tmp_path) in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^ {4,}(?:nnstretch|scripts/|python ).*$", without_blocks(text), re.MULTILINE), "use ```bash"
    for block in blocks(text):
        assert block.kind in KINDS, block.text
        hidden = re.findall(r"^(?:\$ )?nnstretch .*$", block.text, re.MULTILINE)
        assert block.kind == "bash" or not hidden, "commands belong into ```bash blocks"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_are_understood(page: Path) -> None:
    group = typer.main.get_command(make_app())
    for found in _INLINE.finditer(without_blocks(page.read_text(encoding="utf-8"))):
        name, *arguments = shlex.split(found["arguments"].replace("…", "x").replace("\n", " "))
        command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
        while arguments and hasattr(command, "commands"):
            command = command.commands.get(arguments.pop(0))
        assert command is not None, found.group()
        assert problem(command, arguments) in {"", "MissingParameter", "NoArgsIsHelpError"}, found.group()


def problem(command: Any, arguments: list[str]) -> str:
    """Name of the error that a command line ends in; a sentence may leave the model out."""
    if hasattr(command, "commands"):
        return ""  # a group is named as a whole
    try:
        command.make_context("nnstretch", arguments)
    except typer.TyperException as error:
        return type(error).__name__
    return ""


def test_commands_that_run_elsewhere_do() -> None:
    assert all((ROOT / file).is_file() for file in ELSEWHERE.values())


def test_output_is_recorded_behind_its_command() -> None:
    page = "A\n\n```bash\nls\n```\n\n```text\nold\n```\n\n```text\nkept\n```\n"
    first = blocks(page)[0]
    assert recorded(page, {first.begin: "\n new  \n… Training: 1/2\n\n"}) == page.replace("old", " new")


def test_files_and_commands_of_others_are_not_run() -> None:
    file, other, mixed = blocks(
        "```python\n# model.py\nx = 1\n```\n```bash\nscripts/test\n```\n```bash\nscripts/test\nls\n```\n"
    )
    assert (file.file, file.commands, other.commands, mixed.commands) == ("model.py", "", "", "ls\n")


def test_links_of_readme_exist() -> None:
    text = without_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
