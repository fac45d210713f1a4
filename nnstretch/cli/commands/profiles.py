"""`nnstretch profiles`: the measurements in the profile store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from json import JSONDecoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import Json, check_format, check_writable, option
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.support.settings import searches_dir
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from nnstretch.scheduler.measurement.store.rows import Row
    from nnstretch.scheduler.measurement.store.store import ProfileStore


Action = Literal["list", "export", "merge", "clear"]


def profiles_command(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do with the profile store.")] = "list",
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="merge: an exported file, or another store.", show_default=False),
    ] = None,
    output: Annotated[Path | None, option("--output -o FILE", "export: the JSON file to write.")] = None,
    processor: Annotated[str | None, option("--processor TEXT", "Only processors whose name contains TEXT.")] = None,
    json: Json = False,
) -> None:
    """List, export, merge or clear the measurements that tuning has made on this machine.

    The store is profiles.sqlite in the cache directory (NNSTRETCH_CACHE_DIR). Merging keeps the newer of two measurements. The
    list ends with the routines that were left out because they failed or computed a wrong answer, and why.

    Example: nnstretch profiles export -o profiles.json
    """
    with reporting(as_json=json) as report:
        _check(action, file, output)
        from nnstretch.scheduler.measurement.store.store import ProfileStore

        with closing(ProfileStore()) as store:
            _act(action, file or output, processor, store, report)


def _check(action: Action, file: Path | None, output: Path | None) -> None:
    for given, name, owner in ((file, "FILE", "merge"), (output, "-o FILE", "export")):
        if (given is not None) != (action == owner):
            wanted = name if given is None else f"no {name}"
            raise UsageError(f"profiles {action} takes {wanted}; see `nnstretch profiles --help`")
    if output is not None:
        check_format(output, "profiles are", ".json")
        check_writable(output)


def _act(action: Action, file: Path | None, processor: str | None, store: ProfileStore, report: Reporter) -> None:
    from nnstretch.scheduler.measurement.store.profiles_file import (
        Profiles,
        read_profiles,
        stored_profiles,
        write_profiles,
    )

    def wanted(row: Row) -> bool:
        return processor is None or processor in row.processor

    def those_wanted(profiles: Profiles) -> Profiles:
        rows = [row for row in profiles.rows if wanted(row)]
        fingerprints = {row.processor for row in rows}
        return Profiles(rows, [one for one in profiles.processors if one.fingerprint in fingerprints])

    given = read_profiles(file) if action == "merge" and file is not None else None
    if processor is not None:
        _check_known(processor, store.rows() if given is None else given.rows)
    if action == "list":
        _list([row for row in store.rows() if wanted(row)], store, report)
    elif action == "export" and file is not None:
        profiles = those_wanted(stored_profiles(store))
        write_profiles(profiles, file)
        count = len(profiles.rows)
        report.show(f"{file}: {counted(count, 'measurement')}")
        report.finish({"file": str(file), "measurements": count})
    elif given is not None:
        profiles = those_wanted(given)
        store.describe(profiles.processors)
        count = store.merge(profiles.rows)
        report.show(f"{store.path}: {count} of {len(profiles.rows)} measurements added, the others were already stored")
        report.finish({"store": str(store.path), "measurements": len(profiles.rows), "taken": count})
    else:
        fingerprints = {row.processor for row in store.rows() if wanted(row)}
        count = sum(store.clear(fingerprint) for fingerprint in sorted(fingerprints))
        for search in searches_dir().glob("*.json") if fingerprints or processor is None else ():
            search.unlink(missing_ok=True)
        report.show(f"{store.path}: {counted(count, 'measurement')} deleted")
        report.finish({"store": str(store.path), "measurements": count})


def _check_known(processor: str, rows: Iterable[Row]) -> None:
    """Checks that a processor with measurements has a text in its name. Raises UsageError; names those that there are."""
    known = sorted({row.processor for row in rows})
    if not any(processor in name for name in known):
        raise UsageError(
            f"no measured processor has {processor!r} in its name; there are: {'; '.join(known) or 'none'}"
        )


def _list(rows: list[Row], store: ProfileStore, report: Reporter) -> None:
    import time

    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.processor].append(row)
    shown = plain_table("processor", ">workloads", ">measurements", ">failed", ">samples", "last")
    answer = []
    for fingerprint, group in sorted(groups.items()):
        measured = [row.measurement for row in group]
        last = max(m.when for m in measured)
        entry = {
            "processor": fingerprint,
            "workloads": len({row.workload for row in group}),
            "measurements": len(group),
            "failed": sum(m.failure is not None for m in measured),
            "samples": sum(len(m.samples) for m in measured),
            "last": last,
        }
        answer.append(entry)
        cells = [str(entry[name]) for name in ("processor", "workloads", "measurements", "failed", "samples")]
        shown.add_row(*cells, time.strftime("%Y-%m-%d %H:%M", time.localtime(last)))
    failures = _failures(rows)
    report.show(shown)
    if failures:
        left_out = plain_table("routine", "operator", ">layers", "latest reason", title="Left out")
        for failure in failures:
            left_out.add_row(*(str(failure[name]) for name in ("routine", "op", "layers", "reason")))
        report.show(left_out)
    report.show(f"{store.path}: {counted(len(rows), 'measurement')}")
    report.finish({"store": str(store.path), "processors": answer, "failures": failures})


def _failures(rows: list[Row]) -> list[dict[str, str | int]]:
    """What failed, by routine and operator: the number of layers, and the reason of the latest failure."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.measurement.failure is not None:
            groups[row.routine, _operator(row.workload)].append(row)
    return [
        {
            "routine": routine,
            "op": op,
            "layers": len({row.workload for row in group}),
            "reason": str(max(group, key=lambda row: row.measurement.when).measurement.failure),
        }
        for (routine, op), group in sorted(groups.items())
    ]


def _operator(workload: str) -> str:
    """The operator of a workload, which may be of a layer inside a network; empty if a merged file has another text there."""
    try:
        found, _ = JSONDecoder().raw_decode(workload)
        return str(found["op"])
    except (ValueError, TypeError, KeyError):
        return ""
