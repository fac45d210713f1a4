"""Int8 forms of float32 layers, against what a quantiser makes of the same network."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.torch_module import export
from nnstretch.graph.int8_form import int8_form
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import run_layer
from nnstretch.passes import optimize
from nnstretch.quantization import quantize


class Various(nn.Module):
    """Residuals, grouped convolutions, pools, a concatenation, and activations that clip or do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.inner, self.outer = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.depthwise, self.pointwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 32, 1)
        self.beside, self.head = nn.Conv2d(32, 32, 1), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.outer(torch.relu(self.inner(x))))
        x = functional.silu(self.pointwise(functional.relu6(self.depthwise(x))))
        x = functional.max_pool2d(x, 2)
        x = functional.avg_pool2d(torch.cat([x, self.beside(x)], 1), 2)
        result: torch.Tensor = self.head(x.mean((2, 3)))
        return result


def layers_of(network: nn.Module, image: torch.Tensor, folder: Path) -> tuple[list[Layer], list[Layer]]:
    """The layers of a network in float32, and in int8."""
    model = export(network.eval(), image)
    quantize(model, [{str(model.graph.inputs[0].name): image.numpy()}], folder / "int8.onnx")
    floats, integers = (optimize(one) for one in (model, load(folder / "int8.onnx")))
    return [node.layer for node in layers(floats)], [node.layer for node in layers(integers)]


def test_forms_are_the_layers_of_the_quantised_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    floats, integers = layers_of(Various(), torch.randn(1, 3, 32, 32), tmp_path)
    forms = [form.workload for layer in floats for form in int8_form(layer)]
    wanted = [layer.workload for layer in integers if layer.op not in ("Quantize", "Dequantize")]
    assert Counter(forms) == Counter(wanted)
    assert any(layer.has(3) for layer in floats if layer.op == "Conv")


def test_results_of_forms_fill_their_range() -> None:
    """Routines are checked by their results before they may win: these must not all be clipped to one number."""
    torch.manual_seed(0)
    model = optimize(export(nn.Sequential(nn.Conv2d(64, 32, 3, 1, 1)), torch.randn(1, 64, 8, 8)))
    (form,) = int8_form(layers(model)[0].layer)
    feed = np.random.default_rng(0).integers(-128, 128, (1, 64, 8, 8), np.int8)
    (found,) = run_layer(form, feed)
    assert found.dtype == np.int8
    assert found.std() > 20
    assert np.isin(found, (-128, 127)).mean() < 0.2


def test_a_layer_without_a_form_is_rounded_before_and_after(tmp_path: Path) -> None:
    floats, _ = layers_of(nn.Sequential(nn.LayerNorm(16)), torch.randn(1, 8, 16), tmp_path)
    assert [layer.op for layer in int8_form(floats[0])] == ["Dequantize", "LayerNorm", "Quantize"]
