"""`nnstretch train`: train a network, or retrain a branched one with a teacher."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import Data, DesignFile, Json, Network, Weights, check_writable
from nnstretch.errors import UsageError
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.training.data.split import Dataset
    from nnstretch.training.loop import TrainingEvent
    from nnstretch.training.recipe import Recipe


Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The weights (.safetensors).")]
RecipeName = Annotated[
    str, typer.Option("--recipe", metavar="NAME", help="A preset such as quick or quick-retrain, or a JSON file.")
]
Teacher = Annotated[
    str | None,
    typer.Option("--teacher", metavar="MODEL:WEIGHTS", help="A trained network to learn from.", show_default=False),
]
Epochs = Annotated[
    int | None,
    typer.Option("--epochs", min=1, metavar="N", help="Epochs, instead of the recipe's.", show_default=False),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size", min=8, metavar="PIXELS", help="Side of the images, instead of the recipe's.", show_default=False
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted training from its checkpoint.")]
TrainingThreads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, metavar="N", help="CPU threads.", show_default=False)
]


def train_command(
    model: Network,
    data: Data,
    output: Output,
    recipe: RecipeName = "quick",
    design: DesignFile = None,
    weights: Weights = None,
    teacher: Teacher = None,
    epochs: Epochs = None,
    image_size: ImageSize = None,
    resume: Resume = False,
    threads: TrainingThreads = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed for random numbers; the recipe's by default.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Train a network on labelled images and write its weights.

    Example: nnstretch train resnet18 --data digits --recipe quick -o resnet18.safetensors
    """
    with reporting(as_json=json) as report:
        let_idle_threads_sleep()
        from nnstretch.cli.networks import NetworkOptions, build_network, read_about
        from nnstretch.training.data import load_dataset
        from nnstretch.training.loop import train as run_training
        from nnstretch.training.weights import save_weights

        settings = _settings(recipe, epochs, threads, seed)
        check_writable(output)
        about = read_about(weights) if weights else {}
        dataset = load_dataset(data, image_size or about.get("image_size") or settings.image_size)
        options = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size, settings.seed)
        network = build_network(model, options, weights, design)
        taught = _teacher(teacher, dataset) if teacher else None
        checkpoint = output.with_name(f"{output.name}.checkpoint")
        with report.progress("Training") as advance:
            result = run_training(
                network.module,
                dataset,
                settings,
                taught,
                lambda event: _tell(event, advance),
                checkpoint,
                resume,
            )
        save_weights(network.module, output, network.metadata(data=data, recipe=settings.name, top1=result.top1))
        checkpoint.unlink(missing_ok=True)
        report.show(f"{output}: top-1 {result.top1:.2f} % on {len(dataset.test)} images, {result.seconds:.0f} s")
        report.finish(
            {
                "file": str(output),
                "top1": result.top1,
                "seconds": result.seconds,
                "macs": network.macs,
                "params": network.parameters,
                "history": [asdict(record) for record in result.history],
            }
        )


def let_idle_threads_sleep() -> None:
    """Sets OpenMP's wait policy to sleep unless the environment sets it; must run before torch is loaded.

    Spinning threads make training several times slower where other work shares their cores.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _settings(recipe: str, epochs: int | None, threads: int | None, seed: int | None) -> Recipe:
    """A preset or a file; options that were given replace its fields."""
    from nnstretch.training.recipe import load_recipe

    settings = load_recipe(recipe)
    settings = replace(
        settings,
        seed=settings.seed if seed is None else seed,
        threads=settings.threads if threads is None else threads,
    )
    return settings if epochs is None else replace(settings, epochs=epochs, scales=())


def _tell(event: TrainingEvent, advance: Progress) -> None:
    accuracy = "" if event.top1 is None else f", top-1 {event.top1:.1f} %"
    advance(event.step, event.steps, f"epoch {event.epoch}/{event.epochs}, loss {event.loss:.3f}{accuracy}")


def _teacher(text: str, dataset: Dataset) -> nn.Module:
    """The trained network of MODEL:WEIGHTS."""
    from nnstretch.cli.networks import NetworkOptions, build_network

    spec, colon, weights = text.rpartition(":")
    if not colon or not spec or not weights:
        raise UsageError(
            f"--teacher {text!r} is not understood; write MODEL:WEIGHTS, as in resnet18:resnet18.safetensors"
        )
    options = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size)
    return build_network(spec, options, Path(weights)).module
