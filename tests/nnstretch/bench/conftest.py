"""The network that engines and designs are compared on."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from nnstretch.frontends.torch_module import export
from tests.kits.networks.two_stages import IMAGE, two_stages


@pytest.fixture(scope="module")
def graph() -> ir.Model:
    return export(two_stages(), torch.zeros(IMAGE))
