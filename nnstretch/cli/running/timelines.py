"""`nnstretch run --timeline FILE`: a traced run as a trace (.json), a picture (.svg) or a page (.html)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.options import check_format

if TYPE_CHECKING:
    from nnstretch.scheduler.runtime.critical_path import RunSummary
    from nnstretch.scheduler.runtime.timeline import Timeline

PICTURE, PAGE = ".svg", ".html"
ENDINGS = (".json", PICTURE, PAGE)


def check_timeline(path: Path) -> None:
    """Looks whether a file's name promises a format that no timeline has.

    Raises:
        UsageError: it does.
    """
    check_format(path, "a timeline is", ENDINGS, "--timeline")


def write_timeline(path: Path, model: str, timeline: Timeline, summary: RunSummary | None) -> None:
    """Writes a traced run in the form that the file's ending names; a trace for Perfetto if it names none.

    Args:
        path: of the file.
        model: the name of what ran.
        timeline: the run.
        summary: of the same run; None if the plan is not known.

    Raises:
        FileError: the file cannot be written.
    """
    from nnstretch.support.settings import write_text

    if path.suffix == PICTURE:
        from nnstretch.report.charts.timeline import timeline_svg

        write_text(path, timeline_svg(timeline, title=f"One run of {model}, {timeline.total / 1e6:.3g} ms"))
    elif path.suffix == PAGE:
        from nnstretch.report.documents.timeline import timeline_document
        from nnstretch.report.documents.writers import write

        write(timeline_document(model, timeline, summary), path)
    else:
        write_text(path, timeline.to_chrome_json())
