"""The losses against values and gradients worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from nnstretch.training.augmentation import smoothed
from nnstretch.training.distillation.objectives import Distillation, soft_loss
from nnstretch.training.tasks.classification import CLASSIFICATION


class Teacher(nn.Module):
    """Writes given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def example() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    return student, teacher, torch.tensor([0, 3, 1, 1, 2])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("weight", [0.0, 0.7, 1.0])
def test_the_gradient_is_the_one_worked_out_by_hand(temperature: float, weight: float) -> None:
    student, teacher, labels = example()
    objective = Distillation(nn.Identity(), Teacher(teacher), student, weight=weight, temperature=temperature)
    loss = objective.loss(student, student, labels)
    torch.autograd.backward([loss])
    # d KL / d z = (softmax(z / T) - softmax(t / T)) / T, times T^2, as a mean over the batch.
    with torch.no_grad():
        soft = temperature * ((student / temperature).softmax(1) - (teacher / temperature).softmax(1)) / 5
        hard = (student.softmax(1) - torch.eye(4, dtype=torch.float64)[labels]) / 5
    assert student.grad is not None
    expected = weight * soft + (1 - weight) * hard
    torch.testing.assert_close(student.grad, expected, rtol=1e-4, atol=1e-6)  # losses are float32
    assert teacher.grad is None


def test_the_soft_loss_is_the_divergence_written_out() -> None:
    student, teacher, _ = example()
    p, q = (teacher / 2).softmax(1), (student / 2).softmax(1)
    expected = 4 * (p * (p / q).log()).sum() / 5
    torch.testing.assert_close(soft_loss(student, teacher, 2.0), expected)
    assert float(soft_loss(teacher, teacher, 2.0).detach()) == pytest.approx(0, abs=1e-12)


def test_smoothed_labels_spread_their_share() -> None:
    student, _, labels = example()
    target = 0.8 * torch.eye(4, dtype=torch.float64)[labels] + 0.2 / 4
    expected = -(target * student.log_softmax(1)).sum() / 5
    torch.testing.assert_close(
        CLASSIFICATION.loss(student, smoothed(labels, 0.2, 4).double()), expected, rtol=1e-6, atol=0
    )
