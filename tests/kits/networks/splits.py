"""Splits of images for tests."""

from nnstretch.training.data.preprocessing import Images
from nnstretch.training.data.split import Indices, TensorImages


class UntouchableSplit(TensorImages):
    """A test split that fails when it is read: nothing that selects may do so."""

    @property
    def labels(self) -> Indices:
        raise AssertionError("the labels of the test images were read")

    def __len__(self) -> int:
        raise AssertionError("the test images were counted")

    def arrays(self, indices: Indices) -> Images:
        raise AssertionError(f"test images {indices.tolist()} were read")
