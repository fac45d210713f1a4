"""The zoo against published figures, and the properties that the rest of the project relies on."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from nnstretch import zoo
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.errors import ModelError
from nnstretch.zoo.blocks import Chain, Residual
from nnstretch.zoo.registry import SUITES
from nnstretch.zoo.ssd import Detector

# Parameters to the unit and rounded GMACs, as torchvision documents them (Inception-v3's without its auxiliary head, and all
# MACs counted at the sizes in `INPUT_SIZES`); EfficientNet-Lite4's and RegNetX-4GF's parameters as timm does.
_PUBLISHED = {
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80),
    "resnet152": (60_192_808, 11.51),
    "vgg11": (132_863_336, 7.61),
    "vgg13": (133_047_848, 11.31),
    "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.63),
    "mobilenetv2": (3_504_872, 0.30),
    "mobilenetv3_small": (2_542_856, 0.06),
    "mobilenetv3_large": (5_483_032, 0.22),
    "regnet_x_1_6gf": (9_190_136, 1.60),
    "regnet_x_4gf": (22_118_248, 3.96),
    "efficientnet_lite4": (13_006_568, 2.55),
    "efficientnet_b5": (30_389_784, 10.27),
    "squeezenet1_0": (1_248_424, 0.82),
    "squeezenet1_1": (1_235_496, 0.35),
    "densenet121": (7_978_856, 2.83),
    "densenet161": (28_681_000, 7.73),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.29),
    "googlenet": (6_624_904, 1.50),
    "inception_v3": (27_161_264 - 3_326_696, 5.71),
}
_INPUT_SIZES = {"inception_v3": 299, "efficientnet_lite4": 300, "efficientnet_b5": 456, "ssd_resnet50": 512}
# Networks that are compared with their papers by themselves.
_OWN = ("ssd_resnet50", "resnetxy")
# Neither the shallowest nor the deepest of equal blocks.
_BETWEEN = ("resnet34", "resnet101", "vgg13", "vgg16", "densenet161", "densenet169")
_CLASSIFIERS = tuple(name for name in zoo.names() if name != "ssd_resnet50")
_STAGES = dict.fromkeys(("googlenet", "inception_v3", "squeezenet1_0", "squeezenet1_1"), 3) | dict.fromkeys(
    ("vgg13", "vgg16", "vgg19", "mobilenetv2", "mobilenetv3_large", "efficientnet_lite4", "efficientnet_b5"), 5
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


def _small(name: str, seed: int | None = 0) -> nn.Module:
    return zoo.build(name, num_classes=10, small_images=True, pretrained_seed=seed, in_channels=1)


def _small_chain(name: str, seed: int | None = 0) -> Chain:
    network = _small(name, seed)
    assert isinstance(network, Chain)
    return network


def _images(batch: int) -> torch.Tensor:
    return torch.randn((batch, 1, 64, 64), generator=torch.Generator().manual_seed(7))


def test_names_are_the_published_networks() -> None:
    assert set(zoo.names()) == {*_PUBLISHED, *_OWN}
    assert zoo.entry("squeezenet") is zoo.entry("squeezenet1_0")
    assert zoo.entry("mobilenet_v3_large") is zoo.entry("mobilenetv3_large")
    for name in zoo.names():
        assert zoo.entry(name).input_size == _INPUT_SIZES.get(name, 224)


def test_suites_are_of_networks_of_the_zoo() -> None:
    assert {name: len(suite) for name, suite in SUITES.items()} == {"neocpu": 15, "mobile": 10, "all": 25}
    assert set(SUITES["all"]) == {*SUITES["neocpu"], *SUITES["mobile"]} <= set(zoo.names())


@pytest.mark.parametrize("name", _PUBLISHED)
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


def test_resnetxy_has_the_macs_of_its_paper() -> None:
    """ACLTuner, table 5: 16.35 G and 86.61 M; it leaves open the shortcuts, the head, and what counts as an operation."""
    entry = zoo.entry("resnetxy")
    with torch.device("meta"):
        network = entry.build(num_classes=1000, in_channels=3, small_images=False)
        images = torch.empty(1, 3, 224, 224)
        assert isinstance(network, Chain)
        x, sides = network.stem(images), []
        for stage in network.stages:
            x = stage(x)
            sides.append(tuple(x.shape[2:]))
    assert count_macs(network, images) == entry.macs
    assert count_parameters(network) == entry.parameters
    assert abs(entry.macs / 16.35e9 - 1) < 0.002
    assert abs(entry.parameters / 86.61e6 - 1) < 0.012
    assert sides == [(56, 56), (28, 28), (14, 14), (7, 7)]


def test_ssd_counts_follow_from_its_tables() -> None:
    """From ResNet-50's published count: less its dense layer, plus additional layers and heads, written out."""
    entry = zoo.entry("ssd_resnet50")
    with torch.device("meta"):
        network = entry.build(num_classes=20, in_channels=3, small_images=False).eval()
        images = torch.empty(1, 3, 512, 512)
        scores, boxes = network(images)
    assert scores.shape == (1, 6132, 21)
    assert boxes.shape == (1, 6132, 4)
    widths, sides, anchors = (1024, 2048, 512, 512, 256, 256), (32, 16, 8, 4, 2, 1), (4, 6, 6, 6, 4, 4)
    parameters = 25_557_032 - 2_049_000
    macs = (4_089_184_256 - 2_048_000) * (512 * 512) // (224 * 224)
    for before, width, side in zip(widths[1:], widths[2:], sides[2:], strict=False):
        parameters += before * width + 9 * width * width + 4 * width
        macs += 4 * side * side * before * width + 9 * side * side * width * width
    for width, side, count in zip(widths, sides, anchors, strict=True):
        parameters += (9 * width + 1) * count * 25
        macs += 9 * width * count * 25 * side * side
    assert count_parameters(network) == entry.parameters == parameters
    assert count_macs(network, images) == entry.macs == macs


def test_anchors_without_offsets_are_the_boxes() -> None:
    """At the first pixel of the first map: two squares, and boxes twice as wide as high and the reverse."""
    network = zoo.build("ssd_resnet50", num_classes=3, small_images=True)
    assert isinstance(network, Detector)
    with torch.no_grad():
        for head in network.predictor.boxes:
            head[0].weight.zero_()
            head[0].bias.zero_()
        scores, boxes = network(torch.zeros(1, 3, 64, 64))
    # Maps of 4, 2, 1, 1, 1 and 1 pixels a side.
    assert boxes.shape == (1, 16 * 4 + 4 * 6 + 6 + 6 + 4 + 4, 4)
    torch.testing.assert_close(scores.sum(dim=2), torch.ones(scores.shape[:2]))
    side, between = 51.2, (51.2 * 102.4) ** 0.5
    shapes = ((side, side), (between, between), (side * 2**0.5, side / 2**0.5), (side / 2**0.5, side * 2**0.5))
    wanted = [[8 - w / 2, 8 - h / 2, 8 + w / 2, 8 + h / 2] for w, h in shapes]
    torch.testing.assert_close(boxes[0, :4], torch.tensor(wanted), rtol=1e-5, atol=1e-4)
    # The next anchors are one cell to the right.
    torch.testing.assert_close(
        boxes[0, 4:8], torch.tensor(wanted) + torch.tensor([16.0, 0, 16, 0]), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("name", _CLASSIFIERS)
def test_stages_each_have_one_resolution(name: str) -> None:
    # Shapes alone; the meta device does without weights and arithmetic.
    with torch.device("meta"):
        network = zoo.entry(name).build(num_classes=10, in_channels=1, small_images=True).eval()
        images = torch.empty(1, 1, 64, 64)
    assert isinstance(network, Chain)
    assert len(network.stages) == _STAGES.get(name, 4)
    with torch.no_grad():
        x = network.stem(images)
        sides = [x.shape[2]]
        for stage in network.stages:
            assert isinstance(stage, nn.Sequential)
            stage_sides = set()
            for block in stage:
                x = block(x)
                stage_sides.add(x.shape[2])
            assert len(stage_sides) == 1
            sides.append(x.shape[2])
    assert sides[0] == (64 if name.startswith("vgg") else 32)
    # Only the first stage may keep the resolution of what comes before it.
    assert sides[1] <= sides[0]
    assert all(after < before for before, after in itertools.pairwise(sides[1:]))


def _tensors(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.fixture(scope="module", params=[name for name in zoo.names() if name not in _BETWEEN])
def network(request: pytest.FixtureRequest) -> nn.Module:
    """Networks of every kind of the zoo, whose weights are drawn once: that takes longer than the tests."""
    return _small(request.param)


def test_fx_traces_to_the_same_numbers(network: nn.Module) -> None:
    traced = torch.fx.symbolic_trace(network)
    with torch.no_grad():
        for found, wanted in zip(_tensors(traced(_images(1))), _tensors(network(_images(1))), strict=True):
            assert torch.equal(found, wanted)


def test_activations_stay_alive_and_depend_on_the_input(network: nn.Module) -> None:
    deviations: dict[str, float] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _layer, _args, out, path=path: deviations.__setitem__(path, out.std().item())
        )
        for path, layer in network.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Linear, Residual))
    ]
    with torch.no_grad():
        logits = _tensors(network(_images(4)))[0]
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


def _stem_layers(network: Chain) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution, norm = network.stem[0], network.stem[1]
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    return convolution, norm


def test_without_a_seed_weights_are_fresh_from_the_global_generator() -> None:
    torch.manual_seed(5)
    first, norm = _stem_layers(_small_chain("resnet18", seed=None))
    second, _ = _stem_layers(_small_chain("resnet18", seed=None))
    torch.manual_seed(5)
    again, _ = _stem_layers(_small_chain("resnet18", seed=None))
    assert not torch.equal(first.weight, second.weight)
    assert torch.equal(first.weight, again.weight)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.equal(norm.weight, torch.ones(64))
    assert torch.equal(norm.running_var, torch.ones(64))
    assert torch.equal(norm.running_mean, torch.zeros(64))


def test_small_resnet_has_no_pool_and_a_stride_2_stem() -> None:
    network = _small_chain("resnet18")
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
    ("name", "hint"), [("resnet-50", "resnet50"), ("MobileNetV2", "mobilenetv2"), ("zzz", "nnstretch zoo lists")]
)
def test_unknown_names_are_refused_with_suggestions(name: str, hint: str) -> None:
    with pytest.raises(ModelError, match=hint) as error:
        zoo.build(name)
    assert repr(name) in str(error.value)
    assert "\n" not in str(error.value)


def test_networks_of_libraries_are_named_with_what_makes_them() -> None:
    with pytest.raises(ModelError, match=r"timm.create_model\('resnet18', .* give it as FILE.py:FUNCTION"):
        zoo.build("timm:resnet18")


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ModelError, match="num_classes"):
        zoo.build("resnet18", num_classes=0)
    with pytest.raises(ModelError, match="in_channels"):
        zoo.build("resnet18", in_channels=-1)
