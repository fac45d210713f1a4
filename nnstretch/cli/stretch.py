"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    Classes,
    Json,
    Network,
    Processors,
    Seed,
    SmallImages,
    Weights,
    make_directory,
)
from nnstretch.report.text import count_text, plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nnstretch.branching.design import Design
    from nnstretch.scheduler.costmodel.trees import Spread


def stretch(
    model: Network,
    processors: Processors = "cpu,opencl",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write designs, weights and ONNX files there.", show_default=False
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="How many designs to keep.")] = 3,
    alpha: Annotated[
        float,
        typer.Option("--alpha", min=0.0, help="A meeting point may cost this share of the segment before it."),
    ] = 0.3,
    beta: Annotated[
        float,
        typer.Option("--beta", min=0.0, help="A branch may take this share of the segment on the fastest processor."),
    ] = 0.8,
    learned: Annotated[
        bool,
        typer.Option("--learned", help="Predict layers from those measured before instead of measuring every one."),
    ] = False,
    weights: Weights = None,
    num_classes: Classes = None,
    small_images: SmallImages = False,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=8, metavar="PIXELS", help="Side of the input.", show_default=False)
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find branchings of a network, one branch per processor, best first; weights are inherited.

    Example: nnstretch stretch resnet18 --processors cpu:0,opencl:0@1 -o designs/
    """
    with reporting(as_json=json) as report:
        from nnstretch.api import stretch as search
        from nnstretch.cli.networks import Options, build_network
        from nnstretch.devices.spec import parse_processors

        names = [str(spec) for spec in parse_processors(processors)]
        folder = make_directory(output) if output else None
        network = build_network(model, Options(num_classes, small_images or None, None, image_size, seed), weights)
        with report.progress("Searching") as told:
            results = search(
                network.module,
                network.example_input,
                ",".join(names),
                alpha=alpha,
                beta=beta,
                designs=top,
                learned=learned,
                progress=told,
            )
            errors = _prediction_errors(",".join(names)) if learned else {}
        files: list[str | None] = [None] * len(results)
        if folder is not None:
            with report.progress("Writing") as told:
                for rank, result in enumerate(results):
                    told(rank, len(results), result.design.id)
                    files[rank] = str(_write(folder, rank + 1, network, result))
        designs = [result.design for result in results]
        report.show(_table(designs, names))
        for name, error in errors.items():
            report.note(f"{name}: predictions of layers that were not measured miss by {error or 'an unknown amount'}")
        report.finish(_answer(designs, names, files) | {"prediction_errors": _errors_answer(errors)})
        if folder is not None:
            report.note(f"wrote {len(results)} designs to {folder}; retrain one, with the network as its teacher:")
            report.note(
                f"  nnstretch train {model} --design {files[0]} --weights {weights or 'FILE'} "
                f"--teacher {model}:{weights or 'FILE'} --recipe quick-retrain --data SET -o branched.safetensors"
            )


def _prediction_errors(processors: str) -> dict[str, Spread | None]:
    """Cross-validated errors of learned predictions by processor; None where everything had to be measured."""
    from nnstretch.compiler import build_processors, predictor

    opened = build_processors(processors)
    predicting = predictor(opened, learned=True)
    errors = [predicting.error(number) for number in range(len(opened.named))]
    return {p.name: error.all if error else None for p, error in zip(opened.named, errors, strict=True)}


def _errors_answer(errors: Mapping[str, Spread | None]) -> dict[str, Any]:
    return {name: {"median": e.median, "p90": e.p90} if e else None for name, e in errors.items()}


def _write(folder: Path, rank: int, network: Any, result: Any) -> Path:
    """Design, inherited weights and ONNX file of one result; returns the design's path."""
    from dataclasses import replace

    from nnstretch.branching.design import save_design
    from nnstretch.frontends.onnx_file import save
    from nnstretch.training.weights import save_weights

    branched = replace(network, module=result.module, design=result.design)
    path = folder / f"{rank}-{result.design.id}.json"
    save_design(result.design, path)
    save_weights(result.module, path.with_suffix(".safetensors"), branched.metadata())
    save(branched.export(), path.with_suffix(".onnx"))
    return path


def _table(designs: Sequence[Design], names: Sequence[str]) -> Any:
    shown = plain_table(
        ">#", "design", ">MACs", ">parameters", ">predicted ms", ">meeting points", "branches (depth × width)"
    )
    for rank, design in enumerate(designs, 1):
        branches = "\n".join(
            f"segment {segment.segment}: " + " | ".join(f"{b.depth:.2f} × {b.width:.2f}" for b in segment.branches)
            for segment in design.segments
            if len(segment.branches) > 1
        )
        predicted = "–" if design.predicted_ms is None else f"{design.predicted_ms:.3f}"
        macs = f"{count_text(design.macs)} ({design.macs / design.original_macs:.0%})"
        shown.add_row(
            str(rank), design.id, macs, count_text(design.params), predicted, str(design.meeting_points), branches
        )
    shown.caption = f"branches from left to right: {', '.join(names)}"
    return shown


def _answer(designs: Sequence[Design], names: Sequence[str], files: Sequence[str | None]) -> dict[str, Any]:
    return {
        "original_macs": designs[0].original_macs if designs else None,
        "designs": [
            {
                "id": design.id,
                "file": file,
                "macs": design.macs,
                "params": design.params,
                "predicted_ms": design.predicted_ms,
                "meeting_points": design.meeting_points,
                "branches": [
                    {
                        "segment": segment.segment,
                        "processor": names[branch.processor],
                        "depth": branch.depth,
                        "width": branch.width,
                        "macs": branch.macs,
                        "predicted_ms": branch.predicted_ms,
                    }
                    for segment in design.segments
                    for branch in segment.branches
                ],
            }
            for design, file in zip(designs, files, strict=True)
        ],
    }
