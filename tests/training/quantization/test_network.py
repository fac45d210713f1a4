"""Networks in quantisation-aware training compute what their int8 files do."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import shape_inference
from torch import Tensor, nn

import nnstretch as nns
from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.resolve import load_any
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.quantization.runs import open_run
from nnstretch.training.quantization import QuantizedNetwork, quantization_aware
from nnstretch.training.quantization.network import structure
from nnstretch.training.quantization.rounding import ActivationQuantizer
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import fill
from nnstretch.zoo.blocks import Parallel, Residual, conv_bn
from tests.kits.graphs.quantized_networks import QuantizedNetwork as RandomNetwork
from tests.kits.networks.tiny_branching import SIDE, branched

RECIPE = Recipe(qat=True, amp_dtype="float32")
EMA = Recipe(qat=True, amp_dtype="float32", qat_ranges="ema")
IMAGE = torch.zeros(1, 3, 12, 12)


class Preactivated(nn.Module):
    """A batch norm that no convolution before it takes up, and a constant that is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scale = nn.BatchNorm2d(16), nn.Parameter(torch.rand(1, 16, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.relu(self.norm(x)) * self.scale
        return y


def network(*more: nn.Module, seed: int = 0) -> nn.Sequential:
    """Residuals, depthwise convolutions, a concat, pools and both kinds of ReLU, with statistics of a training."""
    torch.manual_seed(seed)
    depthwise = nn.Sequential(
        conv_bn(8, 16, 1, activation=nn.ReLU6),
        conv_bn(16, 16, 3, groups=16, activation=nn.ReLU6),
        conv_bn(16, 8, 1, activation=None),
    )
    made = nn.Sequential(
        *conv_bn(3, 8, 3, stride=2), Residual(depthwise, nn.Identity(), nn.Identity()),
        Parallel(conv_bn(8, 8, 1), nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(8, 8, 3))), *more,
        Residual(conv_bn(16, 16, 3, activation=None), conv_bn(16, 16, 1, activation=None), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    with torch.no_grad():
        for _ in range(30):
            made.train()(torch.randn(16, 3, 12, 12))
    return made.eval()


def feeds(count: int = 8) -> Iterator[Mapping[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield {"input": rng.standard_normal((1, 3, 12, 12)).astype(np.float32)}


def trained(made: QuantizedNetwork, steps: int = 5) -> QuantizedNetwork:
    """After some steps on random targets, with a large rate."""
    torch.manual_seed(2)
    optimiser = torch.optim.SGD([weight for weight in made.parameters() if weight.requires_grad], lr=0.05)
    made.train()
    for _ in range(steps):
        loss = (made(torch.randn(8, 3, 12, 12)) - torch.randn(8, 5)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return made.eval()


def largest_difference(made: QuantizedNetwork, file: Path, images: np.ndarray) -> float:
    """Between the outputs of a network and its file, in steps of the file's last QuantizeLinear."""
    *_, last = (node for node in load(file).graph if node.op_type == "QuantizeLinear")
    assert last.inputs[1] is not None
    assert last.inputs[1].const_value is not None
    run, step = open_run(file), float(last.inputs[1].const_value.numpy())
    name = str(load(file).graph.inputs[0].name)
    wanted = np.concatenate([run({name: image[None]})[0] for image in images])
    with torch.no_grad():
        return float(np.abs(made(torch.from_numpy(images)).numpy() - wanted).max()) / step


@pytest.mark.parametrize("recipe", [RECIPE, EMA], ids=["learned", "ema"])
@pytest.mark.parametrize("more", [(), (Preactivated(),)], ids=["folded", "preactivated"])
def test_the_file_answers_as_the_trained_network(recipe: Recipe, more: tuple[nn.Module, ...], tmp_path: Path) -> None:
    made = trained(quantization_aware(network(*more), feeds(), recipe, IMAGE))
    counts = nns.quantize(made, None, tmp_path / "q.onnx")
    assert counts.int8 > 8
    images = np.random.default_rng(3).standard_normal((50, 3, 12, 12)).astype(np.float32)
    assert largest_difference(made, tmp_path / "q.onnx", images) < 1.01


def test_ranges_that_follow_the_batches_keep_the_activation_functions() -> None:
    """Where saturation stands for a ReLU or ReLU6, values before it must not widen the range."""
    original = network()
    made = quantization_aware(original, feeds(), EMA, IMAGE).train()
    torch.manual_seed(4)
    with torch.no_grad():
        for _ in range(100):
            made(3 * torch.randn(16, 3, 12, 12))
        images = torch.randn(16, 3, 12, 12)
        difference = (made.eval()(images) - original(images)).norm() / original(images).norm()
    assert difference < 0.2
    lows = [float(layer.low) for layer in made.modules() if isinstance(layer, ActivationQuantizer)]
    assert 4 <= lows.count(0.0) < len(lows)


def test_scales_of_the_file_are_those_of_the_network(tmp_path: Path) -> None:
    made = trained(quantization_aware(network(), feeds(), RECIPE, IMAGE))
    nns.quantize(made, None, tmp_path / "q.onnx")
    nodes = [node for node in load(tmp_path / "q.onnx").graph if node.op_type == "QuantizeLinear"]
    stored = {float(node.inputs[1].const_value.numpy()) for node in nodes}
    quantizers = [layer for layer in made.modules() if isinstance(layer, ActivationQuantizer)]
    assert stored == {layer.parameters_of_file[0] for layer in quantizers}
    assert stored.isdisjoint({float(layer.first_scale) for layer in quantizers})


def test_untrained_it_is_the_calibrated_file(tmp_path: Path) -> None:
    nns.quantize(network(), feeds(), tmp_path / "calibrated.onnx", IMAGE)
    nns.quantize(quantization_aware(network(), feeds(), RECIPE, IMAGE), None, tmp_path / "q.onnx")
    calibrated, mine = (load(tmp_path / name).graph for name in ("calibrated.onnx", "q.onnx"))
    assert [node.op_type for node in calibrated] == [node.op_type for node in mine]
    for name, value in calibrated.initializers.items():
        np.testing.assert_array_equal(value.const_value.numpy(), mine.initializers[name].const_value.numpy())


def test_weights_make_the_network_again(tmp_path: Path) -> None:
    """From a graph with other weights, constants that are not trained included."""
    made = trained(quantization_aware(network(Preactivated()), feeds(), RECIPE, IMAGE))
    again = structure(load_any(network(Preactivated(), seed=5), IMAGE), made.settings)
    fill(again, made.state_dict(), "the weights")
    nns.quantize(again, None, tmp_path / "q.onnx")
    images = np.random.default_rng(3).standard_normal((20, 3, 12, 12)).astype(np.float32)
    assert largest_difference(made, tmp_path / "q.onnx", images) < 1.01
    copied = copy.deepcopy(made)  # as evaluations between epochs do
    assert torch.equal(copied(torch.from_numpy(images)), made(torch.from_numpy(images)))


def test_layers_that_stay_in_float32_are_trained_unrounded(tmp_path: Path) -> None:
    recipe = Recipe(qat=True, amp_dtype="float32", qat_keep_float="heads")
    made = trained(quantization_aware(network(), feeds(), recipe, IMAGE))
    counts = nns.quantize(made, None, tmp_path / "q.onnx")
    assert counts.others >= 1
    run = open_run(tmp_path / "q.onnx")
    image = next(feeds())["input"]
    np.testing.assert_allclose(
        made(torch.from_numpy(image)).detach().numpy(), run({"input": image})[0], rtol=0.02, atol=0.02
    )
    assert any(name.endswith("weight") and weight.requires_grad for name, weight in made.named_parameters())


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_random_networks(seed: int) -> None:
    """Of ONNX files; what torch has no counterpart for is refused."""
    made_up = RandomNetwork(seed)
    rng = np.random.default_rng(seed)
    examples = [{"x": rng.standard_normal(made_up.input.shape).astype(np.float32)} for _ in range(4)]
    model = ir.from_proto(shape_inference.infer_shapes(made_up.floating, strict_mode=True))
    quantization_aware(model, examples, RECIPE).check(examples[1])


def test_what_is_quantised_already_or_named_wrongly_is_refused(tmp_path: Path) -> None:
    made = quantization_aware(network(), feeds(), RECIPE, IMAGE)
    nns.quantize(made, None, tmp_path / "q.onnx")
    with pytest.raises(ModelError, match="quantised already"):
        quantization_aware(load(tmp_path / "q.onnx"), feeds(), RECIPE)
    with pytest.raises(UsageError, match="ranges of its training"):
        nns.quantize(made, feeds(), tmp_path / "other.onnx")
    with pytest.raises(UsageError, match="calibration data; give data"):
        nns.quantize(network(), None, tmp_path / "other.onnx", IMAGE)
    with pytest.raises(UsageError, match="no layer is called 'nothing'"):
        quantization_aware(network(), feeds(), Recipe(qat=True, amp_dtype="float32", qat_keep_float="nothing"), IMAGE)


def test_a_branched_network_is_trained_like_any_other(tmp_path: Path) -> None:
    images = np.random.default_rng(3).standard_normal((20, 1, SIDE, SIDE)).astype(np.float32)
    built, image = branched(0.5), torch.zeros(1, 1, SIDE, SIDE)
    name = str(load_any(built, image).graph.inputs[0].name)
    made = quantization_aware(built, [{name: one[None]} for one in images], RECIPE, image)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(0.97)
    nns.quantize(made, None, tmp_path / "q.onnx")
    assert largest_difference(made, tmp_path / "q.onnx", images) < 1.01
    convolutions = [node for node in load(tmp_path / "q.onnx").graph if node.op_type == "Conv"]
    assert {node.metadata_props.get(PLACEMENT_KEY) for node in convolutions} == {"0", "1"}
