"""Arguments and options that several commands share.

Those of `nnstretch.compile` and `nnstretch.stretch` are declared once, in `nnstretch.api.options`: `with_options` adds them.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from nnstretch.api.options import Option, declared_options
from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import parse_image_size
from nnstretch.support.locks import only_writer
from nnstretch.support.settings import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, check_replaceable
from nnstretch.training.data import usage


def option(spelling: str, help: str, **more: Any) -> Any:
    """An option of a command, declared as `nnstretch.api.options.Option` is; `more` has its other fields."""
    return _typer_option(Option(help, spelling, **more))


def option_field(spelling: str, help: str, default: Any = None, **more: Any) -> Any:
    """A field of an options class that `with_options` takes: all commands that have options of the class offer it."""
    return field_of(Option(help, spelling, **more), default)


def field_of(option: Option, default: Any = None) -> Any:
    """`option_field` for an option that commands without the class declare, too."""
    return field(default=default, metadata={"option": replace(option, commands=("*",))})


def file_path(text: str) -> Path:
    """The path of a file that is written; a `Path` would drop a slash at the end of the text.

    Raises:
        UsageError: it ends with a slash.
    """
    if text.endswith(os.sep):
        raise UsageError(f"cannot write {text}: it is a directory; give a file name with -o, as in {text}NAME")
    return Path(text)


def _typer_option(option: Option, parse: Callable[[str], Any] | None = None) -> Any:
    text = option.help if option.shown is None else f"{option.help} [default: {option.shown}]"
    return typer.Option(
        *option.flags,
        help=re.sub(r"\[(?=[a-z#/@])", r"\\[", text),  # else rich takes it for markup
        metavar=option.metavar,
        min=option.minimum,
        parser=file_path if "-o" in option.flags and option.metavar == "FILE" else parse,
        show_default=option.shown is None,
        rich_help_panel=option.panel,
    )


def _model(help: str) -> Any:
    return typer.Argument(metavar="MODEL", help=help, show_default=False)


Model = Annotated[str, _model("An ONNX or TFLite file, a package (.nns), a zoo name (resnet50) or module.py:factory.")]
ModelToCompile = Annotated[
    str,
    _model(
        "An ONNX or TFLite file, a zoo name (resnet50) or module.py:factory; not a package, which is compiled already."
    ),
]
ModelToEvaluate = Annotated[
    str,
    _model(
        "An ONNX or TFLite file, a package (.nns), a standalone model (.nnm), a zoo name (resnet50) or module.py:factory."
    ),
]
Network = Annotated[
    str, _model("An ONNX or TFLite file, a zoo name (resnet50) or module.py:factory; a file's weights are its own.")
]
Json = Annotated[bool, option("--json", "Print one JSON object on the standard output instead of tables.")]
SEED = Option("Seed of all random numbers.", "--seed N", minimum=0)
WEIGHTS = Option("Weights of the network (.safetensors).", "--weights -w FILE")
IMAGE_SIZE = Option(
    "Side of the images, or height and width, as in 480x640.",
    "--image-size SIZE",
    text=str | None,
    parse=parse_image_size,
)
Seed = Annotated[int, _typer_option(SEED)]
Weights = Annotated[Path | None, _typer_option(WEIGHTS)]
ImageSizeOption = Annotated[Any, _typer_option(IMAGE_SIZE, parse_image_size)]  # typer takes no unions
DesignFile = Annotated[
    Path | None,
    option("--design FILE", "A design that `nnstretch stretch` wrote, or a YAML file of NN-Stretch's authors."),
]
Data = Annotated[str, option("--data SET", f"Images: {usage()}.")]

HeadFactory = Annotated[
    str | None,
    option(
        "--head NAME",
        "Loss and decoding of the outputs of a detector: yolo (anchor-free, as YOLOv8 and YOLO11), or FILE.py:FACTORY.",
    ),
]


def with_options(
    kind: type, defaults: Mapping[str, Any] | None = None, *, changes: bool = False, parameter: str = "options"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command NAME_command the options that a class declares for the command NAME, as `CompileOptions` does.

    The command has a parameter for them: its place is that of the options in `--help`, and its value is an object of the
    class. A command may have several classes, each with a parameter of its own.

    Args:
        kind: the class.
        defaults: defaults that differ from the fields'.
        changes: the parameter's value is a mapping of the options that were given, instead of an object of the class.
        parameter: its name.

    Raises:
        TypeError: the class has no option for the command.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        name_of_command = command.__name__.removesuffix("_command")
        declared = {name: one for name, one in declared_options(kind).items() if one[2].is_of(name_of_command)}
        if not declared:
            raise TypeError(
                f"no field of {kind.__name__} names the command {name_of_command!r}: add it to their commands in "
                f"{kind.__module__}"
            )
        own = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for mine in inspect.signature(command).parameters.values():
            if mine.name != parameter:
                parameters.append(mine.replace(annotation=own[mine.name], kind=mine.KEYWORD_ONLY))
                continue
            for name, (declaration, type_, one) in declared.items():
                default = None if changes else (defaults or {}).get(name, None if one.parse else declaration.default)
                text = one.text or type_
                annotation = Annotated[text | None if changes else text, _typer_option(one)]  # type: ignore[valid-type]
                parameters.append(inspect.Parameter(name, mine.KEYWORD_ONLY, default=default, annotation=annotation))

        @functools.wraps(command)
        def call(**given: Any) -> Any:
            values = {name: given.pop(name) for name in declared}
            if changes:
                values = {name: value for name, value in values.items() if value is not None}
            parsed = {
                name: parse(value) if (parse := declared[name][2].parse) else value for name, value in values.items()
            }
            return command(**given, **{parameter: parsed if changes else kind(**parsed)})

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call

    return decorate


def parse_assignments(texts: list[str], option: str, wanted: str = "NAME=VALUE") -> dict[str, str]:
    """Parses the NAME=VALUE texts of a repeatable option.

    Args:
        texts: as they were given.
        option: its name.
        wanted: what its message says to write.

    Raises:
        UsageError: no "=", or a name twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text!r} is not understood; write {option} {wanted}")
        if name in found:
            raise UsageError(f"{option} names {name!r} twice; give it once")
        found[name] = value
    return found


def several_processors(text: str, purpose: str) -> tuple[str, ...]:
    """The names of two processors or more.

    Args:
        text: as `--processors` takes them.
        purpose: what they are for, as the subject of a sentence.

    Raises:
        UsageError: they are not understood, or too few.
    """
    from nnstretch.devices.base.spec import parse_processors

    return names_of_several([str(spec) for spec in parse_processors(text)], purpose, text)


def names_of_several(names: Sequence[str], purpose: str, text: str = "") -> tuple[str, ...]:
    """The names of two processors or more.

    Args:
        names: of processors.
        purpose: what they are for, as the subject of a sentence.
        text: as the user wrote them.

    Raises:
        UsageError: they are too few.
    """
    if len(names) < 2:
        raise UsageError(
            f"--processors {text or ','.join(names)} names {len(names)} processor; {purpose} needs two or more, such as "
            "cpu:0,cpu:1 or cpu,opencl"
        )
    return tuple(names)


def check_writable(path: Path, option: str = "-o") -> Path:
    """`path`, if a file can be written there: asked before long work, not after it.

    Args:
        path: of the file.
        option: that names it.

    Raises:
        FileError: its folder is missing or not writable, or it is a folder or device itself.
    """
    check_replaceable(path, option)
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; give a file name with {option}")
    try:
        descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, suffix=TEMPORARY_SUFFIX, dir=path.parent)
        os.close(descriptor)
        Path(name).unlink()
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another place with {option}") from error
    return path


def check_distinct(path: Path, *given: str | Path | None, option: str = "-o") -> None:
    """Looks whether a file that is written is one that the command reads.

    Args:
        path: of the file that is written.
        given: what the command reads: files, `FILE.py:FACTORY`, `NAME:WEIGHTS` or names that are no files; None: nothing.
        option: that names the file.

    Raises:
        UsageError: it is one of them.
    """
    for text in map(str, filter(None, given)):
        if any(_is_same_file(path, part) for part in (text, *text.rsplit(":", 1))):
            raise UsageError(f"{option} {path}: the command reads this file; write another one")


def _is_same_file(path: Path, name: str) -> bool:
    """Whether both are there, and the same file."""
    try:
        return path.samefile(name)
    except (OSError, ValueError):  # one is not there, or can be no file's name
        return False


_OTHER_FORMATS = frozenset(
    {
        *(".json", ".npz", ".nns", ".onnx", ".pt", ".pt2", ".pth", ".safetensors", ".tflite"),
        *(".bin", ".npy", ".pkl", ".py", ".so", ".txt", ".yaml", ".zip"),
        *(".html", ".svg", ".png", ".gif", ".jpg", ".jpeg", ".webp", ".pdf", ".md", ".csv", ".xlsx"),
    }
)


def check_format(path: Path, what: str, ending: str | Sequence[str], option: str = "-o") -> None:
    """Looks whether a file's name promises another format than the one that is written to it.

    Args:
        path: of the file; any ending that is of no other format will do.
        what: is written, with its verb, as the begin of a sentence.
        ending: of the format, or those of several.
        option: that names the file.

    Raises:
        UsageError: its ending is that of another format.
    """
    endings = (ending,) if isinstance(ending, str) else ending
    if path.suffix not in endings and path.suffix in _OTHER_FORMATS:
        named = "choose one of these endings" if len(endings) > 1 else "choose this ending"
        raise UsageError(f"{option} {path}: {what} written as {', '.join(endings)}; {named}")


@contextmanager
def results_directory(path: Path | None) -> Iterator[Path | None]:
    """`path` as a directory that this command alone writes to; None for None. A new one that an error leaves empty is removed.

    Raises:
        FileError: it cannot be made or written to.
        UsageError: another command writes its results to it.
    """
    if path is None:
        yield None
        return
    new = [one for one in (path, *path.parents) if not one.exists()]
    try:
        with only_writer(make_directory(path), "-o"):
            yield path
    except BaseException:
        with suppress(OSError):  # it holds files
            for one in new:
                one.rmdir()
        raise


def make_directory(path: Path) -> Path:
    """`path` as a directory that files can be written to.

    Raises:
        FileError: it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make directory {path}: {error.strerror}; choose another place with -o") from error
    check_writable(path / "probe")
    return path
