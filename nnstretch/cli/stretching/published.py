"""`nnstretch stretch --published`: the branching of a file of NN-Stretch's authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.stretching.answer import design_object, designs_table
from nnstretch.cli.stretching.files import DesignFiles, write_design
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.networks import Network


def make_published(report: Reporter, network: Network, path: Path, names: Sequence[str], files: DesignFiles) -> None:
    """Makes, shows and writes the design of a published file.

    Args:
        report: of the command.
        network: of the file's family.
        path: of the file.
        names: of processors, one for each of the file's devices in their order.
        files: what is written.

    Raises:
        NNStretchError: the file cannot be read, is about another network, or has other devices.
    """
    from nnstretch.branching.pycls.files import read_published
    from nnstretch.branching.stretch import published

    file = read_published(path)
    if len(names) < len(file.processors):
        raise UsageError(
            f"{path} is for {', '.join(file.processors)}, --processors has {', '.join(names)}; give one for each, in this order"
        )
    with report.progress("Branching") as advance:
        advance(0, 1, path.name)
        result = published(network.module, network.example_input, file)
    written: Path | None = None
    if files.folder is not None:
        branched = replace(network, module=result.module, design=result.design)
        written, why_not = write_design(files, f"{path.stem}-", network, branched, names)
        if why_not:
            report.note(f"{written}: no YAML file: {why_not}")
    report.show(designs_table([result.design], names))
    for note in result.notes:
        report.note(note)
    report.finish(
        {
            "original_macs": result.design.original_macs,
            "designs": [design_object(result.design, names, str(written) if written else None)],
            "notes": list(result.notes),
        }
    )
    if written is not None:
        report.note(f"wrote {written}")
