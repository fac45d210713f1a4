"""`nnstretch export`: a model as a file that other engines run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    ModelToCompile,
    Weights,
    check_distinct,
    check_writable,
    option,
    results_directory,
    several_processors,
    with_options,
)
from nnstretch.report.tables.text import size_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from nnstretch.cli.models.sources import Source
    from nnstretch.exporters.loaded_module import LoadedModule

ExportedFile = Annotated[
    Path, option("--output -o FILE", "The file: .onnx, .tflite, or .pt2 for a program of torch.export.")
]
Float16 = Annotated[bool, option("--float16", "Store the weights of a TFLite file as float16; it computes in float32.")]
ChannelsFirst = Annotated[bool, option("--channels-first", "Images of a TFLite file stay N,C,H,W instead of N,H,W,C.")]
PerBranch = Annotated[
    Path | None,
    option(
        "--per-branch FOLDER",
        "Write a file per branch of a branched network, too, and branches.json, which says how they meet.",
    ),
]
BranchNames = Annotated[
    str | None, option("--processors -p LIST", "Names of the design's processors, for branches.json.")
]
CheckOutputs = Annotated[
    bool,
    option(
        "--check/--no-check",
        "Compare the outputs of a TFLite file or program, for a random input, with those of the model.",
    ),
]


@with_options(CompileOptions)
def export_command(
    model: ModelToCompile,
    output: ExportedFile,
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    float16: Float16 = False,
    channels_first: ChannelsFirst = False,
    per_branch: PerBranch = None,
    processors: BranchNames = None,
    check: CheckOutputs = True,
    *,
    options: CompileOptions,
    json: Json = False,
) -> None:
    """Write a model as an ONNX file, a TFLite file, or a program of torch.export.

    The ending of the file says which. Names of inputs and outputs and the preprocessing of images are kept. A model that
    `nnstretch quantize` wrote becomes an int8 TFLite file.

    Example: nnstretch export resnet18 --weights resnet18.safetensors -o resnet18.tflite
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.models.sources import Source
        from nnstretch.exporters.branch_files import INDEX
        from nnstretch.exporters.model_file import export_model
        from nnstretch.exporters.options import PROGRAM, ExportOptions

        names = several_processors(processors, "a file per branch") if processors is not None else ()
        wanted = ExportOptions(float16, not channels_first, check, per_branch, names)
        suffix = wanted.check_format(output)
        check_distinct(output, model, weights, design)
        check_writable(output)
        source = Source(model, options, weights, design, image_size)
        with results_directory(per_branch), report.progress("Exporting"):
            made = export_model(source.load, lambda: _module(source), output, wanted)
        if suffix != PROGRAM or weights is None:
            report.note(source.note)
        size = output.stat().st_size
        answer = "" if made.max_rel_error is None else f"; largest error {made.max_rel_error:.1e} of the output's range"
        inputs = f"{source.inputs_text}, " if suffix == ".onnx" else ""
        report.show(f"{output}: {made.format}, {inputs}{size_text(size)}{answer}")
        if per_branch is not None:
            report.show(f"{per_branch / INDEX}: {counted(len(made.branches), 'file')}")
        report.finish(
            {
                "model": model,
                "output": str(output),
                "format": made.format,
                "bytes": size,
                "max_rel_error": made.max_rel_error,
                "branches": [str(path) for path in made.branches],
                "index": str(per_branch / INDEX) if per_branch is not None else None,
            }
        )


def _module(source: Source) -> LoadedModule:
    """The network of a source as a module, with its preprocessing.

    Raises:
        UsageError: the source is a package, or has shapes of its own.
        NNStretchError: torch cannot build it.
    """
    from nnstretch.cli.models.networks import NetworkOptions, build_network
    from nnstretch.errors import UsageError
    from nnstretch.exporters.loaded_module import LoadedModule, module_of_file
    from nnstretch.frontends.resolve import is_model_file
    from nnstretch.training.data.preprocessing import PREPROCESSING_KEY

    if source.is_package:
        raise UsageError(f"{source.model} is a package with fixed plans; give the model that it was made from")
    if source.options.shapes:
        raise UsageError("--shape is for graphs; give --image-size for a .pt2 file")
    if is_model_file(source.model) and source.weights is None and source.design is None and source.image_size is None:
        return module_of_file(source.model, source.options.batch)
    network = build_network(source.model, NetworkOptions(image_size=source.image_size), source.weights, source.design)
    metadata = {} if network.preprocessing is None else {PREPROCESSING_KEY: network.preprocessing.to_json()}
    batched = network.with_batch(source.options.batch)
    return LoadedModule(batched.module, (batched.example_input,), metadata)
