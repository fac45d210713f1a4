"""Element types and the sizes of tensors."""

import onnx_ir as ir
import pytest

from nnstretch.devices.base.routine import Layout
from nnstretch.errors import ModelError
from nnstretch.graph.dtypes import ELEMENT_TYPES, element_type
from nnstretch.graph.layer import TensorType


@pytest.mark.parametrize("dtype", [d for d in ir.DataType if d != ir.DataType.UNDEFINED])
def test_every_type_of_onnx_has_a_row(dtype: ir.DataType) -> None:
    if dtype == ir.DataType.STRING:
        assert element_type("string").kind == "opaque"
        return
    row = element_type(dtype.numpy().name)
    assert row.bytes == row.storage.itemsize == dtype.numpy().itemsize


def test_codes_are_unique() -> None:
    codes = [row.code for row in ELEMENT_TYPES.values() if row.code]
    assert len(set(codes)) == len(codes)


def test_sizes_follow_the_type() -> None:
    shape = (2, 5, 3, 3)
    assert [TensorType(shape, name).bytes for name in ("int8", "float16", "float32", "int64")] == [90, 180, 360, 720]
    assert Layout(4).bytes(TensorType(shape, "int8")) == 2 * 8 * 9
    assert Layout(4, "float16").bytes(TensorType(shape)) == 2 * 2 * 8 * 9


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown element type 'int7'; known are float32, "):
        element_type("int7")
