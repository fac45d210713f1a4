"""Resize of ONNX as a module of torch, for the modes that torch's own resizing does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from nnstretch.errors import first_line
from nnstretch.frontends.torch_from_onnx.builder import UnsupportedError
from nnstretch.support.onnxruntime_errors import refusals

Attribute = str | int | float | list[int] | list[float]
"""Of an ONNX node."""
_OPSET = 19
"""First operator set with all attributes of Resize."""
_AXES = [2, 3]


class ResizedMap(nn.Module):
    """Resizes the height and width of maps, as ONNX's Resize does, in any mode.

    Every mode but cropping is linear and acts on each axis by itself, so a matrix per axis computes it. They are what ONNX
    Runtime makes of the identity. Exports to ONNX have the operator itself.

    Attributes:
        before, after: height and width of the maps read and written.
        scales: of both, as the file states them; None: the quotients of sizes.
        attributes: of the operator, without `axes`.
    """

    def __init__(
        self,
        before: tuple[int, ...],
        after: tuple[int, ...],
        scales: tuple[float, ...] | None,
        attributes: Mapping[str, Attribute],
    ) -> None:
        super().__init__()
        self.before, self.after, self.scales, self.attributes = before, after, scales, dict(attributes)
        self._rows = torch.from_numpy(self._matrix(0))
        self._columns = torch.from_numpy(self._matrix(1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, OH, OW)."""
        if torch.onnx.is_in_onnx_export():
            return self._operator(x)
        return torch.matmul(self._rows.to(x), torch.matmul(x, self._columns.to(x).mT))

    def extra_repr(self) -> str:
        return f"{self.before} to {self.after}, {self.scales or 'by size'}, {self.attributes}"

    def _operator(self, x: Tensor) -> Tensor:
        """The operator of ONNX, in an export."""
        if self.scales is None:
            extents: Sequence[Tensor | None] = (None, None, torch.tensor(self.after))
        else:
            extents = (None, torch.tensor(self.scales, dtype=torch.float32))
        made: Tensor = torch.onnx.ops.symbolic(
            "Resize",
            (x, *extents),
            {**self.attributes, "axes": _AXES},
            dtype=x.dtype,
            shape=(*x.shape[:2], *self.after),
        )
        return made

    def _matrix(self, axis: int) -> np.ndarray:
        """The matrix of an axis, float32, shape (after, before)."""
        import onnxruntime

        size, result = self.before[axis], self.after[axis]
        if self.scales is None:
            extent, inputs = np.array([result], np.int64), ["x", "", "", "extent"]
        else:
            extent, inputs = np.array([self.scales[axis]], np.float32), ["x", "", "extent"]
        attributes: dict[str, Any] = {**self.attributes, "axes": [2]}
        node = onnx.helper.make_node("Resize", inputs, ["y"], **attributes)
        kind, shape = onnx.TensorProto.FLOAT, (1, 1, size, size)
        graph = onnx.helper.make_graph(
            [node],
            "axis",
            [onnx.helper.make_tensor_value_info("x", kind, shape)],
            [onnx.helper.make_tensor_value_info("y", kind, None)],
            [onnx.numpy_helper.from_array(extent, "extent")],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except refusals() as error:
            raise UnsupportedError(f"ONNX Runtime does not compute it ({first_line(error)})") from error
        identity = np.eye(size, dtype=np.float32).reshape(shape)
        made: np.ndarray = session.run(None, {"x": identity})[0][0, 0]
        return made
