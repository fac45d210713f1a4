"""Arguments and options that several commands share.

Those of `nnstretch.compile` and `nnstretch.stretch` are declared once, in `nnstretch.api.options`: `with_options` adds them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from nnstretch.api.options import Option, declared_options
from nnstretch.errors import UsageError
from nnstretch.training.data import usage

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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on the standard output instead of tables.")]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of all random numbers.")]
SearchParameters = Annotated[
    Literal["default", "learned", "exhaustive"],
    typer.Option(
        "--search",
        help="Search of routine parameters: short lists and coordinate descent, a learned cost model, or all.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", "-w", metavar="FILE", help="Weights of the network (.safetensors).", show_default=False),
]
DesignFile = Annotated[
    Path | None,
    typer.Option("--design", metavar="FILE", help="A design that `nnstretch stretch` wrote.", show_default=False),
]
Data = Annotated[str, typer.Option("--data", metavar="SET", help=f"Images: {usage()}.", show_default=False)]
Classes = Annotated[
    int | None, typer.Option("--num-classes", min=1, metavar="N", help="Classes of a zoo network.", show_default="1000")
]
SmallImages = Annotated[
    bool, typer.Option("--small-images", help="A zoo network with a stem for images of about 64 x 64.")
]


def with_options(
    kind: type, *, only: tuple[str, ...] = (), without: tuple[str, ...] = (), defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options that a class of `nnstretch.api.options` declares.

    The command has a parameter `options`: its place is that of the options in `--help`, and its value is an object of the
    class.

    Args:
        kind: the class.
        only: fields that the command offers; all if there are none.
        without: fields that it does not offer.
        defaults: defaults that differ from the fields'.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        declared = {
            name: one
            for name, one in declared_options(kind).items()
            if one[2].flags and name not in without and (not only or name in only)
        }
        own = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != "options":
                parameters.append(parameter.replace(annotation=own[parameter.name], kind=parameter.KEYWORD_ONLY))
                continue
            for name, (field, type_, option) in declared.items():
                default = (defaults or {}).get(name, None if option.parse else field.default)
                annotation = Annotated[option.text or type_, _typer_option(option)]  # type: ignore[valid-type]
                parameters.append(
                    inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                )

        @functools.wraps(command)
        def call(**given: Any) -> Any:
            values = {name: given.pop(name) for name in declared}
            parsed = {
                name: option.parse(values[name]) if option.parse else values[name]
                for name, (_, _, option) in declared.items()
            }
            return command(**given, options=kind(**parsed))

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _typer_option(option: Option) -> Any:
    return typer.Option(
        *option.flags,
        help=re.sub(r"\[(?=[a-z#/@])", r"\\[", option.help),  # else rich takes it for markup
        metavar=option.metavar,
        min=option.minimum,
        show_default=True if option.shown is None else option.shown or False,
        rich_help_panel=option.panel,
    )


def parse_assignments(texts: list[str], option: str) -> dict[str, str]:
    """Parses the NAME=VALUE texts of a repeatable option.

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
