"""Accuracy on validation images while `nnstretch tune` chooses the types of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.errors import ModelError
from nnstretch.support.image_size import size_of
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.scheduler.planner import ChoiceSpace
    from nnstretch.scheduler.selection.accuracy import AccurateAnswer
    from nnstretch.scheduler.selection.accuracy_front import AccuracyFront
    from nnstretch.scheduler.selection.hybrid import HybridAnswer
    from nnstretch.scheduler.selection.problem import Assignment, Problem
    from nnstretch.training.data.split import Dataset

_FIRST_IMAGES = 16
"""Number of images by which layers are ordered."""


@dataclass(frozen=True, eq=False)
class ValidationImages:
    """The validation split of a data set, as inputs of a network.

    Attributes:
        dataset: has the split.
        name: of the network's input.
        batch: images per run.
    """

    dataset: Dataset
    name: str
    batch: int

    def top1(self, run: Callable[[np.ndarray], np.ndarray]) -> float:
        """Share of the images whose class has the highest logit, in percent."""
        from nnstretch.training.evaluation.accuracy import top1

        return top1(run, self.dataset.validation, self.dataset.num_classes, self.batch)

    def logits(self, run: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Logits of the first images."""
        from nnstretch.training.data.split import batches
        from nnstretch.training.evaluation.accuracy import outputs_of

        outputs, found, count = outputs_of(run, self.batch), [], 0
        for images, _ in batches(self.dataset.validation, self.batch):
            found.append(np.asarray(outputs(images)))
            count += len(images)
            if count >= _FIRST_IMAGES:
                break
        return np.concatenate(found)


def validation_images(graph: ir.Model, data: str) -> ValidationImages:
    """The validation images of a data set for a network.

    Raises:
        ModelError: the network does not read images alone, or is no classifier.
        NNStretchError: there is no such data set, or it does not fit.
    """
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.preprocessing import stated_preprocessing

    inputs = [(str(v.name), () if v.shape is None else tuple(v.shape.numpy())) for v in graph.graph.inputs]
    (name, shape), *others = inputs
    if others or len(shape) != 4 or len(graph.graph.outputs) != 1:
        wanted = ", ".join(f"{n} {list(s)}" for n, s in inputs)
        raise ModelError(f"the model's inputs are {wanted}; top-1 needs a classifier with one input of images N,C,H,W")
    preprocessing = stated_preprocessing(graph.metadata_props, "the model")
    dataset = load_dataset(data, size_of(*shape[2:]), shape[1], preprocessing=preprocessing)
    return ValidationImages(dataset, name, shape[0])


def accurate_answer(
    space: ChoiceSpace, found: HybridAnswer, images: ValidationImages, points: float, progress: Progress
) -> AccurateAnswer:
    """The fastest answer whose top-1 on validation images is at most some points below that in float32.

    Raises:
        SelectionError: there is none.
        ModelError: the network's outputs are no logits of the data set's classes.
    """
    from nnstretch.scheduler.selection.accuracy import fastest_accurate

    problem = _with_rounding(space, found, images, progress)
    return fastest_accurate(problem, found, lambda answer: _top1(space, answer, images), points)


def measured_front(
    space: ChoiceSpace,
    found: HybridAnswer,
    images: ValidationImages,
    resources: Sequence[str],
    most: int,
    progress: Progress,
) -> AccuracyFront:
    """The front of latency, resources and top-1 on validation images.

    Args:
        space: with amounts of the resources, and of the routines' errors.
        found: answers to the space; with those in one type if layers have choices of several.
        images: that top-1 is measured on.
        resources: beside latency and accuracy.
        most: number of plans whose top-1 is measured at most.
        progress: called for every layer that is rounded alone, and for every measured plan.

    Raises:
        ModelError: the network's outputs are no logits of the data set's classes.
    """
    from nnstretch.scheduler.selection.accuracy import ROUNDING
    from nnstretch.scheduler.selection.accuracy_front import accuracy_front
    from nnstretch.scheduler.selection.hybrid import FLOAT32
    from nnstretch.scheduler.selection.resources import ERROR

    mixed = FLOAT32 in found.restricted
    problem = _with_rounding(space, found, images, progress) if mixed else space.problem
    measured = 0

    def accuracy(answer: Assignment) -> float:
        nonlocal measured
        progress(measured, most, "top-1 of plans")
        measured += 1
        return _top1(space, answer, images)

    return accuracy_front(problem, resources, ROUNDING if mixed else ERROR, accuracy, most)


def _with_rounding(space: ChoiceSpace, found: HybridAnswer, images: ValidationImages, progress: Progress) -> Problem:
    """The problem of a space with the errors of the logits that each layer causes in int8."""
    from nnstretch.scheduler.selection.accuracy import rounding_errors, with_rounding
    from nnstretch.scheduler.selection.hybrid import FLOAT32

    exact = _measured(space, found.restricted[FLOAT32], images, images.logits)

    def error(answer: Assignment) -> float:
        """Mean squared error of the logits over their variance."""
        logits = _measured(space, answer, images, images.logits)
        return float(np.square(logits - exact).mean() / max(exact.var(), 1e-30))

    return with_rounding(space, rounding_errors(space, error, progress))


def _top1(space: ChoiceSpace, answer: Assignment, images: ValidationImages) -> float:
    return float(_measured(space, answer, images, images.top1))


def _measured(
    space: ChoiceSpace,
    answer: Assignment,
    images: ValidationImages,
    measure: Callable[[Callable[[np.ndarray], Any]], Any],
) -> Any:
    """What a measurement finds of an answer's plan."""
    from nnstretch.scheduler.planner import plan_of
    from nnstretch.scheduler.runtime.session import PlanSession

    with PlanSession(plan_of(space, answer)) as session:
        return measure(lambda inputs: session.run(None, {images.name: inputs})[0])
