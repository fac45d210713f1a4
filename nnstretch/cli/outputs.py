"""Outputs of a run, shown as a table and written as .npz; endings of the files that commands write."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.errors import UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.support.settings import atomic_write

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table


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


def outputs_table(outputs: Mapping[str, np.ndarray]) -> Table:
    """A row per output: shape, type, least, mean and largest value."""
    table = plain_table("output", "shape", "type", ">min", ">mean", ">max")
    for name, y in outputs.items():
        numbers = (f"{y.min():.4g}", f"{y.mean():.4g}", f"{y.max():.4g}") if y.size else ("", "", "")
        table.add_row(name, "×".join(map(str, y.shape)), str(y.dtype), *numbers)
    return table


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
