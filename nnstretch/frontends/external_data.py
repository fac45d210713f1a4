"""Weights of an ONNX model in a file beside it, for models of more than 2 GiB."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.external_data_helper import set_external_data

from nnstretch.errors import FileError
from nnstretch.support.settings import atomic_write

_SMALLEST = 1 << 10
"""Bytes of a weight from which on it is moved; readers of shapes and scalars look for them in the message."""
_ALIGNMENT = 1 << 12
"""Bytes: a page, so that readers can map a weight into memory."""


def write_weights(proto: onnx.ModelProto, path: Path) -> None:
    """Moves the large weights of a message to `PATH.data`, in the folder of the ONNX file that will refer to them.

    Where both files exist, the old ONNX file is deleted before its weights are replaced: it would read those of `proto`.

    Args:
        proto: its weights are replaced by references.
        path: of the ONNX file, which the caller writes next.

    Raises:
        FileError: the place cannot be written.
    """
    data = path.with_name(f"{path.name}.data")
    with atomic_write(data) as file:
        for tensor in proto.graph.initializer:
            size = len(tensor.raw_data)
            if size < _SMALLEST:
                continue
            file.write(bytes(-file.tell() % _ALIGNMENT))
            set_external_data(tensor, data.name, file.tell(), size)
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
        if data.exists():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise FileError(f"cannot replace {path}: {error.strerror}; choose another place with -o") from error
