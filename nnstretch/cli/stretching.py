"""What `nnstretch stretch` shows, answers and writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.statistics import perfect_split
from nnstretch.errors import DesignError
from nnstretch.report.text import count_text, ms_text, plain_table, power_text, share_text, times_text

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.branching.design import Design, SegmentDesign
    from nnstretch.branching.prediction import BlockCost
    from nnstretch.branching.search import SearchReport
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.networks import Network
    from nnstretch.scheduler.costmodel.trees import Spread


PAGE = "index.html"
"""Name of the page in the folder of the designs."""


def channel_block(names: Sequence[str]) -> int:
    """What widths of branches on processors are multiples of."""
    from nnstretch.compiler import build_processors

    return build_processors(",".join(names)).host.blocked.block


@dataclass(frozen=True)
class Writing:
    """What is written of a design.

    Attributes:
        folder: where; None: nothing.
        yaml: as a file of NN-Stretch's authors, too.
        seed: of new weights; None: inherited ones are written.
    """

    folder: Path | None
    yaml: bool
    seed: int | None


def write_all(
    report: Reporter, writing: Writing, network: Network, names: Sequence[str], results: Sequence[StretchResult]
) -> tuple[list[str | None], str | None]:
    """All designs and the page, if there is a folder for them; returns their paths."""
    files: list[str | None] = [None] * len(results)
    if writing.folder is None:
        return files, None
    with report.progress("Writing") as told:
        for rank, result in enumerate(results):
            told(rank, len(results), result.design.id)
            branched = replace(network, module=result.module, design=result.design)
            path, why_not = write_design(writing, f"{rank + 1}-", network, branched, names)
            files[rank] = str(path)
            if why_not:
                report.note(f"{path}: no YAML file: {why_not}")
        return files, str(write_page(writing.folder, network.spec, names, results, files))


def write_design(
    writing: Writing, prefix: str, original: Network, branched: Network, names: Sequence[str]
) -> tuple[Path, str]:
    """Design, weights and ONNX file of one branched network.

    Args:
        writing: what is wanted; it has a folder.
        prefix: of the files' names, before the design's.
        original: what was branched.
        branched: what came of it.
        names: of the processors.

    Returns:
        The design's path, and why there is no YAML file although one is wanted.
    """
    from nnstretch.branching.design import save_design
    from nnstretch.branching.network import BranchedNetwork
    from nnstretch.branching.stretch import start_afresh
    from nnstretch.frontends.onnx_file import save
    from nnstretch.training.weights import save_weights

    assert writing.folder is not None
    assert branched.design is not None
    assert isinstance(branched.module, BranchedNetwork)
    if writing.seed is not None:
        start_afresh(branched.module, branched.example_input, writing.seed)
    path = writing.folder / f"{prefix}{branched.design.id}.json"
    save_design(branched.design, path)
    save_weights(branched.module, path.with_suffix(".safetensors"), branched.metadata())
    save(branched.export(), path.with_suffix(".onnx"))
    return path, _write_yaml(path.with_suffix(".yaml"), original, branched.design, names) if writing.yaml else ""


def _write_yaml(path: Path, original: Network, design: Design, names: Sequence[str]) -> str:
    """Writes a design as a published file; returns why not, if that is not possible."""
    from nnstretch.branching.build import blueprint
    from nnstretch.branching.published import write_published
    from nnstretch.branching.publishing import published_of

    prepared = blueprint(original.module, original.example_input, design.multiple, design.merge)
    size = original.example_input.shape[-1]
    sections = {
        "MODEL": {"TYPE": "mbanynet", "NUM_CLASSES": _classes(original)},
        "TRAIN": {"IM_SIZE": size},
        "TEST": {"IM_SIZE": size},
    }
    try:
        write_published(published_of(design, prepared, device_names(names), sections), path)
    except DesignError as error:
        return str(error)
    return ""


def _classes(network: Network) -> int:
    import torch

    with torch.no_grad():
        return int(network.module(network.example_input).shape[-1])


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
    from nnstretch.report.stretch_page import Found, stretch_html
    from nnstretch.settings import write_text

    found = [
        Found(result.design, result.prediction, Path(file).name if file else None)
        for result, file in zip(results, files, strict=True)
    ]
    path = folder / PAGE
    write_text(path, stretch_html(Path(model).name, names, results[0].report, found))
    return path


def pruning_table(report: SearchReport) -> Table:
    """How many designs were left after every step."""
    shown = plain_table("designs made of", ">left")
    for step in report.pruning:
        shown.add_row(step.step, power_text(step.designs_log10))
    shown.caption = (
        f"{len(report.boundaries)} of {report.cut_points} cut points, {report.family.label} network: "
        f"depth ≥ {report.limits.min_depth:g}, width ≥ {report.limits.min_width:g}, MACs ≥ {report.limits.min_macs:g}; "
        f"{report.joined} joins of {report.predicted_workloads} predicted layers"
    )
    shown.caption_justify = "left"
    return shown


def designs_table(
    designs: Sequence[Design],
    names: Sequence[str],
    original_ms: Sequence[float] = (),
    measured: Mapping[str, float] | None = None,
) -> Table:
    """One row per design, and the original on each processor in the caption.

    Args:
        designs: best first.
        names: of the processors.
        original_ms: the original network's predicted latency on each of them; empty if nobody asked.
        measured: latencies of designs that were run, by id.
    """
    shown = plain_table(
        ">#",
        "design",
        ">MACs",
        ">parameters",
        ">predicted ms",
        ">measured ms",
        ">faster",
        ">of split",
        ">meets",
        "branches (depth × width)",
    )
    for rank, design in enumerate(designs, 1):
        branches = "\n".join(_branches(segment, names) for segment in design.segments)
        macs = f"{count_text(design.macs)} ({design.macs / design.original_macs:.0%})"
        times = _times(design, original_ms)
        run = ms_text(measured[design.id]) if measured and design.id in measured else "–"
        cells = (times[0], run, *times[1:], str(design.meeting_points), branches)
        shown.add_row(str(rank), design.id, macs, count_text(design.params), *cells)
    shown.caption = f"branches from left to right: {', '.join(names)}"
    if original_ms:
        alone = ", ".join(f"{ms_text(ms)} ms on {name}" for name, ms in zip(names, original_ms, strict=True))
        shown.caption = (
            f"original: {alone}; faster than on the fastest of them; of split: share of the perfect split at the design's "
            f"MACs; {shown.caption}"
        )
    shown.caption_justify = "left"
    return shown


def _times(design: Design, original_ms: Sequence[float]) -> tuple[str, str, str]:
    """Predicted latency, over the original on the fastest processor, and as a share of the perfect split."""
    ms = design.predicted_ms
    if ms is None or not original_ms:
        return "–", "–", "–"
    bound = perfect_split(original_ms) * design.macs / design.original_macs
    return ms_text(ms), times_text(min(original_ms) / ms), share_text(bound / ms)


def _branches(segment: SegmentDesign, names: Sequence[str]) -> str:
    blocks = (
        f"blocks {segment.first}–{segment.stop - 1}: "
        if segment.stop - segment.first > 1
        else f"block {segment.first}: "
    )
    if len(segment.branches) == 1:
        return f"{blocks}whole, {names[segment.branches[0].processor]}"
    return blocks + " | ".join(f"{b.depth:.2f} × {b.width:.2f}" for b in segment.branches)


def answer(
    results: Sequence[StretchResult],
    names: Sequence[str],
    files: Sequence[str | None],
    errors: Mapping[str, Spread | None],
) -> dict[str, Any]:
    """What `--json` prints."""
    report = results[0].report
    return {
        "original_macs": results[0].design.original_macs,
        "original_ms": _by_name(names, report.original_ms),
        "family": report.family.label,
        "cut_points": report.cut_points,
        "pruning": [{"step": step.step, "designs_log10": step.designs_log10} for step in report.pruning],
        "not_branched": list(report.notes),
        "not_predicted": list(report.unpredicted),
        "blocks": [_block(block, names) for block in report.blocks],
        "front": [{"predicted_ms": point.ms, "macs": point.macs} for point in report.front],
        "designs": [_design(result, names, file) for result, file in zip(results, files, strict=True)],
        "prediction_errors": {name: {"median": e.median, "p90": e.p90} if e else None for name, e in errors.items()},
    }


def _by_name(names: Sequence[str], ms: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds by processor; None for one that cannot do it."""
    return {name: one if math.isfinite(one) else None for name, one in zip(names, ms, strict=True)}


def _block(block: BlockCost, names: Sequence[str]) -> dict[str, Any]:
    return {
        "name": block.name,
        "macs": block.macs,
        "branchable": block.branchable,
        "original_ms": _by_name(names, block.ms),
    }


def _design(result: StretchResult, names: Sequence[str], file: str | None) -> dict[str, Any]:
    design = result.design
    return {
        **design_object(design, names, file),
        "measured_ms": result.report.measured_ms.get(design.id),
        "perfect_split_ms": perfect_split(result.report.original_ms) * design.macs / design.original_macs,
        "prediction": result.prediction.to_json(names),
    }


def design_object(design: Design, names: Sequence[str], file: str | None) -> dict[str, Any]:
    """What `--json` prints of a design."""
    return {
        "id": design.id,
        "merge": design.merge.value,
        "file": file,
        "macs": design.macs,
        "params": design.params,
        "predicted_ms": design.predicted_ms,
        "meeting_points": design.meeting_points,
        "branches": [
            {
                "segment": number,
                "first": segment.first,
                "stop": segment.stop,
                "processor": names[branch.processor],
                "depth": branch.depth,
                "width": branch.width,
                "macs": branch.macs,
                "predicted_ms": branch.predicted_ms,
            }
            for number, segment in enumerate(design.segments)
            for branch in segment.branches
        ],
    }
