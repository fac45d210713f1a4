"""Counting right answers, for modules and for functions on arrays."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nnstretch.errors import ModelError
from nnstretch.training.data.split import ArraySplit
from nnstretch.training.evaluation.accuracy import top1


def numbers() -> ArraySplit:
    """Ten images whose first pixel is their label, 0 … 3 in turn."""
    labels = np.arange(10) % 4
    return ArraySplit(np.broadcast_to(labels.astype(np.float32).reshape(-1, 1, 1, 1), (10, 1, 8, 8)), labels)


class Reader(nn.Module):
    """Right but for images of class 3; in training mode always wrong."""

    def forward(self, x: Tensor) -> Tensor:
        label = x[:, 0, 0, 0].long() % 3
        return nn.functional.one_hot((label + int(self.training)) % 4, 4).float()


def test_a_module_is_evaluated_in_evaluation_mode_and_put_back() -> None:
    reader = Reader().train()
    assert top1(reader, numbers(), 4, batch=3) == pytest.approx(80.0)
    assert reader.training


@pytest.mark.parametrize("batch", [1, 4, 10, 16])
def test_a_function_always_gets_whole_batches(batch: int) -> None:
    reader = Reader().eval()
    shapes = set()

    def predict(images: NDArray[np.float32]) -> NDArray[np.float32]:
        assert images.dtype == np.float32
        assert images.flags.c_contiguous
        shapes.add(images.shape)
        logits: NDArray[np.float32] = reader(torch.from_numpy(images)).numpy()
        return logits

    assert top1(predict, numbers(), 4, batch) == pytest.approx(80.0)
    assert shapes == {(batch, 1, 8, 8)}


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\[2, 5\].*\[2, 4\]"):
        top1(lambda images: np.zeros((len(images), 5), dtype=np.float32), numbers(), 4, batch=2)
