"""The loss of a network's feature maps against a teacher's, at every meeting point.

Method: hints, as in Romero et al., "FitNets: Hints for Thin Deep Nets" (arXiv:1412.6550), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from nnstretch.branching.design.design import Design
from nnstretch.branching.tracing.trace import trace
from nnstretch.branching.transform.features import FeatureTaps, MeetingPointFeatures, stage_ends, stops_of, tap_places
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import ModelError
from nnstretch.frontends.modes import evaluating

_LEAST_VARIANCE = 1e-6
# A projection begins as the least-squares solution for this many pixels of the examples. The ridge is relative to the mean
# variance of the channels that it reads; channels per pixel are added to it, because few pixels determine little.
_FITTED_PIXELS = 4096
_RIDGE = 1e-2


class FeatureLoss:
    """The loss of a network's feature maps against a teacher's.

    Attributes:
        projections: for every meeting point the 1x1 convolution from the network's channels to the teacher's; an
            identity where channels stand for the teacher's channels.
    """

    def __init__(
        self,
        module: nn.Module,
        teacher: nn.Module,
        examples: Tensor,
        design: Design | None = None,
        torchcompile: str | None = None,
    ) -> None:
        """Finds the feature maps of both networks, and fits projections. The arguments are those of `Distillation`."""
        if design is None and isinstance(module, BranchedNetwork):
            design = module.design
        traced = trace(teacher, examples[:1])
        stops = stage_ends(traced) if design is None else stops_of(design)
        places = tap_places(module, examples[:1], None if design is None else stops)
        if len(places) != len(stops):
            raise ModelError(
                f"the network has {len(places)} stages, the teacher {len(stops)}; their feature maps cannot be compared: "
                "take a teacher of the same family, or train without feature maps (kd_feature_weight 0)"
            )
        stops = [stop for stop, place in zip(stops, places, strict=True) if place is not None]
        features = MeetingPointFeatures(traced, stops, whole=True)
        targets, _ = features.outputs(examples)
        self._origins: list[Tensor | None] = [None] * len(stops)
        if isinstance(module, BranchedNetwork):
            self._origins = [
                _channels(origins, target) for origins, target in zip(module.origins[1:], targets, strict=True)
            ]
            targets = self._matched(targets)
        self._variances = [float(target.float().var().clamp(min=_LEAST_VARIANCE)) for target in targets]
        self._taps = FeatureTaps([place for place in places if place is not None])
        found = self._of_examples(module, examples)
        matched = isinstance(module, BranchedNetwork)
        self.projections = nn.ModuleList(
            nn.Identity() if matched else _fitted(own, target) for own, target in zip(found, targets, strict=True)
        )
        _same_everywhere(list(self.projections.parameters()))
        if torchcompile is not None:
            features.layers.compile(backend=torchcompile)
        self._teacher = features

    def teach(self, images: Tensor) -> tuple[list[Tensor], Tensor]:
        """The teacher's feature maps at the meeting points, and its logits."""
        maps, logits = self._teacher.outputs(images)
        return maps, logits

    def loss(self, taught: Sequence[Tensor]) -> Tensor:
        """The loss of the network's last forward pass, against the teacher's feature maps for the same images."""
        losses = []
        for own, target, projection, variance in zip(
            self._taps.take(), self._matched(taught), self.projections, self._variances, strict=True
        ):
            projected = projection(own)
            if projected.shape[-2:] != target.shape[-2:]:  # the network has read smaller images
                target = functional.adaptive_avg_pool2d(target, projected.shape[-2:])
            with float32(projected):
                losses.append(functional.mse_loss(projected.float(), target.float()) / variance)
        return torch.stack(losses).mean()

    def close(self) -> None:
        """Removes the hooks of the network."""
        self._taps.close()

    def _matched(self, targets: Sequence[Tensor]) -> list[Tensor]:
        """The channels of the teacher's feature maps that the network's channels stand for."""
        return [
            target if origins is None else target.index_select(1, origins)
            for target, origins in zip(targets, self._origins, strict=True)
        ]

    def _of_examples(self, module: nn.Module, examples: Tensor) -> list[Tensor]:
        """The network's feature maps for the examples, in evaluation mode."""
        with evaluating(module), torch.enable_grad():
            module(examples)
        return [found.detach() for found in self._taps.take()]


def _channels(origins: Sequence[int], target: Tensor) -> Tensor | None:
    """The channels of `target` to compare with, on its device; None if they are all of them in their order."""
    if list(origins) == list(range(target.shape[1])):
        return None
    return torch.tensor(origins, device=target.device)


def _fitted(own: Tensor, target: Tensor) -> nn.Conv2d:
    """The 1x1 convolution that takes `own` closest to `target`, both `N,C,H,W`: ridge regression over some pixels.

    Raises:
        ModelError: heights or widths differ.
    """
    if own.shape[-2:] != target.shape[-2:]:
        raise ModelError(
            f"the network's feature map is {list(own.shape[-2:])}, the teacher's {list(target.shape[-2:])} at the same stage; "
            "take a teacher of the same family, or train without feature maps (kd_feature_weight 0)"
        )
    x, y = (tensor.movedim(1, -1).flatten(0, -2) for tensor in (own, target))
    chosen = torch.linspace(0, len(x) - 1, min(len(x), _FITTED_PIXELS), device=x.device).long()
    x, y = (tensor[chosen].cpu().double() for tensor in (x, y))
    x_mean, y_mean = x.mean(0), y.mean(0)
    gram = (x - x_mean).T @ (x - x_mean)
    ridge = (_RIDGE + own.shape[1] / len(x)) * gram.diagonal().mean().clamp(min=_LEAST_VARIANCE)
    weight = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), (x - x_mean).T @ (y - y_mean)).T
    projection = nn.Conv2d(own.shape[1], target.shape[1], 1, device=own.device)
    with torch.no_grad():
        projection.weight.copy_(weight[:, :, None, None])
        assert projection.bias is not None
        projection.bias.copy_(y_mean - weight @ x_mean)
    return projection


def _same_everywhere(parameters: Sequence[nn.Parameter]) -> None:
    """Keeps weights that are in no DistributedDataParallel equal in all processes: equal at first, with mean gradients."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return

    def average(parameter: Tensor) -> None:
        # Averaging again what earlier batches of the same step have left in all processes does not change it.
        distributed.all_reduce(parameter.grad)
        assert parameter.grad is not None
        parameter.grad /= distributed.get_world_size()

    for parameter in parameters:
        distributed.broadcast(parameter.detach(), src=0)
        parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]


@contextmanager
def float32(tensor: Tensor) -> Iterator[None]:
    """Turns autocast off on the device of `tensor`."""
    with torch.autocast(tensor.device.type, enabled=False):
        yield
