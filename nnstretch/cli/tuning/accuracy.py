"""Accuracy on validation images while `nnstretch tune` chooses the types of layers."""

from __future__ import annotations

from collections.abc import Callable
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
    from nnstretch.scheduler.selection.hybrid import HybridAnswer
    from nnstretch.scheduler.selection.problem import Assignment
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
    from nnstretch.scheduler.planner import plan_of
    from nnstretch.scheduler.runtime.session import PlanSession
    from nnstretch.scheduler.selection.accuracy import fastest_accurate, rounding_errors, with_rounding
    from nnstretch.scheduler.selection.hybrid import FLOAT32

    def measured(answer: Assignment, measure: Callable[[Callable[[np.ndarray], Any]], Any]) -> Any:
        with PlanSession(plan_of(space, answer)) as session:
            return measure(lambda inputs: session.run(None, {images.name: inputs})[0])

    exact = measured(found.restricted[FLOAT32], images.logits)

    def error(answer: Assignment) -> float:
        """Mean squared error of the logits over their variance."""
        return float(np.square(measured(answer, images.logits) - exact).mean() / max(exact.var(), 1e-30))

    problem = with_rounding(space, rounding_errors(space, error, progress))
    return fastest_accurate(problem, found, lambda answer: float(measured(answer, images.top1)), points)
