"""Runs the commands of README and docs, and records their output: `scripts/run_docs.py [--record] [PAGE…]`.

The fenced blocks of a page run in order in a temporary folder. A `python` or `yaml` block whose first line is a comment with a
file name is saved as that file, other `python` and `bash` blocks are executed, and a `text` block that follows one of those is
its output. With `--record` the output of this run replaces it: do that on a quiet machine. A `py` block is Python that needs
packages of no extra, and does not run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nnstretch.cli.console import PROGRESS_MARK

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>\w+\.(?:py|yaml))\n")
_COLUMNS = 100

ELSEWHERE: Mapping[str, str] = {
    "scripts/quickstart": "tests/scripts/test_quickstart.py",
    "scripts/test": "scripts/test",
    "python3 -m venv": "scripts/_environment.sh",
    "python -m pip install": "scripts/_environment.sh",
    "python -m sphinx": "scripts/test",
    "torchrun": "tests/training/loop/test_distributed.py",
}
"""Beginnings of commands that are not run here, and the file that runs them."""

MODEL = ("zoo", "squeezenet1_1", "--image-size", "64", "-o")
"""The command that makes `model.onnx`, the file that readers bring."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        kind: the word after the fence.
        text: its lines.
        begin, end: where the text is in the page.
    """

    kind: str
    text: str
    begin: int
    end: int

    @property
    def file(self) -> str | None:
        """Name of the file that the block is, if it is one."""
        found = _FILE.match(self.text) if self.kind in ("python", "yaml") else None
        return found["name"] if found else None

    @property
    def commands(self) -> str:
        """What the block executes here; empty if it does not run."""
        if self.kind == "python" and self.file is None:
            return self.text
        if self.kind != "bash":
            return ""
        return "".join(line for line in self.text.splitlines(True) if not line.startswith(tuple(ELSEWHERE)))


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = _BLOCK.finditer(text)
    return [Block(f["kind"].split(" ")[0], f["text"], f.start("text"), f.end("text")) for f in found]


def without_blocks(text: str) -> str:
    """The page's sentences and tables."""
    return _BLOCK.sub("", text)


def is_runnable(page: Path) -> bool:
    """Whether a page has commands that run here."""
    return any(block.commands for block in blocks(page.read_text(encoding="utf-8")))


def environment_of_commands(programs: Path | None = None) -> dict[str, str]:
    """Variables of a page's commands, which find the programs of this Python unless those of a folder come first."""
    folders = [*([str(programs)] if programs else []), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": str(_COLUMNS), "TERM": "dumb"}


def run_page(
    page: Path, folder: Path, replaced: Mapping[str, str] | None = None, programs: Path | None = None
) -> Iterator[tuple[Block, subprocess.CompletedProcess[str]]]:
    """Runs a page's blocks in a folder that has `model.onnx` and gets the repository's scripts; yields each with what it did.

    Args:
        page: a Markdown file.
        folder: where files are read and written.
        replaced: parts of commands and files, and what is used instead.
        programs: folder with the programs `nnstretch` and `python`; default: that of this Python.
    """
    environment = environment_of_commands(programs)
    python = sys.executable if programs is None else str(programs / "python")
    (folder / "scripts").symlink_to(ROOT / "scripts")

    def changed(text: str) -> str:
        for part, instead in (replaced or {}).items():
            text = text.replace(part, instead)
        return text

    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            (folder / block.file).write_text(changed(block.text), encoding="utf-8")
        if not block.commands:
            continue
        text = changed(block.commands)
        interpreter = ["bash", "-euo", "pipefail", "-c"] if block.kind == "bash" else [python, "-c"]
        yield (
            block,
            subprocess.run(
                [*interpreter, text],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            ),
        )


def make_model(path: Path) -> None:
    """Writes the ONNX file that the pages use.

    Raises:
        CalledProcessError: that failed.
    """
    main = "import sys; from nnstretch.cli.main import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", main, *MODEL, str(path)], check=True, stdout=subprocess.DEVNULL)


def recorded(text: str, outputs: Mapping[int, str]) -> str:
    """A page whose `text` blocks hold the outputs of the blocks before them.

    Args:
        text: the page.
        outputs: where a block begins -> what it printed.
    """
    found = blocks(text)
    for before, block in reversed(list(pairwise(found))):
        if block.kind == "text" and before.begin in outputs:
            text = text[: block.begin] + _tidy(outputs[before.begin]) + text[block.end :]
    return text


def _tidy(output: str) -> str:
    """Output without blanks at line ends, empty lines at its begin and end, and lines that say how long work gets on."""
    lines = [line.rstrip() for line in output.splitlines() if not line.startswith(PROGRESS_MARK)]
    return "\n".join(lines).strip("\n") + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs pages; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/run_docs.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="Markdown files; all if none is given")
    parser.add_argument("--record", action="store_true", help="write the output into the pages")
    options = parser.parse_args(arguments)
    failed = 0
    for page in options.pages or PAGES:
        if not is_runnable(page):
            continue
        outputs: dict[int, str] = {}
        with tempfile.TemporaryDirectory() as folder:
            make_model(Path(folder) / "model.onnx")
            for block, done in run_page(page, Path(folder)):
                print(f"{page}: {block.commands.splitlines()[0]} … status {done.returncode}")
                outputs[block.begin] = done.stdout
                if done.returncode:
                    print(done.stdout)
                    failed += 1
                    break
            else:
                if options.record:
                    page.write_text(recorded(page.read_text(encoding="utf-8"), outputs), encoding="utf-8")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
