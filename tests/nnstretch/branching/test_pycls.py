"""Published files: reading, writing, and the networks that they describe."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nnstretch import zoo
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import choices_of
from nnstretch.branching.pycls.files import (
    BASIC,
    BLOCKS,
    BOTTLENECK,
    STEMS,
    PublishedNetwork,
    PublishedStage,
    parse_published,
    published_text,
    read_published,
    write_published,
)
from nnstretch.branching.pycls.from_design import published_of
from nnstretch.branching.pycls.to_design import design_of, differences
from nnstretch.branching.stretch import published, reinitialise
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.errors import DesignError, FileError
from nnstretch.frontends import onnx_file
from nnstretch.zoo.blocks import Chain, classifier, conv_bn
from nnstretch.zoo.mobilenet import InvertedRow, inverted_stages
from tests.kits.networks.published_networks import BASELINES, MORE, SETTINGS, Setting, reference

# Those of one network follow each other, so that it is traced once.
ALL = dict(sorted((SETTINGS | BASELINES | MORE).items(), key=lambda item: item[1].model))
# Strides of two meet even and odd sides of maps, as they do with the published sizes.
SIDE = 60


@lru_cache(4)
def traced(model: str, side: int = SIDE) -> TracedNetwork:
    """A network of the zoo for images of a size."""
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    return blueprint(zoo.build(model, small_images=model == "vgg16"), images).traced  # a hundred million weights else


def prepared(setting: Setting, side: int = SIDE) -> tuple[PublishedNetwork, Blueprint]:
    network = parse_published(setting.text())
    return network, Blueprint(traced(setting.model, side), merge=network.merge)


@dataclass(frozen=True)
class Prepared:
    """A published network, and the zoo's network for small images that it is a design of."""

    name: str
    network: PublishedNetwork
    plan: Blueprint


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Prepared:
    """The network of the test's parameter; tests with the same one follow each other and share it."""
    return Prepared(request.param, *prepared(ALL[request.param]))


def macs_at(setting: Setting, side: int) -> int:
    """Of the setting's network, for images of a size."""
    return count_macs(reference(setting), torch.empty(1, 3, side, side, device="meta"))


@pytest.mark.parametrize("small", ALL, indirect=True)
def test_designs_count_what_the_published_networks_count(small: Prepared) -> None:
    """At a small size; the networks that they are compared with count at the published size what the table says."""
    setting, design = ALL[small.name], design_of(small.network, small.plan)
    macs = macs_at(setting, setting.size)
    assert design.macs == macs_at(setting, SIDE)
    assert design.params == count_parameters(reference(setting))
    if setting.macs is not None and setting.params is not None:
        assert round(macs / 1e9, 2) == setting.macs
        assert round(design.params / 1e6, 1) == setting.params
    if small.name in BASELINES:
        entry = zoo.entry(setting.model)
        assert (macs, design.params) == (entry.macs, entry.parameters)


def test_designs_count_at_the_published_size() -> None:
    setting = SETTINGS["R-34 C+D"]
    assert setting.macs == round(design_of(*prepared(setting, setting.size)).macs / 1e9, 2)


@pytest.mark.parametrize("small", ALL, indirect=True)
def test_built_networks_count_what_their_designs_say(small: Prepared) -> None:
    name, plan = small.name, small.plan
    design = design_of(small.network, plan)
    assert Design.from_json(design.to_json()) == design
    branched = build(plan, Design.from_json(design.to_json()))
    images = plan.traced.example_input
    assert (count_macs(branched, images), count_parameters(branched)) == (design.macs, design.params)
    with torch.no_grad():
        answer = branched(images)
    assert answer.shape == (1, 1000)
    assert answer.isfinite().all()
    assert answer.std() > 0
    if name in BASELINES:
        with torch.no_grad():
            expected = zoo.build(ALL[name].model)(images)
        assert torch.allclose(answer, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


# Basic blocks, bottlenecks with blocks that run again, groups, and inverted bottlenecks of the first version; of others,
# it is enough that their layers are counted.
@pytest.mark.parametrize("small", ["three branches", "deeper and wider", "RX-1.6 C+G", "EN-L4 C+G"], indirect=True)
def test_exported_networks_compute_the_same(small: Prepared, tmp_path: Path) -> None:
    branched = build(small.plan, design_of(small.network, small.plan))
    images = small.plan.traced.example_input
    path = tmp_path / "branched.onnx"
    onnx_file.save(export_branched(branched, images), path)
    session = onnxruntime.InferenceSession(path)
    (answer,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        expected = branched(images).numpy()
    assert np.abs(answer - expected).max() <= 1e-5 * np.ptp(expected)


@pytest.mark.parametrize("small", SETTINGS, indirect=True)
def test_designs_of_files_become_the_same_files(small: Prepared) -> None:
    network, plan = small.network, small.plan
    assert published_of(design_of(network, plan), plan, network.processors, network.sections) == network


def test_designs_without_a_form_in_files_are_refused_with_the_reason() -> None:
    network, plan = prepared(SETTINGS["R-50 C+G"])
    design = design_of(network, plan)
    with pytest.raises(DesignError, match="summed"):
        published_of(replace(design, merge=Merge.ADD), plan, ["cpu", "gpu"])
    stage = design.segments[1]
    one, other = stage.branches
    swapped = replace(stage, branches=(replace(one, processor=1), replace(other, processor=0)))
    with pytest.raises(DesignError, match="stage 1 is not on the first processors in their order"):
        published_of(
            replace(design, segments=(design.segments[0], swapped, *design.segments[2:])), plan, ["cpu", "gpu"]
        )
    assert one.explicit_channels is not None
    # One block's inner channels are others than its neighbours'.
    odd = replace(one, explicit_channels=(one.explicit_channels[0] + 8, *one.explicit_channels[1:]), macs=one.macs + 1)
    changed = replace(
        design, segments=(design.segments[0], replace(stage, branches=(odd, other)), *design.segments[2:])
    )
    with pytest.raises(DesignError, match="in meeting point 1 a branch with"):
        published_of(changed, plan, ["cpu", "gpu"])


def test_first_version_begins_and_ends_branches_with_convolutions() -> None:
    network, plan = prepared(SETTINGS["EN-L4 C+G"])
    branched = build(plan, design_of(network, plan))
    stage = branched.segments[2]
    layers = dict(stage.branches[0].layers.named_modules())
    assert layers["first.conv"].weight.shape == (24, 24, 1, 1)
    assert layers["exit.conv"].weight.shape == (16, 32, 1, 1)
    # A stage that is not branched keeps all channels, so it needs no last convolution.
    assert "exit.conv" not in dict(branched.segments[1].branches[0].layers.named_modules())


@pytest.mark.parametrize("branches", [1, 2])
def test_inputs_that_are_gated_are_original_channels(branches: int) -> None:
    """Concatenated outputs of branches are not: they would need a convolution before, which files do not have.

    A block without expansion gates its input.
    """
    rows = [InvertedRow(6, 24, 1, 1), InvertedRow(1, 32, 1, 2)]
    stem = nn.Sequential(*conv_bn(3, 16, 3, stride=2, activation=nn.ReLU6))
    head = nn.Sequential(conv_bn(32, 64, 1, activation=nn.ReLU6), *classifier(64, 10))
    module = Chain(stem, inverted_stages(16, rows, is_gated=True), head).eval()
    plan = Blueprint(blueprint(module, torch.zeros(1, 3, 64, 64)).traced, merge=Merge.CONCAT)
    setting = Setting(
        "",
        64,
        ("simple_stem_in", 16),
        "mbconv",
        depths=[[1] * branches, [1]],
        widths=[[24 // branches] * branches, [32]],
        strides=[1, 2],
        bottlenecks=[[6.0] * branches, [1.0]],
        original_widths=[24, 32],
        kernels=(3, 3),
        head=64,
        squeeze=True,
    )
    network = parse_published(setting.text())
    if branches == 1:
        assert len(design_of(network, plan).segments) == 4
    else:
        with pytest.raises(DesignError, match=r"stage 2, branch 1 .*its input meets layers other than convolutions"):
            design_of(network, plan)


def test_shortcuts_are_projected_where_pycls_projects_them() -> None:
    network, plan = prepared(SETTINGS["R-34 C+D"])
    branched = build(plan, design_of(network, plan))
    narrow, full = (dict(branch.layers.named_modules()) for branch in branched.segments[1].branches)
    assert narrow["projection.conv"].weight.shape == (32, 64, 1, 1)
    assert "projection.conv" not in full
    assert "entry" not in narrow


def test_blocks_beyond_the_original_depth_run_again_with_weights_of_their_own() -> None:
    network, plan = prepared(MORE["deeper and wider"])
    design = design_of(network, plan)
    assert [len(branch.blocks) for branch in design.segments[1].branches] == [5, 1]
    branched = build(plan, design)
    layers = branched.segments[1].branches[0].layers
    again = [name for name, _ in layers.named_parameters() if name.startswith("again")]
    assert len({name.split(".")[0] for name in again}) == 2
    assert count_parameters(branched) == design.params


def test_differences_from_the_file_are_reported() -> None:
    setting = SETTINGS["R-50 C+G"]
    network, plan = prepared(setting)
    assert differences(network, plan) == []
    other = parse_published(setting.text(ACTIVATION_FUN=["relu", "silu"], STEM_K=3))
    assert differences(other, plan) == [
        "the stem stays the network's own, it is not the file's res_stem_in",
        "activations stay the network's own (relu); the file has relu, silu",
    ]


def test_published_networks_come_with_inherited_weights_or_new_ones() -> None:
    setting = SETTINGS["R-34 C+D"]
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    module = zoo.build(setting.model, num_classes=10)
    result = published(module, images, parse_published(setting.text()))
    inherited = result.module.segments[0].branches[0].layers.state_dict()
    assert all(
        torch.equal(inherited[name.removeprefix("")], tensor)
        for name, tensor in module.state_dict().items()
        if name in inherited
    )
    before = {name: tensor.clone() for name, tensor in result.module.named_parameters()}
    generator = torch.get_rng_state()
    reinitialise(result.module, images, seed=3)
    assert torch.equal(torch.get_rng_state(), generator)
    first = {name: tensor.clone() for name, tensor in result.module.named_parameters()}
    assert not any(torch.equal(first[name], before[name]) for name in first if first[name].dim() == 4)
    reinitialise(result.module, images, seed=3)
    assert all(torch.equal(first[name], tensor) for name, tensor in result.module.named_parameters())


# -- files ------------------------------------------------------------------------------------------------------------

WIDTH = st.integers(1, 200).map(lambda count: 8 * count)


@st.composite
def networks(draw: st.DrawFn) -> PublishedNetwork:
    devices = draw(st.lists(st.sampled_from(["cpu", "gpu", "dsp"]), min_size=1, max_size=3, unique=True))
    block, version = draw(st.sampled_from(BLOCKS)), draw(st.sampled_from([1, 2]))
    stages = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, len(devices)))

        def several(element: st.SearchStrategy[Any], size: int = count) -> tuple[Any, ...]:
            return tuple(draw(st.lists(element, min_size=size, max_size=size)))

        widths = several(WIDTH)
        ratios = several(st.sampled_from([0.25, 0.5, 1.0, 2.0])) if block != BASIC else (1.0,) * count
        stages.append(
            PublishedStage(
                depths=several(st.integers(1, 9)),
                widths=widths,
                stride=draw(st.integers(1, 2)),
                bottlenecks=ratios,
                group_widths=tuple(round(w * r) for w, r in zip(widths, ratios, strict=True))
                if block == BOTTLENECK
                else (),
                kernel=draw(st.sampled_from([3, 5])) if block == "mbconv" else None,
                original_width=sum(widths) if version == 2 else count * draw(st.integers(1, 500)),
            )
        )
    places = st.sampled_from([*devices, "npu"])
    return PublishedNetwork(
        stem=draw(st.sampled_from(STEMS)),
        stem_width=draw(WIDTH),
        stem_kernel=draw(st.sampled_from([3, 7])),
        block=block,
        stages=tuple(stages),
        devices=tuple(devices),
        stem_device=draw(places),
        head_device=draw(places),
        merge_device=draw(places),
        head_width=draw(st.sampled_from([0, 1280])),
        squeeze=draw(st.sampled_from([0.0, 0.25, 1 / 3])) if block != BASIC else 0.0,
        version=version,
        activations=tuple(draw(st.lists(st.sampled_from(["relu", "silu"]), max_size=2))),
        sections=draw(
            st.sampled_from([{}, {"OPTIM": {"BASE_LR": 0.1, "STEPS": [0, 30], "LR_POLICY": "cos"}, "OUT_DIR": "."}])
        ),
    )


@given(networks())
def test_written_files_give_back_equal_networks(network: PublishedNetwork) -> None:
    assert parse_published(published_text(network)) == network


def test_files_are_read_and_written(tmp_path: Path) -> None:
    network = parse_published(SETTINGS["EN-B5 C+D"].text())
    path = tmp_path / "network.yaml"
    write_published(network, path)
    assert read_published(path) == network
    path.write_text(SETTINGS["EN-B5 C+D"].text(HEAD_W=None, DEPTHS=None))
    with pytest.raises(DesignError, match=r"network.yaml: ANYNET lacks DEPTHS$"):
        read_published(path)
    with pytest.raises(FileError, match="cannot read"):
        read_published(tmp_path / "none.yaml")
    path.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DesignError, match="not text"):
        read_published(path)


R34, R50, EN = SETTINGS["R-34 C+D"], SETTINGS["R-50 C+G"], SETTINGS["EN-L4 C+G"]


@pytest.mark.parametrize(
    ("setting", "changed", "message"),
    [
        (R34, {"STEM_TYPE": None, "DEVICES": None}, "ANYNET lacks STEM_TYPE, DEVICES"),
        (R34, {"BLOCK": 1}, "unknown fields BLOCK"),
        (R34, {"BLOCK_TYPE": "vanilla_block"}, "BLOCK_TYPE is 'vanilla_block'; known are res_basic_block"),
        (R34, {"STEM_TYPE": "res_stem_cifar"}, "STEM_TYPE is 'res_stem_cifar'; known are res_stem_in, simple_stem_in"),
        (R34, {"MB_VER": 3}, "MB_VER is 3; known are 1, 2"),
        (R34, {"MB_VER": True}, "MB_VER is True"),
        (R34, {"WIDTHS": [[32, 64]]}, "WIDTHS has 1 entries, DEPTHS has 4 stages"),
        (
            R34,
            {"WIDTHS": [[32], [80, 64], [144, 160], [256, 320]]},
            "WIDTHS of stage 1 has 1 entries, DEPTHS has 2 branches",
        ),
        (R34, {"DEPTHS": [3, 4, 6, 3]}, "DEPTHS of stage 1 is 3, not a list"),
        (R34, {"DEPTHS": "deep"}, "DEPTHS is 'deep', not a list"),
        (R34, {"DEPTHS": [[0, 2], [3, 3], [6, 5], [3, 2]]}, "DEPTHS of stage 1 holds 0"),
        (R34, {"STRIDES": [[1, 2], [2, 2], [2, 2], [2, 2]]}, r"STRIDES of stage 1 are \[1, 2\]"),
        (R34, {"ORIGINAL_WIDTHS": [96, 144, 304, 577]}, "stage 4 is 577, its branches write 576"),
        (R34, {"DEVICES": ["cpu"]}, "stage 1 has 2 branches, DEVICES has 1 names"),
        (R34, {"DEVICES": ["cpu", "cpu"]}, "name every processor once"),
        (R34, {"DEVICES": "cpu"}, "DEVICES is 'cpu', not a list of names"),
        (R34, {"STEM_W": "64"}, "STEM_W holds '64'"),
        (R34, {"MB_DOWNSAMPLE": False}, "MB_DOWNSAMPLE is false"),
        (R50, {"GROUP_WS": None}, "ANYNET lacks GROUP_WS, which blocks of type res_bottleneck_block need"),
        (R50, {"BOT_MULS": [0.25, 0.25, [0.25], 0.25]}, "BOT_MULS of stage 3 has 1 entries"),
        (R50, {"BOT_MULS": [0.25, 0.25, -1, 0.25]}, "BOT_MULS of stage 3 is -1, not a ratio"),
        (
            R50,
            {"GROUP_WS": [[48, 40], [88, 72], [216, 120], [424, 248]]},
            "stage 1 has 48 inner channels in a branch, which groups of 40 do not divide",
        ),
        (EN, {"KERNELS": None}, "ANYNET lacks KERNELS"),
        (EN, {"SE_ON": "yes"}, "SE_ON is 'yes'"),
        (EN, {"SE_ON": True, "SE_R": 0}, "SE_R is 0"),
        (EN, {"ORIGINAL_WIDTHS": [24, 31, 56, 112, 160, 272, 448]}, "stage 2 is 31, which 2 branches cannot share"),
    ],
)
def test_files_that_cannot_be_are_refused(setting: Setting, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DesignError, match=message) as caught:
        parse_published(setting.text(**changed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[1, 2", "ANYNET: 3", "- a\n- b", "MODEL: {}", "{" * 1000, "!!python/object:os.system {}", "\0"]
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DesignError, match="ANYNET") as caught:
        parse_published(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "setting", "changed", "message"),
    [
        ("resnet50", R34, {}, "blocks of type res_basic_block, the network res_bottleneck_block"),
        ("resnet18", R34, {"STEM_W": 32}, "channels of the stem: 32, the network 64"),
        ("mobilenetv2", EN, {}, "the file has strides and kernels of stages"),
        ("efficientnet_lite4", EN, {"SE_ON": True}, "the network has no squeeze-and-excitation"),
        ("efficientnet_lite4", EN, {"HEAD_W": None}, "channels of the head's convolution: 0, the network 1280"),
        (
            "efficientnet_lite4",
            EN,
            {"BOT_MULS": [1, 6, 6, 6, 6, 6, 1]},
            "only one of the two has a convolution that expands",
        ),
        ("regnet_x_1_6gf", SETTINGS["RX-1.6 C+G"], {"GROUP_WS": [[48, 24]] + [[24, 24]] * 3}, "groups of 48 channels"),
        ("vgg16", R34, {}, "no stem, stages of residual blocks"),
        ("googlenet", R34, {}, "no stem, stages of residual blocks"),
    ],
)
def test_networks_of_other_families_are_refused(
    model: str, setting: Setting, changed: dict[str, Any], message: str
) -> None:
    network = parse_published(setting.text(**changed))
    with pytest.raises(DesignError, match=message):
        design_of(network, Blueprint(traced(model), merge=network.merge))


def test_the_file_decides_how_branches_meet() -> None:
    network = parse_published(R34.text())
    plan = Blueprint(traced("resnet34"), merge=Merge.ADD)
    with pytest.raises(DesignError, match="merges by concat, the network was prepared for add"):
        design_of(network, plan)


def test_stem_and_head_may_be_on_a_processor_without_branches() -> None:
    setting = replace(R34, devices=("dsp", "gpu"))
    network = parse_published(setting.text())
    assert network.processors == ("dsp", "gpu", "cpu")
    design = design_of(network, Blueprint(traced("resnet34"), merge=network.merge))
    assert design.processors == (0, 1, 2)
    assert design.segments[0].branches[0].processor == 2
    assert choices_of(design)[1].branches[1].processor == 1
