"""`nnstretch evaluate`: accuracy of a model, and of two models on the same images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.accuracy_report import (
    Evaluated,
    changes_table,
    class_table,
    classes_json,
    comparison_json,
    comparison_lines,
    evaluated,
    score_table,
)
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.models.classifiers import (
    ENGINE_ALIASES,
    ENGINES,
    Classifier,
    ClassifierSource,
    compared_source,
    open_classifier,
)
from nnstretch.cli.options import (
    Data,
    DesignFile,
    HeadFactory,
    ImageSizeOption,
    Json,
    ModelToEvaluate,
    Weights,
    option,
    with_options,
)
from nnstretch.cli.training import with_given_head
from nnstretch.errors import UsageError
from nnstretch.support.image_size import size_of, size_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from nnstretch.training.data.split import Dataset

_MODULE_BATCH = 32  # images per call of a torch module


@with_options(CompileOptions)
def evaluate_command(
    model: ModelToEvaluate,
    data: Data,
    engine: Annotated[str, option("--engine NAME", "nnstretch, onnxruntime or torch.")] = "nnstretch",
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    device: Annotated[
        str | None,
        option("--device NAME", "With --engine torch: cpu, cuda:0, mps …", shown="cuda:0 where there is one, else cpu"),
    ] = None,
    head: HeadFactory = None,
    skip_unreadable: Annotated[
        bool,
        option(
            "--skip-unreadable", "Leave out test images that cannot be decoded, and report how many, instead of ending."
        ),
    ] = False,
    per_class: Annotated[bool, option("--per-class", "Show every class, too.")] = False,
    compare: Annotated[
        str | None,
        option(
            "--compare MODEL[:WEIGHTS]",
            "Another network for the same images, as MODEL, or with weights after a colon.",
        ),
    ] = None,
    compare_design: Annotated[Path | None, option("--compare-design FILE", "The design of the other network.")] = None,
    *,
    options: CompileOptions,
    json: Json = False,
) -> None:
    """Report the accuracy of a model on a data set's test images, and compare it to another one's.

    Accuracies have 95 % confidence intervals. With --compare, McNemar's test says whether the two networks differ.

    Example: nnstretch evaluate resnet18 --weights resnet18.safetensors --data digits
    """
    with reporting(as_json=json) as report:
        engine = ENGINE_ALIASES.get(engine, engine)
        if engine not in ENGINES:
            raise UsageError(f"unknown engine {engine!r}; there are {', '.join(ENGINES)}")
        if compare_design is not None and compare is None:
            raise UsageError("--compare-design is of the network of --compare; give that, too")
        if device is not None and engine != "torch":
            raise UsageError(f"--device {device} is for --engine torch; processors of {engine} are named otherwise")
        source = ClassifierSource(model, weights, design, image_size, device)
        images = _Images(data, head, skip_unreadable)
        found, dataset = _evaluated(report, source, engine, options, images)
        other = None
        if compare is not None:
            other_source = compared_source(compare, compare_design, source)
            other = _evaluated(report, other_source, engine, options, images)
        report.note(dataset.note if skip_unreadable else "")
        for note in dict.fromkeys((found.remarks, "" if other is None else other[0].remarks)):
            report.note(note)
        if source.has_own_weights:
            report.note(
                f"the weights are those that {model} makes, random ones unless it loads others; --weights takes a file"
            )
        answer = {"model": model, "data": data, "engine": engine, **_report_one(report, found, dataset, engine)}
        if per_class:
            answer["per_class"] = _report_classes(report, found, dataset)
        if compare is not None and other is not None:
            answer["compare"] = _report_comparison(report, found, other, compare)
        report.finish(answer)


def _report_one(report: Reporter, found: Evaluated, dataset: Dataset, engine: str) -> dict[str, Any]:
    """Shows the accuracy; returns it for `--json`."""
    images = len(dataset.test)
    skipped = f" ({found.skipped} more cannot be decoded)" if found.skipped else ""
    report.show(
        f"{found.text} on {counted(images, 'image')} of {dataset.name}{skipped} at "
        f"{size_text(dataset.image_size)}, with {engine}"
    )
    return {"images": images, "skipped": found.skipped, "image_size": dataset.image_size, **found.json}


def _report_classes(report: Reporter, found: Evaluated, dataset: Dataset) -> list[dict[str, Any]]:
    """Shows the classes; returns them for `--json`."""
    if found.predictions is not None:
        report.show(class_table(found.predictions, dataset.class_names))
        return classes_json(found.predictions, dataset.class_names)
    assert found.scorer is not None
    report.show(score_table(found.scorer, dataset))
    key = dataset.task.key
    return [
        {"class": name, key: percent}
        for name, percent in zip(dataset.class_names, found.scorer.per_class(), strict=True)
    ]


def _report_comparison(
    report: Reporter, found: Evaluated, other: tuple[Evaluated, Dataset], name: str
) -> dict[str, Any]:
    """Shows what differs between two networks; returns it for `--json`."""
    from nnstretch.training.evaluation.predictions import Comparison

    second, dataset = other
    report.show(f"{name}: {second.text} at {size_text(dataset.image_size)}")
    if found.predictions is None or second.predictions is None:
        return {"model": name, **second.json}
    both = Comparison(found.predictions, second.predictions)
    report.show(*comparison_lines(both, "the first", "the second"))
    changes = changes_table(both, dataset.class_names, "first", "second")
    if changes is not None:
        report.show(changes)
    return comparison_json(both, name, dataset.class_names)


@dataclass(frozen=True)
class _Images:
    """The images that the options name.

    Attributes:
        data: as `load_dataset` reads it.
        head: of a detector.
        skip_unreadable: whether images that cannot be decoded are left out.
    """

    data: str
    head: str | None
    skip_unreadable: bool


def _evaluated(
    report: Reporter, source: ClassifierSource, engine: str, options: CompileOptions, images: _Images
) -> tuple[Evaluated, Dataset]:
    """What a network reaches on the test images, and the data set for its images.

    Raises:
        ModelError: the data have other classes than the network, by their number or by all their names.
        FileError: images that cannot be decoded, unless they are to be left out.
    """
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.checks import check_headers
    from nnstretch.training.data.split import UnreadableImagesError
    from nnstretch.training.data.unreadable import refuse_unreadable, without_unreadable
    from nnstretch.vision.classes import compare_names

    with (
        report.progress("Evaluating") as advance,
        open_classifier(source, engine, options, advance) as classifier,
    ):
        _, channels, height, width = classifier.shape
        stated = classifier.preprocessing
        dataset = load_dataset(images.data, size_of(height, width), channels, preprocessing=stated)
        dataset, whole = with_given_head(dataset, images.head), len(dataset.test)
        classifier.check_outputs(dataset)
        differing = compare_names(classifier.class_names, dataset.class_names, source.model, dataset.name)
        if images.skip_unreadable:
            dataset = without_unreadable(dataset, ("test",), advance)
        else:
            check_headers(dataset.test, dataset.num_classes, "test", progress=advance)
        try:
            found = evaluated(classifier.network(), dataset.test, dataset, _batch(classifier, engine), advance)
        except UnreadableImagesError:
            refuse_unreadable(dataset.test, dataset.num_classes, "test")
            raise
    preparation = _preparation(dataset, source.model, is_stated=classifier.preprocessing is not None)
    remarks = "\n".join(filter(None, (differing, preparation)))
    return replace(found, skipped=whole - len(dataset.test), remarks=remarks), dataset


def _preparation(dataset: Dataset, model: str, *, is_stated: bool) -> str:
    """How images became inputs, in lines."""
    lines = []
    if cropping := dataset.preprocessing.cropping:
        lines.append(f"{dataset.name}: {cropping}{', as the network states' if is_stated else ''}")
    if not is_stated:
        lines.append(
            f"images (assumed, since the metadata of {model} have no nnstretch.preprocessing): {dataset.preprocessing.text}"
        )
    return "\n".join(lines)


def _batch(classifier: Classifier, engine: str) -> int:
    return _MODULE_BATCH if engine == "torch" else classifier.shape[0]
