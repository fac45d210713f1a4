"""Losses of a training: from targets alone, or from targets and a teacher's logits and feature maps.

A trainer calls one object, an `Objective`, once per forward pass with gradients:

    objective = Distillation(module, teacher, examples, weight=0.8, temperature=3.0, feature_weight=1.0)
    optimiser = SGD([*module.parameters(), *objective.parameters()])
    …
    with autocast:
        outputs = module(images)                             # or DDP(module), torch.compile(module)
        loss = objective.loss(images, outputs, targets)
    …
    objective.close()

Make the objective before `torch.compile`: it registers hooks. Call `loss` inside the trainer's autocast, in which the teacher
computes, too; losses are float32. `state()` belongs into checkpoints.

Methods: logits as in Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (arXiv:1503.02531), section 2;
feature maps as hints in Romero et al., "FitNets" (arXiv:1412.6550), section 2.2, at every meeting point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from nnstretch.branching.design.design import Design
from nnstretch.errors import ModelError
from nnstretch.training.distillation.feature_loss import FeatureLoss, float32
from nnstretch.training.tasks.base import Task
from nnstretch.training.tasks.classification import CLASSIFICATION


def in_float32(outputs: Any) -> Any:
    """What a network returns, with tensors in float32."""
    return _pytree.tree_map(lambda value: value.float() if isinstance(value, Tensor) else value, outputs)


def soft_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Mean over the rows of KL(teacher || student), both softened by `temperature`, times its square.

    The square keeps the gradient's size independent of the temperature. Both tensors are `rows x classes`, one row per image
    or per pixel; the teacher gets no gradient.
    """
    student = functional.log_softmax(logits / temperature, dim=1)
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, dim=1)
    divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2


class Objective(ABC):
    """What a training minimises."""

    @abstractmethod
    def loss(self, images: Tensor, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of a batch, a float32 scalar with gradients: a mean over its images.

        Args:
            images: at full size, as a teacher reads them: `N,C,H,W`. The network may have read smaller ones.
            outputs: what the network has computed for them in its last forward pass.
            targets: of the task.
        """

    def parameters(self) -> list[nn.Parameter]:
        """Weights of the objective itself, which the optimiser trains together with the network's."""
        return []

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by name."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` returned.

        Raises:
            ModelError: it is of another objective.
        """
        if state:
            raise ModelError(
                f"the checkpoint has weights of a distillation ({', '.join(state)}); this training has none"
            )

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """Ends the objective: the network is left as it was before."""


class TargetObjective(Objective):
    """The task's loss against the targets alone."""

    def __init__(self, task: Task = CLASSIFICATION) -> None:
        self._task = task

    def loss(self, images: Tensor, outputs: Any, targets: Tensor) -> Tensor:
        """The hard loss."""
        with float32(images):
            return self._task.loss(in_float32(outputs), targets)


class Distillation(Objective):
    """Targets, a teacher's logits and, with a weight for them, its feature maps at every meeting point.

    The loss is `weight * soft + (1 - weight) * hard + feature_weight * features`. `features` is the mean over the meeting
    points of the mean squared error over the variance of the teacher's feature map. The variances are those of the examples,
    so that the loss stays a mean over images, however batches are divided. Outputs that are no logits, such as those of
    detectors, are not compared: the loss is `hard + feature_weight * features`.

    A branched network's channels are compared to those that they stand for (`BranchedNetwork.origins`). The feature maps of
    any other network are projected to the teacher's channels by 1x1 convolutions that exist in training only.

    Attributes:
        parts: hard, soft and feature loss of the last batch, detached, by name.
    """

    def __init__(
        self,
        module: nn.Module,
        teacher: nn.Module,
        examples: Tensor,
        *,
        weight: float = 0.9,
        temperature: float = 4.0,
        feature_weight: float = 0.0,
        design: Design | None = None,
        torchcompile: str | None = None,
        task: Task = CLASSIFICATION,
    ) -> None:
        """Prepares the teacher, and with a feature weight the network.

        Args:
            module: the network in training, on its device; not compiled yet.
            teacher: a trained network of the same classes, on the same device. It is put into evaluation mode.
            examples: some images as in training, the same in every process: `N,C,H,W`.
            weight: share of the soft loss.
            temperature: by which logits are divided for the soft loss.
            feature_weight: of the feature maps, beside the other two.
            design: its meeting points are compared; by default those of the branched network, and for any other
                network the ends of its stages.
            torchcompile: backend of `torch.compile` for the teacher; None leaves it as it is.
            task: of both networks.

        Raises:
            DesignError: networks whose feature maps are wanted cannot be traced, or are not alike enough.
        """
        self._task = task
        self.weight = weight
        self.temperature = temperature
        self.feature_weight = feature_weight
        self.parts: dict[str, Tensor] = {}
        teacher.eval()
        self._teacher: Callable[[Tensor], Any] = (
            torch.compile(teacher, backend=torchcompile) if torchcompile else teacher
        )
        self._features: FeatureLoss | None = None
        if feature_weight > 0:
            self._features = FeatureLoss(module, teacher, examples, design, torchcompile)

    def loss(self, images: Tensor, outputs: Any, targets: Tensor) -> Tensor:
        """The weighted sum.

        Raises:
            ModelError: the teacher has other classes, or the network has not run with gradients.
            UsageError: outputs that are no logits, without a weight of feature maps.
        """
        with torch.no_grad():
            maps, taught = self._features.teach(images) if self._features else ([], self._teacher(images))
        outputs, taught = in_float32(outputs), in_float32(taught)
        with float32(images):
            parts = {"hard": self._task.loss(outputs, targets)}
            total = parts["hard"]
            logits = self._task.logits(outputs)
            if logits is not None:
                parts["soft"] = self._soft(logits, self._task.logits(taught))
                total = self.weight * parts["soft"] + (1 - self.weight) * parts["hard"]
        if self._features is not None:
            parts["features"] = self._features.loss(maps)
            total = total + self.feature_weight * parts["features"]
        elif "soft" not in parts:
            self._task.check_teaching(self.feature_weight)
        self.parts = {name: part.detach() for name, part in parts.items()}
        return total

    def _soft(self, logits: Tensor, taught: Tensor) -> Tensor:
        if taught.shape != logits.shape:
            raise ModelError(
                f"the teacher writes {list(taught.shape)}, the network {list(logits.shape)}; "
                "take a teacher of the same classes"
            )
        return soft_loss(logits, taught, self.temperature)

    def parameters(self) -> list[nn.Parameter]:
        """Weights of the projections."""
        return list(self._features.projections.parameters()) if self._features else []

    def state(self) -> dict[str, Tensor]:
        """Weights of the projections, by name."""
        return dict(self._features.projections.state_dict()) if self._features else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Takes over the projections' weights."""
        own = self.state()
        if {name: tensor.shape for name, tensor in own.items()} != {n: t.shape for n, t in state.items()}:
            raise ModelError(
                f"the checkpoint has the projections {', '.join(state) or 'none'}, this training {', '.join(own) or 'none'}; "
                "resume with the same network, teacher and kd_feature_weight"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def close(self) -> None:
        """Removes the hooks of the network."""
        if self._features is not None:
            self._features.close()
