"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

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
    parse_milliseconds,
    several_processors,
)

_LIMITS = "Limits"


def stretch(
    model: Network,
    processors: Processors = "cpu,opencl",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write designs, weights, ONNX files and a page that shows why there.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="How many designs to keep.")] = 3,
    target: Annotated[
        str | None,
        typer.Option(
            "--latency-target",
            metavar="TIME",
            help="Give the designs with the most MACs that take at most so long, as in 12ms.",
            show_default=False,
        ),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Spread the designs over the front of latency and MACs.")
    ] = False,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0.0,
            help="A meeting point may cost this share of the segment before it.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.3,
    beta: Annotated[
        float,
        typer.Option(
            "--beta",
            min=0.0,
            help="A branch may take this share of the segment on the fastest processor.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.8,
    min_depth: Annotated[
        float | None,
        typer.Option(
            "--min-depth",
            help="A branch keeps this share of the segment's blocks, or more.",
            show_default="by the network's family",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    min_width: Annotated[
        float | None,
        typer.Option(
            "--min-width",
            help="A branch has this share of the segment's width, or more.",
            show_default="by the network's family",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    min_macs: Annotated[
        float,
        typer.Option(
            "--min-macs",
            help="The branches of a segment have this share of its MACs, or more.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.8,
    max_segment: Annotated[
        float,
        typer.Option(
            "--max-segment",
            help="A segment has this share of the network's MACs, or less; then branches must meet.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.4,
    merge: Annotated[
        str, typer.Option("--merge", metavar="HOW", help="How branches meet: concat, concat+1x1 or add.")
    ] = "concat",
    published: Annotated[
        Path | None,
        typer.Option(
            "--published",
            metavar="FILE",
            help="Make the branching of a YAML file of NN-Stretch's authors instead of searching.",
            show_default=False,
        ),
    ] = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Write designs as such YAML files, too, where these can say them.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin with new weights instead of inherited ones.")
    ] = False,
    learned: Annotated[
        bool | None,
        typer.Option(
            "--learned/--measure-all",
            help="Predict layers from those measured before and measure those of the best designs, or measure every one.",
            show_default="learned where xgboost is installed",
        ),
    ] = None,
    trials: Annotated[
        bool, typer.Option("--trials/--no-trials", help="Run the best design and share its work out anew.")
    ] = True,
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
        from nnstretch.branching.design import parse_merge
        from nnstretch.branching.limits import SearchLimits
        from nnstretch.cli.networks import Options, build_network
        from nnstretch.cli.publishing import make_published
        from nnstretch.cli.stretching import (
            Writing,
            answer,
            designs_table,
            prediction_errors,
            pruning_table,
            write_design,
            write_page,
        )

        way = parse_merge(merge)
        writing = Writing(make_directory(output) if output else None, yaml, seed if from_scratch else None)
        names = several_processors(processors, "a branching")
        limits = SearchLimits(
            alpha,
            beta,
            min_depth,
            min_width,
            min_macs,
            max_segment,
            None if target is None else parse_milliseconds(target),
        )
        limits.check()
        network = build_network(model, Options(num_classes, small_images or None, None, image_size, seed), weights)
        if published is not None:
            make_published(report, network, published, names, writing)
            return
        with report.progress("Searching") as told:
            results = search(
                network.module,
                network.example_input,
                ",".join(names),
                limits=limits,
                designs=top,
                pareto=pareto,
                merge=way.value,
                learned=learned,
                trials=trials,
                progress=told,
            )
            errors = prediction_errors(",".join(names)) if learned is not False else {}
        files: list[str | None] = [None] * len(results)
        page = None
        if writing.folder is not None:
            with report.progress("Writing") as told:
                for rank, result in enumerate(results):
                    told(rank, len(results), result.design.id)
                    branched = replace(network, module=result.module, design=result.design)
                    path, why_not = write_design(writing, f"{rank + 1}-", network, branched, names)
                    files[rank] = str(path)
                    if why_not:
                        report.note(f"{path}: no YAML file: {why_not}")
                page = str(write_page(writing.folder, model, names, results, files))
        found = results[0].report
        report.show(pruning_table(found))
        report.show(designs_table([result.design for result in results], names, found.original_ms, found.measured_ms))
        for note in results[0].report.notes:
            report.note(f"not branched: {note}")
        if results[0].report.unpredicted:
            operators = ", ".join(results[0].report.unpredicted)
            report.note(f"not in the predictions, because no processor has a routine for it: {operators}")
        for name, error in errors.items():
            report.note(f"{name}: predictions of layers that were not measured miss by {error or 'an unknown amount'}")
        report.finish({**answer(results, names, files, errors), "page": page})
        if writing.folder is not None:
            report.note(f"wrote {len(results)} designs to {writing.folder}; {page} shows why these")
            report.note("retrain one, with the network as its teacher:")
            report.note(
                f"  nnstretch train {model} --design {files[0]} --weights {weights or 'FILE'} "
                f"--teacher {model}:{weights or 'FILE'} --recipe quick-retrain --data SET -o branched.safetensors"
            )
