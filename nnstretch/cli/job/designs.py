"""The designs of a job (`transform_and_train`): searched, or given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.stages import Answer
from nnstretch.cli.options import several_processors
from nnstretch.errors import FileError, UsageError

if TYPE_CHECKING:
    from nnstretch.api.options import StretchOptions
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.job.transform_options import TransformOptions
    from nnstretch.cli.models.networks import Network


def search_options(options: TransformOptions) -> tuple[Sequence[str], StretchOptions]:
    """The names of the processors, and the options of the search.

    Raises:
        UsageError: there is no such option or processor, or too few processors.
    """
    from nnstretch.api.options import StretchOptions

    search = StretchOptions(options.processors, **dict(map(_search_field, options.search.items())))
    search.search_limits()
    return several_processors(options.processors, "a branching"), search


def _search_field(given: tuple[str, Any]) -> tuple[str, Any]:
    """A field of `StretchOptions` with its value, by the field's name or by that of an option of `nnstretch stretch`.

    Raises:
        UsageError: there is no such field or option.
    """
    from nnstretch.api.options import StretchOptions, declared_options

    name, value = given
    for field, (_, _, option) in declared_options(StretchOptions).items():
        if field == name:
            return given
        if f"--{name.replace('_', '-')}" in option.flags:
            return field, option.parse(str(value)) if option.parse else value
    raise UsageError(f"the search has no option {name!r}; `nnstretch stretch --help` lists them")


def searched(report: Reporter, network: Network, names: Sequence[str], search: StretchOptions, folder: Path) -> Answer:
    """Searches designs for processors, best first, and writes them with inherited weights and a page to a folder."""
    from nnstretch.cli.stretching.files import DesignFiles, write_all
    from nnstretch.cli.stretching.search import find

    found = find(report, network, search, None)
    search_report = found.results[0].report
    report.note(search_report.lifted_note)
    report.note(search_report.unbranched_note(names))
    paths, page = write_all(report, DesignFiles(folder, False, None), network, names, found.results)
    return {
        "designs": [Path(str(path)).name for path in paths],
        "page": Path(str(page)).name,
        "lifted_limits": search_report.lifted or None,
        "unbranched": search_report.unbranched_note(names) if search_report.stays_unbranched else None,
    }


def taken(design: Path, folder: Path) -> Answer:
    """Keeps a copy of the design given in a folder."""
    from nnstretch.branching.design.design import load_design, save_design

    made = load_design(design)
    save_design(made, folder / f"{made.id}.json")
    return {"designs": [f"{made.id}.json"], "unbranched": f"{design} has no branches" if made.is_original else None}


def check_processors(design: Path, names: Sequence[str]) -> None:
    """Refuses a design for more processors than were named.

    Raises:
        FileError, DesignError: it cannot be read.
        UsageError: it has branches for other processors.
    """
    from nnstretch.branching.design.design import load_design

    highest = max(load_design(design).processors, default=0)
    if highest >= len(names):
        raise UsageError(
            f"{design} has branches for {highest + 1} processors, -p names {len(names)} ({', '.join(names)}); give as many"
        )


def is_original(design: Path) -> bool:
    """Whether a design is the original network, as where branching does not pay."""
    from nnstretch.branching.design.design import load_design

    return load_design(design).is_original


def fingerprint(file: Path) -> str:
    """A text that tells the content of a file from others.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from error
