"""Outputs of a run, shown as a table and written as .npz; endings of the files that commands write."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.running.images import answer_table
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.support.settings import atomic_write

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from nnstretch.cli.console import Reporter
    from nnstretch.cli.running.request import RunRequest
    from nnstretch.vision.answer import Answer, ImageInput


def write_outputs(path: Path, outputs: Mapping[str, np.ndarray]) -> None:
    """Writes outputs as .npz.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    import numpy as np

    # Writing an archive seeks back, and a full disk must not leave half a file.
    archive = io.BytesIO()
    np.savez(archive, **outputs)  # type: ignore[arg-type]
    with atomic_write(path) as file:
        file.write(archive.getvalue())


def show_outputs(
    report: Reporter, request: RunRequest, image: ImageInput | None, outputs: Mapping[str, np.ndarray]
) -> Answer | None:
    """Shows the outputs of a run, and writes or draws them where that is asked for.

    Args:
        report: where they are shown.
        request: what the command is asked to do.
        image: that the network has read, if any.
        outputs: by name.

    Returns:
        What they say of the image.

    Raises:
        NNStretchError: they cannot be drawn or written.
    """
    answer = None if image is None or request.image is None else request.image.answer(image, outputs)
    picture = None if answer is None else answer.picture
    if picture is not None and request.image is not None and request.image.drawn is not None:
        from nnstretch.vision.drawing import write_picture

        write_picture(request.image.drawn, picture)
    elif request.output is not None:
        write_outputs(request.output, outputs)
    report.show(outputs_table(outputs))
    report.note(_note_of_numbers(outputs))
    note_written(report, [] if request.output is None else [request.output])
    if answer is not None and image is not None:
        report.show(answer_table(answer))
        report.note(image.model.others)
        report.note(image.model.assumption)
    return answer


def _note_of_numbers(outputs: Mapping[str, np.ndarray]) -> str:
    """A line on outputs that are not finite; else empty."""
    import numpy as np

    odd = [name for name, y in outputs.items() if y.dtype.kind == "f" and not np.isfinite(y).all()]
    return f"numbers of {', '.join(odd)} are not finite (nan or inf)" if odd else ""


def outputs_table(outputs: Mapping[str, np.ndarray]) -> Table:
    """A row per output: shape, type, least, mean and largest value."""
    table = plain_table("output", "shape", "type", ">min", ">mean", ">max")
    for name, y in outputs.items():
        numbers = (f"{y.min():.4g}", f"{y.mean():.4g}", f"{y.max():.4g}") if y.size else ("", "", "")
        table.add_row(name, "×".join(map(str, y.shape)), str(y.dtype), *numbers)
    return table


def note_written(report: Reporter, paths: Sequence[Path]) -> None:
    """Says which files were written; nothing if there are none."""
    report.note(f"wrote {', '.join(map(str, paths))}" if paths else "")


def check_endings(outputs: Sequence[Path], what: str, endings: Sequence[str]) -> None:
    """Looks whether files of these names say how something is to be written.

    Args:
        outputs: the files.
        what: is written, with its verb, as the begin of a sentence.
        endings: of file names.

    Raises:
        UsageError: one has another ending.
    """
    for path in outputs:
        if path.suffix not in endings:
            named = "choose one of these endings" if len(endings) > 1 else "choose this ending"
            raise UsageError(f"-o {path}: {what} written as {', '.join(endings)}; {named}")
