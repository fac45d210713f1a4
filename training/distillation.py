"""The loss of a student that learns from labels and from a teacher.

Method: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (arXiv:1503.02531), section 2.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def hard_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy of ``logits`` (``N x classes``) against ``labels`` (int64, ``N``)."""
    return functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)


def soft_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Mean over the batch of KL(teacher || student), both softened by ``temperature``, times its square.

    The square keeps the gradient's size independent of the temperature. Both tensors are ``N x classes``; the teacher
    gets no gradient.
    """
    student = functional.log_softmax(logits / temperature, dim=1)
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, dim=1)
    divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2


def distillation_loss(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    *,
    weight: float,
    temperature: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """``weight`` of the soft loss and ``1 - weight`` of the hard one."""
    soft = soft_loss(logits, teacher_logits, temperature)
    return weight * soft + (1 - weight) * hard_loss(logits, labels, label_smoothing)
