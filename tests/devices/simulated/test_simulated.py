from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.simulated.processor import SimulatedProcessor, layer_seconds
from nnstretch.devices.simulated.profile import (
    PairProfile,
    ProcessorProfile,
    SocProfile,
    Throughput,
    load_profile,
    save_profile,
    shipped_profiles,
)
from nnstretch.errors import DeviceError, FileError, UsageError
from nnstretch.graph.layer import Layer, TensorType, fused_pair

FREE = {"any": 1e6}
EVEN = Throughput(((1.0, 1.0),))  # 1 GMAC/s: a MAC takes a nanosecond


def conv(read: int, written: int, size: int = 1, kernel: int = 1, groups: int = 1) -> Layer:
    return Layer(
        "conv",
        "Conv",
        (TensorType((1, read, size, size)), TensorType((written, read // groups, kernel, kernel)), None),
        (TensorType((1, written, size, size)),),
        MappingProxyType({"strides": (1, 1), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "groups": groups}),
    )


def dense(read: int, written: int) -> Layer:
    types = (TensorType((1, read)), TensorType((written, read)))
    return Layer("dense", "Dense", types, (TensorType((1, written)),))


def processor(
    launch_us: float = 0.0, memory: dict[str, float] | None = None, /, **compute: Throughput
) -> ProcessorProfile:
    return ProcessorProfile(launch_us, {k.replace("_", ":", 1): t for k, t in compute.items()}, memory or FREE)


def arithmetic(layer: Layer, **compute: Throughput) -> float:
    """Arithmetic time in nanoseconds; memory traffic is (nearly) free."""
    return layer_seconds(processor(0.0, {"any": 1e12}, **compute), layer, 4) * 1e9


def test_a_layer_is_launched_computes_and_moves_bytes() -> None:
    layer = conv(8, 16, size=10)
    macs, elements = 100 * 8 * 16, 100 * 8 + 8 * 16 + 100 * 16
    made = processor(5.0, {"any": 2.0}, conv=EVEN)
    assert layer_seconds(made, layer, 4) == pytest.approx(5e-6 + macs * 1e-9 + 4 * elements / 2e9)
    assert layer_seconds(made, layer, 1) == pytest.approx(5e-6 + macs * 1e-9 + elements / 2e9)


def test_a_kernel_size_takes_precedence_over_the_kind() -> None:
    twice = Throughput(((1.0, 2.0),))
    assert arithmetic(conv(4, 4, kernel=3), conv=EVEN, conv_3x3=twice) == pytest.approx(16 * 9 / 2)
    assert arithmetic(conv(4, 4), conv=EVEN, conv_3x3=twice) == pytest.approx(16)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (conv(8, 8), "conv"),
        (conv(8, 8, kernel=3, groups=2), "grouped"),
        (conv(8, 8, kernel=3, groups=8), "depthwise"),
        (conv(8, 16, kernel=3, groups=8), "depthwise"),
        (dense(8, 8), "dense"),
    ],
)
def test_layers_without_throughput_are_unsupported(layer: Layer, kind: str) -> None:
    kinds = {"conv", "grouped", "depthwise", "dense"}
    assert arithmetic(layer, **{kind: EVEN}) == pytest.approx(layer.macs)
    assert arithmetic(layer, **dict.fromkeys(kinds - {kind}, EVEN)) == math.inf


def test_channels_are_computed_in_steps() -> None:
    stairs = Throughput(((1.0, 1.0),), step=(4, 16))
    assert arithmetic(conv(5, 17), conv=stairs) == pytest.approx(8 * 32)
    assert arithmetic(conv(8, 32), conv=stairs) == pytest.approx(8 * 32)
    assert arithmetic(conv(10, 34, groups=2), grouped=stairs) == pytest.approx(2 * 8 * 32)


def test_narrow_layers_are_slower() -> None:
    narrow = Throughput(((1.0, 1.0),), half=(0.0, 8.0))
    assert arithmetic(conv(5, 8), conv=narrow) == pytest.approx(2 * 40)
    assert arithmetic(conv(5, 24), conv=narrow) == pytest.approx(120 * (1 + 8 / 24))
    assert arithmetic(conv(8, 8, kernel=3, groups=8), depthwise=narrow) == pytest.approx(2 * 72)


def test_every_group_costs() -> None:
    assert arithmetic(conv(8, 8, groups=4), grouped=Throughput(((1.0, 1.0),), group_us=3.0)) == pytest.approx(16 + 12e3)


def test_rates_are_interpolated_over_the_logarithm_of_macs() -> None:
    curve = Throughput(((100.0, 1.0), (10_000.0, 3.0)))
    assert arithmetic(conv(5, 10), conv=curve) == pytest.approx(50)
    assert arithmetic(conv(10, 100), conv=curve) == pytest.approx(1000 / 2)
    assert arithmetic(conv(200, 100), conv=curve) == pytest.approx(20_000 / 3)


@pytest.mark.parametrize(
    ("op", "kind"),
    [("MaxPool", "pool"), ("Add", "elementwise"), ("Reorder", "move"), ("Resize", "other"), ("onnx:Erf", "other")],
)
def test_layers_without_macs_move_bytes(op: str, kind: str) -> None:
    tensor = TensorType((1, 2, 5, 5))
    layer = Layer("l", op, (tensor,), (tensor,))
    assert layer_seconds(processor(1.0, {"any": 1.0, kind: 4.0}), layer, 4) == pytest.approx(1e-6 + 400 / 4e9)
    assert layer_seconds(processor(1.0, {"any": 1.0}), layer, 4) == pytest.approx(1e-6 + 400 / 1e9)


def test_a_fusion_group_takes_as_long_as_its_layers() -> None:
    made = processor(2.0, conv=EVEN)
    one, two = conv(4, 8), conv(8, 4)
    alone = layer_seconds(made, one, 4) + layer_seconds(made, two, 4)
    assert layer_seconds(made, fused_pair(one, two), 4) == pytest.approx(alone)


# -- pairs ---------------------------------------------------------------------------------------------------------


def soc(*pairs: PairProfile) -> SocProfile:
    return SocProfile({name: processor(conv=EVEN) for name in "abc"}, pairs, element_bytes=2)


def test_pairs_hold_both_ways() -> None:
    made = soc(PairProfile(("a", "b"), 10.0, 1.0, (1.5, 2.0)), PairProfile(("c", "a"), 30.0, 4.0, (1.0, 3.0)))
    assert made.slowdown("a", frozenset("b")) == 1.5
    assert made.slowdown("b", frozenset("a")) == 2.0
    assert made.slowdown("a", frozenset("bc")) == 4.5
    assert made.slowdown("a", frozenset()) == 1.0
    assert made.transfer_seconds("b", frozenset("a"), 500) == pytest.approx(10e-6 + 1e-6)
    assert made.transfer_seconds("a", frozenset("bc"), 500) == pytest.approx(30e-6 + 0.25e-6)


def test_a_missing_pair_is_reported() -> None:
    with pytest.raises(DeviceError, match="no pair of b and c"):
        soc().slowdown("b", frozenset("c"))


# -- files ---------------------------------------------------------------------------------------------------------

positive = st.floats(1e-3, 1e6)
counts = st.integers(1, 64)
throughputs = st.builds(
    Throughput,
    st.dictionaries(st.floats(1.0, 1e12), positive, min_size=1, max_size=4).map(lambda d: tuple(sorted(d.items()))),
    st.tuples(counts, counts),
    st.tuples(st.floats(0, 100), st.floats(0, 100)),
    st.floats(0, 100),
)
processors = st.builds(
    ProcessorProfile,
    st.floats(0, 1e4),
    st.dictionaries(st.sampled_from(["conv", "conv:1x1", "depthwise:5x5", "grouped", "dense"]), throughputs),
    st.dictionaries(st.sampled_from(["pool", "conv", "move"]), positive).map(lambda d: {"any": 1.0, **d}),
)
factors = st.floats(1, 10)


@given(processors, processors, positive, positive, st.tuples(factors, factors), st.sampled_from([1, 2, 4]))
def test_a_profile_survives_json(
    one: ProcessorProfile, two: ProcessorProfile, sync: float, rate: float, slowdown: tuple[float, float], size: int
) -> None:
    made = SocProfile({"cpu": one, "gpu": two}, (PairProfile(("cpu", "gpu"), sync, rate, slowdown),), size, 16, "what")
    read = SocProfile.from_json(made.to_json())
    assert read == made
    assert read.identity == made.identity


def small() -> dict[str, Any]:
    return {
        "format": 1,
        "processors": {
            "cpu": {
                "launch_us": 5,
                "compute": {"conv": {"gmacs_per_s": [[1, 100]], "step": [1, 8]}},
                "memory_gb_per_s": {"any": 10},
            },
            "gpu": {"launch_us": 5, "compute": {}, "memory_gb_per_s": {"any": 10}},
        },
        "pairs": [{"processors": ["cpu", "gpu"], "sync_us": 20, "gb_per_s": 5}],
    }


def test_optional_fields_have_defaults() -> None:
    read = SocProfile.from_json(json.dumps(small()))
    assert (read.element_bytes, read.channel_multiple, read.description) == (4, 8, "")
    assert read.processors["cpu"].compute["conv"].step == (1, 8)
    assert read.pairs[0].slowdown == (1.0, 1.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "format 2 is not supported; this version reads up to 1; upgrade"),
        ("format", 0, "format is 0; write 1"),
        ("format", True, "format is true; write 1"),
        ("format", None, "has no format; add it"),
        ("colour", 1, "has a field 'colour'; its fields are format, "),
        ("processors", {}, "processors is {}; write"),
        ("processors", {"a/b": {}}, 'a processor\'s name is "a/b"; write'),
        ("processors.cpu", [], "processor cpu is []; write an object"),
        ("processors.cpu.launch_us", -1, "processor cpu: launch_us is -1; write microseconds from 0 on"),
        ("processors.cpu.launch_us", "5", 'launch_us is "5"'),
        ("processors.cpu.launch_us", None, "processor cpu has no launch_us; add it"),
        ("processors.cpu.compute", 3, "processor cpu: compute is 3; write an object"),
        ("processors.cpu.compute.lstm", {}, 'a kind of compute is "lstm"; write conv, grouped'),
        ("processors.cpu.compute.dense:1x1", {}, 'a kind of compute is "dense:1x1"'),
        ("processors.cpu.compute.conv.gmacs_per_s", 100, "gmacs_per_s is 100; write points"),
        ("processors.cpu.compute.conv.gmacs_per_s", [], "gmacs_per_s is []; write points"),
        ("processors.cpu.compute.conv.gmacs_per_s", [[1, 0]], "gmacs_per_s is 0; write points"),
        ("processors.cpu.compute.conv.gmacs_per_s", [[2, 1], [2, 3]], "MACs ascending"),
        ("processors.cpu.compute.conv.step", [0, 8], "step is 0; write two whole numbers"),
        ("processors.cpu.compute.conv.step", [1.5, 8], "step is [1.5, 8]; write two whole numbers"),
        ("processors.cpu.compute.conv.half", [1], "half is [1]; write two numbers"),
        ("processors.cpu.compute.conv.group_us", float("nan"), "group_us is NaN; write"),
        ("processors.cpu.memory_gb_per_s", {"pool": 1}, "memory_gb_per_s has no any; add it"),
        ("processors.cpu.memory_gb_per_s.any", 0, "memory_gb_per_s of any is 0; write a rate above 0"),
        ("processors.cpu.memory_gb_per_s.cache", 1, "has a field 'cache'"),
        ("element_bytes", 3, "element_bytes is 3; write 1, 2 or 4"),
        ("element_bytes", True, "element_bytes is true; write"),
        ("channel_multiple", 1, "channel_multiple is 1; write 4, 8 or 16"),
        ("description", 1, "description is 1; write a text"),
        ("pairs", {}, "pairs is {}; write a list"),
        ("pairs.0.processors", ["cpu", "cpu"], 'processors of a pair is ["cpu", "cpu"]; write two of cpu, gpu'),
        ("pairs.0.processors", ["cpu", "npu"], "write two of cpu, gpu"),
        ("pairs.0.slowdown", [0.5, 1], "pair cpu, gpu: slowdown is 0.5; write two factors from 1 on"),
        ("pairs.0.sync_us", None, "a pair has no sync_us; add it"),
        ("pairs.1", small()["pairs"][0], "pair cpu, gpu is listed twice; remove one"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(path: str, value: Any, message: str) -> None:
    raw: Any = small()
    place: Any = raw
    *before, last = path.split(".")
    for name in before:
        place = place[int(name)] if name.isdigit() else place[name]
    if last.isdigit():
        place.insert(int(last), value)
    elif value is None:
        del place[last]
    else:
        place[last] = value
    with pytest.raises(DeviceError) as error:
        SocProfile.from_json(json.dumps(raw))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3"])
def test_an_invalid_file_is_rejected(text: str) -> None:
    with pytest.raises(DeviceError):
        SocProfile.from_json(text)


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    made = SocProfile.from_json(json.dumps(small()))
    save_profile(made, path)
    assert load_profile(str(path)) == made
    with pytest.raises(FileError, match="cannot read profile"):
        load_profile(str(tmp_path / "missing.json"))
    path.write_bytes(b"\xff")
    with pytest.raises(DeviceError, match="is not text"):
        load_profile(str(path))
    path.write_text("{}")
    with pytest.raises(DeviceError, match=r"mine\.json: the profile has no format"):
        load_profile(str(path))


def test_shipped_profiles_can_be_read() -> None:
    assert "phone" in shipped_profiles()
    for name in shipped_profiles():
        made = load_profile(name)
        assert made.description
        for one in made.processors:
            for other in {*made.processors} - {one}:
                assert made.pair(one, other).sync_us >= 0


@pytest.mark.parametrize("name", ["none", "../phone", "phone/x", ""])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=r"there is no shipped profile .*phone"):
        load_profile(name)


# -- as processors -------------------------------------------------------------------------------------------------


def test_a_simulated_processor_is_specified_by_profile_and_name() -> None:
    one, two, real = parse_processors("sim:phone/cpu,sim:dir/mine.json/npu,cpu", (3,))
    assert (one.kind, one.profile, one.part, one.cores) == ("sim", "phone", "cpu", ())
    assert (two.profile, two.part) == ("dir/mine.json", "npu")
    assert real.cores == (3,)
    assert [str(one), str(two)] == ["sim:phone/cpu", "sim:dir/mine.json/npu"]


@pytest.mark.parametrize("text", ["sim", "sim:", "sim:phone", "sim:phone/", "sim:/cpu"])
def test_a_simulated_processor_needs_both(text: str) -> None:
    with pytest.raises(UsageError, match="write sim:PROFILE/NAME"):
        parse_processors(text)


def test_an_unknown_processor_of_a_profile_is_reported() -> None:
    (spec,) = parse_processors("sim:phone/npu")
    with pytest.raises(DeviceError, match="profile phone has no processor 'npu'; it has cpu, gpu, dsp"):
        SimulatedProcessor(spec)


def test_a_simulated_processor_has_one_routine(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_profile(SocProfile({"a": processor(conv=EVEN)}), path)
    (spec,) = parse_processors(f"sim:{path}/a")
    made = SimulatedProcessor(spec)
    (routine,) = made.routines
    assert routine.supports(conv(8, 8))
    assert not routine.supports(dense(8, 8))
