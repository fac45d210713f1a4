"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nnstretch.errors import UsageError

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, a package (.nns), a zoo name (resnet50) or module.py:factory.",
        show_default=False,
    ),
]
Network = Annotated[
    str, typer.Argument(metavar="MODEL", help="A zoo name (resnet50) or module.py:factory.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the standard output, and nothing else.")]
Processors = Annotated[
    str,
    typer.Option(
        "--processors",
        "-p",
        metavar="LIST",
        help="cpu[:CORES[*RATIOS]], opencl[:INDEX]\\[@CORES], tflite[:DELEGATE]\\[@CORES], ort\\[@CORES], commas between.",
    ),
]
ProcessorsUnlessPackage = Annotated[
    str | None,
    typer.Option(
        "--processors",
        "-p",
        metavar="LIST",
        help="cpu[:CORES[*RATIOS]], opencl[:INDEX]\\[@CORES], tflite[:DELEGATE]\\[@CORES], ort\\[@CORES], commas between. "
        "A package has its own.",
        show_default="cpu",
    ),
]
Plans = Annotated[
    str | None,
    typer.Option(
        "--plans",
        metavar="LIST;LIST",
        help="Several plans, the processors of each, semicolons between: cpu:0;opencl:0@1;cpu:0,opencl:0@1. "
        "Where a design says what runs where, it means the processors of the plan that has the most.",
        show_default=False,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="Which plan of several a run takes: adaptive, fixed (the first one), or deadline=12ms.",
        show_default="adaptive if there are several",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", "-t", min=1, metavar="N", help="Use at most N cores of the first CPU.", show_default=False
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", help="Of everything random: the same seed, the same numbers.")
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="x=1,3,224,224",
        help="Shape of an input with dynamic dimensions; once per input.",
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        "-b",
        min=1,
        metavar="N",
        help="Images per run: of a network by name, or of a file whose inputs' first dimension is dynamic.",
        show_default=False,
    ),
]
Streams = Annotated[
    int | None,
    typer.Option(
        "--streams",
        min=1,
        metavar="N",
        help="For throughput: N inputs on their way at a time, on cores and processors as is predicted to be fastest.",
        show_default=False,
    ),
]
SearchParameters = Annotated[
    Literal["default", "learned", "exhaustive"],
    typer.Option(
        "--search",
        help="How thoroughly routine parameters are searched: short lists, what a cost model recommends, or everything.",
    ),
]
Engines = Annotated[
    str | None,
    typer.Option(
        "--engines",
        metavar="LIST",
        help="Other engines that may compute layers where they are faster: ort, litert, a comma between.",
        show_default=False,
    ),
]
NoTune = Annotated[bool, typer.Option("--no-tune", help="Choose routines by estimates instead of measuring them.")]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", "-w", metavar="FILE", help="Weights (.safetensors) to fill in.", show_default=False),
]
DesignFile = Annotated[
    Path | None,
    typer.Option("--design", metavar="FILE", help="A branching that `nnstretch stretch` wrote.", show_default=False),
]
Data = Annotated[str, typer.Option("--data", metavar="SET", help="digits or folder:PATH.", show_default=False)]
Classes = Annotated[
    int | None, typer.Option("--num-classes", min=1, metavar="N", help="Classes of a zoo network.", show_default="1000")
]
SmallImages = Annotated[
    bool, typer.Option("--small-images", help="A zoo network with a stem for images of about 64 x 64.")
]


def parse_assignments(texts: list[str], option: str) -> dict[str, str]:
    """NAME=VALUE texts of a repeatable option as a dictionary.

    Raises:
        UsageError: no "=", or a name twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text!r} is not understood; write {option} NAME=VALUE")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice; give it once")
        found[name] = value
    return found


def parse_engines(text: str | None) -> tuple[str, ...]:
    """The names of a list such as `ort,litert`."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


def parse_plans(text: str | None) -> tuple[str, ...]:
    """The plans of a list such as `cpu:0;cpu:0,opencl:0@1`.

    Raises:
        UsageError: one of them is empty.
    """
    if text is None:
        return ()
    plans = tuple(part.strip() for part in text.split(";"))
    if not all(plans):
        raise UsageError(f"--plans {text!r} has an empty plan; write processors between the semicolons")
    return plans


def several_processors(text: str, purpose: str) -> tuple[str, ...]:
    """The names of two processors or more.

    Args:
        text: as `--processors` takes them.
        purpose: what they are for, as the subject of a sentence.

    Raises:
        UsageError: they are not understood, or too few.
    """
    from nnstretch.devices.base.spec import parse_processors

    names = tuple(str(spec) for spec in parse_processors(text))
    if len(names) < 2:
        raise UsageError(
            f"--processors {text} names {len(names)} processor; {purpose} needs two or more, such as cpu:0,cpu:1 or cpu,opencl"
        )
    return names


def check_writable(path: Path) -> Path:
    """`path`, if a file can be written there: asked before long work, not after it.

    Raises:
        FileError: its folder is missing or not writable, or it is a folder itself.
    """
    import os
    import tempfile

    from nnstretch.errors import FileError

    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; give a file name with -o")
    try:
        descriptor, name = tempfile.mkstemp(prefix=".nnstretch-", dir=path.parent)
        os.close(descriptor)
        Path(name).unlink()
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error
    return path


def make_directory(path: Path) -> Path:
    """`path` as a directory that files can be written to.

    Raises:
        FileError: it cannot be made or written to.
    """
    from nnstretch.errors import FileError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make directory {path}: {error.strerror}; choose another place with -o") from error
    check_writable(path / "probe")
    return path
