"""Segments of a network that learn by themselves, as the block-wise start trains them (`training.distillation.blockwise`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.training.loop.torch_settings import amp_dtype, autocast
from nnstretch.training.recipe import Recipe

_SCALER, _SCALER_KEYS = "scaler", ("scale", "_growth_tracker")

Features = Callable[[Tensor], Sequence[Tensor]]
"""From images to the teacher's feature maps by number; 0 is the images."""


@dataclass(frozen=True)
class FeatureView:
    """Some channels of one of the teacher's feature maps.

    Attributes:
        number: of the feature map.
        channels: its channels, in order: int64, on the device of the feature maps.
    """

    number: int
    channels: Tensor

    def of(self, features: Sequence[Tensor]) -> Tensor:
        """The view of a batch: `N x len(channels) x H x W`."""
        return features[self.number].index_select(1, self.channels)


@dataclass(frozen=True, eq=False)
class SegmentStudent:
    """A part of a network that learns by itself.

    Attributes:
        module: from the tensors that it reads to one tensor.
        reads: its inputs, in order.
        target: what it is to compute.
    """

    module: nn.Module
    reads: tuple[FeatureView, ...]
    target: FeatureView

    def loss(self, features: Sequence[Tensor]) -> Tensor:
        """Mean squared error over the variance of the target, for a batch of the teacher's feature maps."""
        target = self.target.of(features).float()
        found = self.module(*(view.of(features) for view in self.reads)).float()
        return functional.mse_loss(found, target) / target.var().clamp(min=1e-6)


def segment_students(network: BranchedNetwork) -> list[SegmentStudent]:
    """The segments of a branched network; feature map `i` is the original's at meeting point `i`."""
    device = next(network.parameters()).device
    views = [
        FeatureView(number, torch.tensor(origins, device=device)) for number, origins in enumerate(network.origins)
    ]
    return [
        SegmentStudent(segment, (views[number], *(views[skip] for skip in network.skips[number])), views[number + 1])
        for number, segment in enumerate(network.body)
    ]


class SegmentLearner:
    """A segment with its optimiser."""

    def __init__(self, student: SegmentStudent, recipe: Recipe, device: torch.device) -> None:
        self.student = student
        self._recipe = recipe
        self._device = device
        self._parameters = {n: p for n, p in student.module.named_parameters() if p.requires_grad}
        self._optimiser = torch.optim.Adam(self._parameters.values(), lr=recipe.blockwise_lr)
        self._scaler = torch.amp.GradScaler(device.type, enabled=amp_dtype(recipe, device) == torch.float16)

    def learn(self, features: Sequence[Tensor], rate: float) -> Tensor:
        """One step; the loss before it."""
        self.student.module.train()
        with autocast(self._recipe, self._device):
            loss = self.student.loss(features)
        torch.autograd.backward([self._scaler.scale(loss)])
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._scaler.step(self._optimiser)
        self._scaler.update()
        self._optimiser.zero_grad(set_to_none=True)  # nothing is left for the training after the start
        return loss.detach()

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state, `NAME/exp_avg` and so on, and that of the scaler of gradients."""
        found = self.empty_tensors()
        for name, parameter in self._parameters.items():
            for key, value in self._optimiser.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = value
        if self._scaler.is_enabled():
            state = self._scaler.state_dict()
            found[_SCALER] = torch.tensor([state[key] for key in _SCALER_KEYS], dtype=torch.float64)
        return found

    def empty_tensors(self) -> dict[str, Tensor]:
        """The optimiser's state before the first step."""
        found = {
            f"{name}/{key}": torch.zeros_like(parameter) if key != "step" else torch.zeros(())
            for name, parameter in self._parameters.items()
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
        if self._scaler.is_enabled():
            found[_SCALER] = torch.zeros(len(_SCALER_KEYS), dtype=torch.float64)
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over what `tensors` returned."""
        for name, parameter in self._parameters.items():
            saved = {key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            own: dict[str, Tensor] = {"step": saved["step"].clone().cpu()}
            for key in ("exp_avg", "exp_avg_sq"):
                own[key] = torch.empty_like(parameter.detach()).copy_(saved[key])
            self._optimiser.state[parameter] = own
        if self._scaler.is_enabled():
            scale, tracker = tensors[_SCALER].tolist()
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)})


def segment_losses(students: Sequence[SegmentStudent], features: Sequence[Tensor]) -> tuple[list[float], list[int]]:
    """For every segment, its loss in evaluation mode and the number of its floating-point operations."""
    losses, costs = [], []
    for student in students:
        student.module.eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            losses.append(float(student.loss(features)))
        costs.append(counter.get_total_flops())
    return losses, costs


def owners_of(costs: Sequence[int], processes: int) -> list[int]:
    """The process that trains each segment: the largest first, each by the process that has the least to do."""
    work = [0] * processes
    owners = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        owner = work.index(min(work))
        owners[number] = owner
        work[owner] += costs[number]
    return owners
