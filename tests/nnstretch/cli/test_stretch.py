"""`nnstretch stretch` with learned bounds and for processors that are not here, its refusals, and the check of predictions."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from nnstretch.devices.base.spec import usable_cores
from tests.kits.command_line import Cli, answer_of, refuses

NETWORK = """
import torch
from torch import nn


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def small():
    torch.manual_seed(0)
    net = nn.Sequential(
        block(1, 16, 2), block(16, 16), block(16, 32, 2), block(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )
    return net, torch.zeros(1, 1, 16, 16)


def coloured():
    return nn.Sequential(block(3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def varied():
    torch.manual_seed(0)
    depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
    net = nn.Sequential(block(1, 16, 2), block(16, 32), depthwise, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return net, torch.zeros(1, 1, 16, 16)
"""
RECIPE = {"name": "brief", "epochs": 1, "batch": 64, "learning_rate": 0.05, "distillation_weight": 0.5, "threads": 1}
SIMULATED = ("-p", "sim:phone/cpu,sim:phone/gpu", "--alpha", "100", "--beta", "100", "--top", "1")
CORES = usable_cores()


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """A network and a recipe in the working directory."""
    (folder / "net.py").write_text(NETWORK)
    (folder / "brief.json").write_text(json.dumps(RECIPE))


def test_bounds_are_learned_kept_and_used(cli: Cli, folder: Path) -> None:
    training = ("--data", "digits", "--image-size", "16", "--threads", "1", "--epochs", "2", "-o", "w.safetensors")
    refuses(cli("train", "net.py:coloured", *training), "does not run on an input of shape (1, 1, 16, 16)")
    answer_of(cli("train", "net.py:small", *training, "--json"))
    stretch = ("stretch", "net.py:small", "-w", "w.safetensors", *SIMULATED, "--json")
    learn = (*stretch, "--learn-bounds", "--data", "digits", "--recipe", "brief.json", "--max-drop", "5")
    refuses(cli(*learn, "--bounds", "b.json", "--budget", "2"), "budget of 2 trainings")
    kept = json.loads(Path("b.json").read_text())["trainings"]
    assert len(kept) == 2
    refuses(cli(*stretch, "--bounds", "b.json"), "b.json", "--learn-bounds")
    found = answer_of(cli(*learn, "--bounds", "b.json"))
    written = json.loads(Path("b.json").read_text())
    assert written["trainings"][:2] == kept  # they were not repeated
    assert found["bounds"]["original_top1"] == kept[0]["top1"] > 50.0
    names = ("min_depth", "min_width", "min_macs")
    assert [found["bounds"][name] for name in names] == [written[name] for name in names]
    within = [one for one in written["trainings"] if one["top1"] >= kept[0]["top1"] - 5.0]
    assert all(written[name] in [one[name.removeprefix("min_")] for one in within] for name in names[:2])
    (design,) = answer_of(cli(*stretch, "--bounds", "b.json"))["designs"]
    assert design["id"] == found["designs"][0]["id"]
    for one in design["branches"]:
        assert one["depth"] >= written["min_depth"]
        assert one["width"] >= written["min_width"]
    refuses(cli(*learn, "--bounds", "b.json", "--seed", "1"), "b.json", "recipe")
    refuses(cli("stretch", "net.py:small", *SIMULATED, *learn[-7:], "--bounds", "c.json"), "chance", "--weights")


def test_what_bounds_cannot_be_learned_with(cli: Cli, folder: Path) -> None:
    stretch = ("stretch", "net.py:small", *SIMULATED)
    refuses(cli(*stretch, "--learn-bounds", "--data", "digits"), "--bounds FILE or -o DIR")
    learn = (*stretch, "--learn-bounds", "--bounds", "b.json")
    refuses(cli(*learn), "--data")
    refuses(cli(*learn, "--data", "digits", "--max-drop", "-1"), "--max-drop is -1")
    refuses(cli(*learn, "--data", "digits", "--recipe", "stew"), "stew", "quick")
    refuses(cli(*learn, "--data", "digits", "--budget", "0"), "--budget")
    refuses(cli(*stretch, "--data", "digits"), "--data needs --learn-bounds")
    refuses(cli(*stretch, "--learn-bounds", "--data", "digits", "--bounds", "missing/b.json"), "missing")
    refuses(cli(*stretch, "--bounds", "b.json"), "b.json", "No such file")
    refuses(cli(*stretch, "--bounds", "brief.json"), "holds no bounds")
    assert not Path("b.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_designs_for_processors_of_a_profile(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnstretch.devices.engine.binding.library import engine

    engine()  # built in the usual cache
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "there"))
    cores = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    stretch = (
        "stretch",
        "net.py:small",
        "--alpha",
        "100",
        "--beta",
        "100",
        "--top",
        "1",
        "--min-width",
        "0.5",
        "--json",
    )
    there = answer_of(cli(*stretch, "-p", cores, "--measure-all", "--no-measure"))
    answer_of(cli("profiles", "export", "-o", "p.json", "--json"))
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "here"))
    here = answer_of(cli(*stretch, "-p", cores, "--predict-only", "--profile", "p.json", "-o", "designs"))
    (design,), (same,) = here["designs"], there["designs"]
    assert design["id"] == same["id"]
    assert design["predicted_ms"] == pytest.approx(same["predicted_ms"], rel=1e-6)
    assert here["guessed_layers"] == []
    errors = here["errors"][design["id"]]
    assert errors["whole"] == {"median": 0.0, "p90": 0.0, "guessed": 0.0}
    assert len(errors["branches"]) == len(design["branches"])
    assert Path(design["file"]).is_file()
    assert not (folder / "here" / "profiles.sqlite").exists()  # nothing was measured
    elsewhere = ("stretch", "net.py:small", "--image-size", "96", "--predict-only", "--profile")
    refuses(cli(*elsewhere, "p.json", "-p", "cpu,opencl"), "p.json", "opencl", f"cpu:{CORES[0]}")
    refuses(cli(*elsewhere, "p.json", "-p", cores), "too little like", "export the profiles again")
    refuses(cli(*elsewhere, "net.py", "-p", cores), "net.py", "profiles export")
    refuses(cli(*elsewhere, "missing.json", "-p", cores), "missing.json", "No such file")
    refuses(cli(*elsewhere, "p.json", "-p", "sim:phone/cpu,sim:phone/gpu"), "simulated")
    refuses(cli(*elsewhere, "p.json", "-p", cores, "--measure-all"), "--measure-all", "--predict-only")
    refuses(cli("stretch", "net.py:small", "--profile", "p.json", "-p", cores), "--profile needs --predict-only")


def test_no_processor_can_compute_the_whole_network(cli: Cli, folder: Path) -> None:
    rate = {"gmacs_per_s": [[1.0, 100.0]]}
    common = {"launch_us": 5.0, "memory_gb_per_s": {"any": 4.0}}
    halves = {
        "a": {**common, "compute": {"conv": rate, "dense": rate}},
        "b": {**common, "compute": {"conv": rate, "depthwise": rate}},
    }
    pair = {"processors": ["a", "b"], "sync_us": 5.0, "gb_per_s": 4.0}
    profile = {"format": 1, "description": "no one has all", "processors": halves, "pairs": [pair]}
    (folder / "halves.json").write_text(json.dumps(profile))
    names = ["sim:halves.json/a", "sim:halves.json/b"]
    found = answer_of(cli("stretch", "net.py:varied", "-p", ",".join(names), *SIMULATED[2:], "-o", "designs", "--json"))
    assert found["original_ms"] == dict.fromkeys(names)
    (design,) = found["designs"]
    assert design["predicted_ms"] > 0
    assert design["perfect_split_ms"] is None
    assert "inf" not in re.sub("<style>.*?</style>", "", Path(found["page"]).read_text())


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_design_is_proven_for_the_input_that_is_given(cli: Cli, folder: Path) -> None:
    answer_of(cli("stretch", "net.py:small", *SIMULATED, "-o", "designs", "--json"))
    (design,) = (str(path) for path in Path("designs").glob("*.json"))
    cores = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    prove = ("bench", "net.py:small", "--design", design, "-p", cores, "--no-tune", "-r", "1", "--json")
    macs = {}
    for side in (16, 32):
        done = cli(*prove, "--image-size", str(side))
        found = answer_of(done)
        macs[side] = {row["network"]: row["macs"] for row in found["rows"]}
        assert macs[side]["control"] == pytest.approx(macs[side]["branched"], rel=0.3)
        assert (found["predicted_ms"] is None) == ("the design was made for" in done[2]) == (side == 32)
    assert macs[32]["branched"] > 3 * macs[16]["branched"]


def test_what_no_design_can_meet(cli: Cli) -> None:
    stretch = ("stretch", "net.py:small", "-p", "sim:phone/cpu,sim:phone/gpu")
    for option, value, says in [
        ("--alpha", "0", "alpha is 0"), ("--beta", "inf", "beta is inf"), ("--min-depth", "1.5", "min_depth is 1.5"),
        ("--min-depth", "nan", "min_depth is nan"), ("--min-width", "0", "min_width is 0"),
        ("--min-macs", "-0.1", "min_macs is -0.1"), ("--max-segment", "2", "max_segment is 2"),
        ("--latency-target", "-3ms", "-3ms"), ("--latency-target", "soon", "soon"), ("--top", "0", "--top"),
        ("--merge", "glue", "glue"), ("--image-size", "4", "--image-size"),
    ]:  # fmt: skip
        refuses(cli(*stretch, option, value), says)
    refuses(cli(*stretch, "--beta", "0.0001"), "beta = 0.0001", "the least that can be reached is")
    refuses(cli(*stretch, "--beta", "100", "--alpha", "1e-9"), "alpha = 1e-09", "the least that can be reached is")
    refuses(cli(*stretch, "--beta", "100", "--alpha", "100", "--min-macs", "9"), "min_macs = 9", "the most that can be")
    refuses(cli(*stretch, *SIMULATED[2:], "--latency-target", "1us"), "1us")
    refuses(cli(*stretch, *SIMULATED[2:], "--latency-target", "0.00001ms"), "1e-05 ms; the fastest takes")
    refuses(cli("stretch", "net.py:small", "-p", "sim:phone/cpu,sim:phone/tpu"), "phone", "tpu", "gpu")
    refuses(cli("stretch", "net.py:small", "-p", "sim:nothing/cpu,sim:nothing/gpu"), "nothing")
    refuses(cli("stretch", "net.py:small", "-p", "cpu:99999,opencl"), "99999")
    refuses(
        cli(*stretch, "--published", "p.yaml", "--learn-bounds", "--data", "digits"), "--published", "--learn-bounds"
    )


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_predictions_are_checked_with_random_designs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[3] / "scripts" / "predictor_check.py"
    spec = importlib.util.spec_from_file_location("predictor_check", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["predictor_check"] = script
    spec.loader.exec_module(script)
    check = ["--processors", f"cpu:{CORES[0]},cpu:{CORES[1]}", "--models", "net.py:small", "-o", "c.json"]
    assert script.main([*check, "-n", "1"]) == 0
    (first,) = json.loads(Path("c.json").read_text())["designs"]
    capsys.readouterr()
    assert script.main([*check, "-n", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["designs"][0] == first  # it went on where it was
    branches = [branch for one in answer["designs"] for branch in one["branches"]]
    errors = [abs(branch["predicted_ms"] / branch["measured_ms"] - 1) for branch in branches]
    assert answer["predicted"]["all"]["branches"] == len(branches) >= 2
    assert answer["predicted"]["all"]["worst"] == pytest.approx(max(errors))
    assert answer["predicted"]["all"]["within"] == pytest.approx(sum(e <= 0.1 for e in errors) / len(errors))
    assert Path("c.svg").read_text().count("<circle") == len(branches)
    assert script.main([*check, "-n", "2", "--seed", "1"]) == 2
    assert "other options" in capsys.readouterr().err
    assert script.main(["--processors", "cpu", "--models", "net.py:small", "-n", "1"]) == 2
    assert script.main(["--models", "resnet18,vgg16", "-n", "1"]) == 2
    assert script.main([*check[:4], "-o", "net.py"]) == 2
