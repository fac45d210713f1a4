"""The files that `nnstretch stretch` writes: designs, weights, graphs, published files, and the page; --published reads one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.stretching.answer import branches_table, design_object, designs_table
from nnstretch.errors import DesignError, UsageError

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.models.networks import Network

PAGE = "index.html"
"""Name of the page in the folder of the designs."""


@dataclass(frozen=True)
class DesignFiles:
    """What is written for each design.

    Attributes:
        folder: where; None: nothing.
        yaml: as a file of NN-Stretch's authors, too.
        seed: of new weights; None: inherited ones are written.
    """

    folder: Path | None
    yaml: bool
    seed: int | None


def write_all(
    report: Reporter, target: DesignFiles, network: Network, names: Sequence[str], results: Sequence[StretchResult]
) -> tuple[list[str | None], str | None]:
    """All designs and the page, if there is a folder for them; returns their paths."""
    files: list[str | None] = [None] * len(results)
    if target.folder is None:
        return files, None
    with report.progress("Writing") as advance:
        for rank, result in enumerate(results):
            advance(rank, len(results), result.design.id)
            branched = replace(network, module=result.module, design=result.design)
            path, why_not = write_design(target, f"{rank + 1}-", network, branched, names)
            files[rank] = str(path)
            if why_not:
                report.note(f"{path}: no YAML file: {why_not}")
        return files, str(write_page(target.folder, network.spec, names, results, files))


def write_design(
    target: DesignFiles, prefix: str, original: Network, branched: Network, names: Sequence[str]
) -> tuple[Path, str]:
    """Design, weights and ONNX file of one branched network.

    Args:
        target: what to write; it has a folder.
        prefix: of the files' names, before the design's.
        original: what was branched.
        branched: the branched network.
        names: of the processors.

    Returns:
        The design's path, and why there is no YAML file although `target` asks for one.

    Raises:
        FileError: the place is not writable or the disk is full; no new file of the design is there then.
    """
    from nnstretch.branching.design.design import save_design
    from nnstretch.branching.stretch import reinitialise
    from nnstretch.branching.transform.network import BranchedNetwork
    from nnstretch.frontends.onnx_file import save
    from nnstretch.training.weights import save_weights

    assert target.folder is not None
    assert branched.design is not None
    assert isinstance(branched.module, BranchedNetwork)
    if target.seed is not None:
        reinitialise(branched.module, branched.example_input, target.seed)
    path = target.folder / f"{prefix}{branched.design.id}.json"
    files = [path.with_suffix(ending) for ending in (".safetensors", ".onnx", ".yaml", ".json")]
    with _all_or_none(files):
        save_weights(branched.module, path.with_suffix(".safetensors"), branched.metadata())
        save(branched.export(), path.with_suffix(".onnx"))
        why_not = _write_yaml(path.with_suffix(".yaml"), original, branched.design, names) if target.yaml else ""
        save_design(branched.design, path)
    return path, why_not


@contextmanager
def _all_or_none(files: Sequence[Path]) -> Iterator[None]:
    """Removes those of some files that the block has made, if it fails; files that were there before stay."""
    new = [file for file in files if not file.exists()]
    try:
        yield
    except BaseException:
        for file in new:
            file.unlink(missing_ok=True)
        raise


def _write_yaml(path: Path, original: Network, design: Design, names: Sequence[str]) -> str:
    """Writes a design as a published file; returns why not, if that is not possible."""
    import torch

    from nnstretch.branching.design.blueprint import blueprint
    from nnstretch.branching.pycls.files import write_published
    from nnstretch.branching.pycls.from_design import published_of

    height, size = original.example_input.shape[2:]
    if height != size:
        return "published files are for square images"
    with torch.no_grad():
        classes = int(original.module(original.example_input).shape[-1])
    prepared = blueprint(original.module, original.example_input, design.multiple, design.merge)
    sections = {
        "MODEL": {"TYPE": "mbanynet", "NUM_CLASSES": classes},
        "TRAIN": {"IM_SIZE": size},
        "TEST": {"IM_SIZE": size},
    }
    try:
        write_published(published_of(design, prepared, device_names(names), sections), path)
    except DesignError as error:
        return str(error)
    return ""


def device_names(names: Sequence[str]) -> list[str]:
    """What published files call processors: cpu, gpu for OpenCL devices, and with a number if there are several."""
    kinds = [name.split(":")[0] for name in names]
    called = ["gpu" if kind == "opencl" else kind for kind in kinds]
    return [kind if kind not in called[:i] else f"{kind}{called[:i].count(kind)}" for i, kind in enumerate(called)]


def write_page(
    folder: Path, model: str, names: Sequence[str], results: Sequence[StretchResult], files: Sequence[str | None]
) -> Path:
    """The page that shows why these designs; returns its path.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    from nnstretch.report.pages.stretch import PredictedDesign, stretch_html
    from nnstretch.support.settings import write_text

    found = [
        PredictedDesign(result.design, result.prediction, Path(file).name if file else None)
        for result, file in zip(results, files, strict=True)
    ]
    path = folder / PAGE
    write_text(path, stretch_html(Path(model).name, names, results[0].report, found))
    return path


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
    report.show(designs_table([result.design], names), branches_table([result.design], names))
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
