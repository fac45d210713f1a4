"""A teacher's feature maps in the loss: which ones, against values worked out by hand, and around compilers and processes."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.features import FeatureTaps, tap_places
from nnstretch.errors import DesignError, ModelError, StoppedError
from nnstretch.training.data.split import ArraySplit, Dataset
from nnstretch.training.distillation.objectives import Distillation, TargetObjective
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import read_tensors
from tests.kits.networks.splits import UntouchableSplit
from tests.kits.networks.tiny_branching import CLASSES, SIDE, block, branched, original
from tests.kits.processes.forks import run_in_group

WEIGHT, TEMPERATURE, FEATURES = 0.7, 3.0, 2.0


def images(count: int = 8, side: int = SIDE) -> Tensor:
    return torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(5))


def targets(count: int = 8) -> Tensor:
    return torch.arange(count) % CLASSES


def control(share: float = 0.6) -> nn.Module:
    """The original in another width."""
    macs = {0.6: 300_000, 1.0: 500_000}[share]
    return single_branch_control(original(), images(1), macs, 4).train()


def distillation(student: nn.Module, teacher: nn.Module | None = None, **more: Any) -> Distillation:
    return Distillation(
        student,
        teacher or original(),
        images(),
        weight=WEIGHT,
        temperature=TEMPERATURE,
        feature_weight=FEATURES,
        **more,
    )


def loss_of(objective: Distillation, student: nn.Module, batch: Tensor | None = None) -> Tensor:
    batch = images() if batch is None else batch
    return objective.loss(batch, student(batch), targets(len(batch)))


def test_the_loss_is_the_one_worked_out_by_hand() -> None:
    """Channels of a branched network are compared to those that they stand for."""
    student, teacher, batch = branched(0.5).train(), original(), images()
    objective = distillation(student, teacher)
    loss = loss_of(objective, student)
    with torch.no_grad():
        copied = copy.deepcopy(branched(0.5)).train()
        first, taught_first = copied.segments[0](batch), teacher[:2](batch)
        second, taught_second = copied.segments[1](first), teacher[:5](batch)
        logits, taught = copied.head(second), teacher(batch)
        features = [
            functional.mse_loss(own, whole[:, list(origins)]) / whole[:, list(origins)].var()
            for own, whole, origins in zip(
                (first, second), (taught_first, taught_second), copied.origins[1:], strict=True
            )
        ]
        p, q = (taught / TEMPERATURE).softmax(1), (logits / TEMPERATURE).softmax(1)
        soft = TEMPERATURE**2 * (p * (p / q).log()).sum() / len(batch)
        hard = functional.cross_entropy(logits, targets())
    expected = {"hard": hard, "soft": soft, "features": sum(features) / 2}
    for name, value in expected.items():
        torch.testing.assert_close(objective.parts[name], torch.as_tensor(value))
    torch.testing.assert_close(
        loss.detach(), WEIGHT * soft + (1 - WEIGHT) * hard + FEATURES * torch.as_tensor(expected["features"])
    )
    assert objective.parameters() == []
    assert objective.state() == {}


def test_branches_of_full_width_compute_the_teachers_feature_maps() -> None:
    student = branched(1.0).eval()
    objective = distillation(student)
    loss_of(objective, student)
    assert float(objective.parts["features"]) < 1e-6


def test_gradients_reach_the_network_and_not_the_teacher() -> None:
    student, teacher = branched(0.5).train(), original().train()
    objective = Distillation(student, teacher, images(), weight=1.0, temperature=1e3, feature_weight=1.0)
    assert not teacher.training
    torch.autograd.backward([loss_of(objective, student)])
    assert all(float(p.grad.abs().max()) > 0 for p in student.segments.parameters() if p.grad is not None)
    assert sum(p.grad is not None for p in student.segments.parameters()) > 10
    assert all(p.grad is None for p in teacher.parameters())


def test_other_widths_are_projected_and_projections_learn() -> None:
    student = control()
    objective = distillation(student)
    projections = objective.parameters()
    assert [p.shape[0] for p in projections] == [16, 16, 32, 32]
    optimiser = torch.optim.SGD([*student.parameters(), *projections], lr=0.02)
    loss_of(objective, student.eval())
    assert float(objective.parts["features"]) < 1, "the projections begin with the least squares"
    student.train()
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        torch.autograd.backward([loss_of(objective, student)])
        optimiser.step()
        losses.append(float(objective.parts["features"]))
    assert losses[-1] < 0.8 * losses[0]


def test_the_state_goes_on_elsewhere() -> None:
    first, second = distillation(control()), distillation(control())
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1)
    second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    for state in ({}, {"0.weight": torch.zeros(1)}):
        with pytest.raises(ModelError, match="kd_feature_weight"):
            first.restore(state)
    with pytest.raises(ModelError, match="none"):
        TargetObjective().restore(first.state())


def test_evaluations_between_passes_do_not_disturb() -> None:
    student = branched(0.5).train()
    objective = distillation(student)
    logits = student(images())
    copied = copy.deepcopy(student)
    with torch.no_grad():
        copied.eval()(images(3))
    before = objective.loss(images(), logits, targets())
    assert torch.isfinite(before)
    with pytest.raises(ModelError, match="run it with gradients"):
        objective.loss(images(), logits, targets())
    objective.close()
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in student.modules())


def test_smaller_images_are_compared_at_their_resolution() -> None:
    student = branched(1.0).eval()
    objective = distillation(student)
    small = functional.interpolate(images(), size=(6, 6))
    assert torch.isfinite(objective.loss(images(), student(small), targets()))
    assert float(objective.parts["features"]) > 0


def test_soft_targets() -> None:
    student = branched(0.5).train()
    logits = student(images())
    mixed = 0.3 * functional.one_hot(targets(), CLASSES) + 0.7 * functional.one_hot(targets().flip(0), CLASSES)
    loss = TargetObjective().loss(images(), logits, mixed)
    torch.testing.assert_close(loss, -(mixed * logits.log_softmax(1)).sum(1).mean())


def test_losses_are_float32_under_autocast() -> None:
    student = control()
    objective = distillation(student)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(objective, student)
    assert loss.dtype == torch.float32
    torch.autograd.backward([loss])
    assert all(p.grad is not None for p in objective.parameters())


@pytest.mark.parametrize("made", [lambda: branched(0.5).train(), control], ids=["branched", "control"])
def test_compiled_networks_have_the_same_gradients(made: Callable[[], nn.Module]) -> None:
    gradients = []
    for compiled in (False, True):
        student = made()
        objective = distillation(student, torchcompile="eager" if compiled else None)
        if compiled:
            student.compile(backend="aot_eager")
        for _ in range(2):  # a second pass finds the first one's feature maps
            student.zero_grad()
            torch.autograd.backward([loss_of(objective, student)])
        gradients.append([p.grad for p in (*student.parameters(), *objective.parameters())])
    for plain, fast in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, fast)


def _in_processes(rank: int, count: int, folder: str) -> None:
    student = control().eval()  # batch norms of one batch, or of two halves, would differ
    objective = distillation(student)
    parallel = nn.parallel.DistributedDataParallel(student)
    share = slice(rank * 8 // count, (rank + 1) * 8 // count)
    for _ in range(2):
        batch = images()[share]
        torch.autograd.backward([objective.loss(batch, parallel(batch), targets()[share])])
    if rank == 0:
        found = [p.grad for p in (*student.parameters(), *objective.parameters())]
        torch.save(found, Path(folder) / "gradients")


def test_processes_have_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    run_in_group(_in_processes, 2, str(tmp_path))
    student = control().eval()
    objective = distillation(student)
    for _ in range(2):
        torch.autograd.backward([loss_of(objective, student)])
    expected = [p.grad for p in (*student.parameters(), *objective.parameters())]
    for found, wanted in zip(torch.load(tmp_path / "gradients"), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_other_classes_and_other_families_are_refused() -> None:
    student = branched(0.5).train()
    teacher = original()
    teacher[-1] = nn.Linear(32, CLASSES + 1)
    objective = Distillation(student, teacher, images())
    with pytest.raises(ModelError, match="same classes"):
        loss_of(objective, student)
    for other in (
        nn.Sequential(block(1, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
        nn.Sequential(block(1, 8, 2), block(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
    ):
        with pytest.raises(ModelError, match="same family"):
            distillation(other)
    with pytest.raises(DesignError, match="blocks"):
        distillation(student, nn.Sequential(block(1, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)))


class Residual(nn.Module):
    """A residual block that begins as an identity; the activation after it changes tensors in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.norm(self.conv(functional.relu(x)))
        return x + change


class Residuals(nn.Module):
    """Stages of residual blocks; the tensor after the first stage is read by two modules, and by one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(1, 8)
        self.first = nn.Sequential(Residual(8), nn.Dropout(0.5), Residual(8))
        self.second = nn.Sequential(block(8, 16, 2), Residual(16))
        self.head = nn.Linear(16, CLASSES)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(self.stem(x)))
        logits: Tensor = self.head(self.relu(x).mean((2, 3)))
        return logits


def test_feature_maps_are_found_where_blocks_begin_as_identities() -> None:
    """The end of a stage is meant, not a block before it with the same values, and no tensor that changes later."""
    network = Residuals().train()
    places = [place for place in tap_places(network, images(1)) if place is not None]
    taps = FeatureTaps(places)
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.weight.fill_(0.5)
    network.eval()
    network(images())
    first, second = taps.take()
    with torch.no_grad():
        wanted = network.first(network.stem(images()))
        torch.testing.assert_close(first.detach(), wanted)
        after = network.second(wanted)
    assert torch.equal(second.detach(), after) or torch.equal(second.detach(), after.relu())


def test_trainings_with_projections_go_on_bit_for_bit(tmp_path: Path) -> None:
    """Projections and their momentum are in the checkpoint."""
    rng = np.random.default_rng(0)

    def split(count: int) -> ArraySplit:
        return ArraySplit(rng.standard_normal((count, 1, SIDE, SIDE)).astype(np.float32), np.arange(count) % CLASSES)

    names = tuple(map(str, range(CLASSES)))
    dataset = Dataset("noise", CLASSES, 1, SIDE, names, (0.0,), (1.0,), split(32), split(10), UntouchableSplit())
    recipe = Recipe(
        epochs=2, batch_size=8, lr=0.01, kd_feature_weight=1.0, amp_dtype="float32", threads=1, workers=0,
        grad_accum_steps=2,
    )  # fmt: skip
    whole, request = control(), StopRequest("go on")
    train(whole, dataset, recipe, original(), run=RunOptions(tmp_path / "whole"))

    def stop(event: TrainingEvent) -> None:
        if event.step == 1:
            request.signal = signal.SIGINT

    with pytest.raises(StoppedError):
        train(control(), dataset, recipe, original(), stop, RunOptions(tmp_path / "parts"), request)
    resumed = control()
    train(resumed, dataset, recipe, original(), run=RunOptions(tmp_path / "parts", resume=True))
    assert all(map(torch.equal, whole.state_dict().values(), resumed.state_dict().values()))
    one, other = (read_tensors(RunOptions(tmp_path / name).last)[0] for name in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert [name for name in one if name.startswith("objective/")]
    assert not any(part._forward_hooks for part in resumed.modules())
