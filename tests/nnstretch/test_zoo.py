"""The zoo against published figures, and the properties that the rest of the project relies on."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from nnstretch import zoo
from nnstretch.branching.accounting import count_macs, count_parameters
from nnstretch.errors import ModelError
from nnstretch.zoo.blocks import Residual

# Parameters to the unit and rounded GMACs, as torchvision documents them; EfficientNet-Lite4's as timm does.
_PUBLISHED = {
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "vgg16": (138_357_544, 15.47),
    "mobilenetv2": (3_504_872, 0.30),
    "regnet_x_1_6gf": (9_190_136, 1.60),
    "efficientnet_lite4": (13_006_568, 2.55),
    "squeezenet1_0": (1_248_424, 0.82),
    "squeezenet1_1": (1_235_496, 0.35),
    "densenet121": (7_978_856, 2.83),
    "googlenet": (6_624_904, 1.50),
}
_STAGES = {"vgg16": 5, "mobilenetv2": 5, "efficientnet_lite4": 5, "googlenet": 3} | dict.fromkeys(
    ("squeezenet1_0", "squeezenet1_1"), 3
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


def _small(name: str, seed: int | None = 0) -> zoo.Chain:
    return zoo.build(name, num_classes=10, small_images=True, pretrained_seed=seed, in_channels=1)


def _images(batch: int) -> torch.Tensor:
    return torch.randn((batch, 1, 64, 64), generator=torch.Generator().manual_seed(7))


def test_names_are_the_published_networks() -> None:
    assert set(zoo.names()) == set(_PUBLISHED)
    assert zoo.entry("squeezenet") is zoo.entry("squeezenet1_0")


@pytest.mark.parametrize("name", zoo.names())
def test_macs_and_parameters_are_exact(name: str) -> None:
    entry = zoo.entry(name)
    parameters, giga_macs = _PUBLISHED[name]
    # Counting needs shapes alone; the meta device does without weights and arithmetic.
    with torch.device("meta"):
        network = entry.build(num_classes=1000, in_channels=3, small_images=False)
        images = torch.empty(1, 3, entry.input_size, entry.input_size)
    assert count_parameters(network) == entry.parameters == parameters
    assert count_macs(network, images) == entry.macs
    assert round(entry.macs / 1e9, 2) == giga_macs
    assert network(images).shape == (1, 1000)


@pytest.mark.parametrize("name", zoo.names())
def test_stages_each_have_one_resolution(name: str) -> None:
    network = _small(name)
    assert len(network.stages) == _STAGES.get(name, 4)
    with torch.no_grad():
        x = network.stem(_images(1))
        sides = [x.shape[2]]
        for stage in network.stages:
            assert isinstance(stage, nn.Sequential)
            stage_sides = set()
            for block in stage:
                x = block(x)
                stage_sides.add(x.shape[2])
            assert len(stage_sides) == 1
            sides.append(x.shape[2])
    assert sides[0] == (64 if name == "vgg16" else 32)
    # Only the first stage may keep the resolution of what comes before it.
    assert sides[1] <= sides[0]
    assert all(after < before for before, after in itertools.pairwise(sides[1:]))


@pytest.mark.parametrize("name", zoo.names())
def test_fx_traces_to_the_same_numbers(name: str) -> None:
    network = _small(name)
    traced = torch.fx.symbolic_trace(network)
    with torch.no_grad():
        assert torch.equal(traced(_images(2)), network(_images(2)))


@pytest.mark.parametrize("name", zoo.names())
def test_activations_stay_alive_and_depend_on_the_input(name: str) -> None:
    network = _small(name)
    deviations: dict[str, float] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _args, out, path=path: deviations.__setitem__(path, out.std().item())
        )
        for path, layer in network.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Linear, Residual))
    ]
    with torch.no_grad():
        logits = network(_images(4))
    for hook in hooks:
        hook.remove()
    assert not network.training
    assert all(0.02 < deviation < 50 for deviation in deviations.values()), deviations
    between_images = logits.std(dim=0).max() / (logits.max() - logits.min())
    assert between_images > 2e-3


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2", "efficientnet_lite4", "densenet121"])
def test_rounding_errors_do_not_grow_out_of_proportion(name: str) -> None:
    network = _small(name).double()
    images = _images(2).double()
    noise = 1e-6 * torch.randn(images.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    with torch.no_grad():
        logits, disturbed = network(images), network(images + noise)
    assert (logits - disturbed).abs().max() < 30e-6 * (logits.max() - logits.min())


def test_batch_norms_are_a_real_test_of_folding() -> None:
    norms = [layer for layer in _small("resnet18").modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == 20
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        for values, trivial in (
            (norm.weight, 1),
            (norm.bias, 0),
            (norm.running_mean, 0),
            (norm.running_var, 1),
        ):
            assert values.std() > 0
            assert (values - trivial).abs().min() > 0
        assert norm.running_var.min() > 1e-3
        assert norm.momentum == 0.1


def test_a_seed_fixes_the_weights_and_spares_the_global_generator() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = _small("resnet18", seed=3).state_dict()
    assert torch.equal(torch.rand(1), expected)
    torch.set_num_threads(2)
    second = _small("resnet18", seed=3).state_dict()
    other = _small("resnet18", seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["stem.0.weight"], other["stem.0.weight"])


def _stem_layers(network: zoo.Chain) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution, norm = network.stem[0], network.stem[1]
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    return convolution, norm


def test_without_a_seed_weights_are_fresh_from_the_global_generator() -> None:
    torch.manual_seed(5)
    first, norm = _stem_layers(_small("resnet18", seed=None))
    second, _ = _stem_layers(_small("resnet18", seed=None))
    torch.manual_seed(5)
    again, _ = _stem_layers(_small("resnet18", seed=None))
    assert not torch.equal(first.weight, second.weight)
    assert torch.equal(first.weight, again.weight)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.equal(norm.weight, torch.ones(64))
    assert torch.equal(norm.running_var, torch.ones(64))
    assert torch.equal(norm.running_mean, torch.zeros(64))


def test_small_resnet_has_no_pool_and_a_stride_2_stem() -> None:
    network = _small("resnet18")
    convolution, _ = _stem_layers(network)
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in network.modules())
    assert convolution.kernel_size == (3, 3)
    assert convolution.stride == (2, 2)
    # The published count, less the 7x7 RGB stem and 1000 classes, plus a 3x3 grey stem and 10 classes.
    assert count_parameters(network) == 11_689_512 - 64 * 147 + 64 * 9 - 990 * 513


def test_example_input_has_the_published_size() -> None:
    images = zoo.example_input("efficientnet_lite4", batch=2)
    assert images.shape == (2, 3, 300, 300)
    assert torch.equal(images, zoo.example_input("efficientnet_lite4", batch=2))


@pytest.mark.parametrize(
    ("name", "hint"), [("resnet-50", "resnet50"), ("MobileNetV2", "mobilenetv2"), ("zzz", "vgg16")]
)
def test_an_unknown_name_is_answered_with_near_ones(name: str, hint: str) -> None:
    with pytest.raises(ModelError, match=hint) as error:
        zoo.build(name)
    assert repr(name) in str(error.value)
    assert "\n" not in str(error.value)


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ModelError, match="num_classes"):
        zoo.build("resnet18", num_classes=0)
    with pytest.raises(ModelError, match="in_channels"):
        zoo.build("resnet18", in_channels=-1)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet", "googlenet"])
def test_exported_network_computes_the_same(name: str, tmp_path: Path) -> None:
    network = zoo.build(name, num_classes=10)
    images = zoo.example_input(name)
    program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx", providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        expected = network(images).numpy()
    assert np.abs(actual - expected).max() < 1e-4 * np.ptp(expected)
