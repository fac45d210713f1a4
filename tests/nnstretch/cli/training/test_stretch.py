"""`nnstretch stretch` with learned bounds and for processors that are not here, its refusals, and the check of predictions."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign
from nnstretch.cli.models.networks import NetworkOptions, build_network
from nnstretch.cli.stretching.answer import branches_table, designs_table
from nnstretch.devices.base.spec import usable_cores
from nnstretch.errors import FileError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import Dataset
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.networks.small_network import SMALL_NETWORK
from tests.kits.networks.splits import UntouchableSplit

NETWORK = (
    SMALL_NETWORK
    + """

def coloured():
    return nn.Sequential(block(3, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def tinted():
    return coloured(), torch.zeros(1, 3, 16, 16)


def grey():
    flat = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(block(1, 16, 2), block(16, 16), block(16, 32, 2), block(32, 32), *flat)


def varied():
    torch.manual_seed(0)
    depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
    net = nn.Sequential(block(1, 16, 2), block(16, 32), depthwise, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return net, torch.zeros(1, 1, 16, 16)
"""
)
RECIPE = {"name": "brief", "epochs": 1, "batch": 64, "learning_rate": 0.05, "distillation_weight": 0.5, "threads": 1}
SIMULATED = ("-p", "sim:phone/cpu,sim:phone/gpu", "--alpha", "100", "--beta", "100", "--top", "1", "--even-if-slower")
CORES = usable_cores()


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """A network and a recipe in the working directory."""
    (folder / "net.py").write_text(NETWORK)
    (folder / "brief.json").write_text(json.dumps(RECIPE))


def without_test_images(*arguments: Any, **keywords: Any) -> Dataset:
    """A data set whose test images cannot be read."""
    return replace(load_dataset(*arguments, **keywords), test=UntouchableSplit())


def test_bounds_are_learned_kept_and_used(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = ("--data", "digits", "--image-size", "16x20", "--threads", "1", "--epochs", "2", "-o", "w.safetensors")
    answer_of(cli("train", "net.py:small", *training, "--json"))
    monkeypatch.setattr("nnstretch.training.data.load_dataset", without_test_images)
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


def test_images_have_the_channels_of_the_example_input(cli: Cli, folder: Path) -> None:
    training = ("--data", "digits", "--recipe", "brief.json", "-o", "w.safetensors")
    refuses(
        cli("train", "net.py:coloured", *training),
        "net.py:coloured wants images of 3 channels, and those",
        "have 1; return (module,",
    )
    answer_of(cli("train", "net.py:tinted", *training, "--json"))
    network = build_network("net.py:tinted", NetworkOptions(), Path("w.safetensors"))
    assert (network.options.in_channels, network.example_input.shape) == (3, (1, 3, 16, 16))


def test_weights_that_say_nothing_of_their_network(cli: Cli, folder: Path) -> None:
    from safetensors.torch import save_file

    from nnstretch.frontends.resolve import load_module

    save_file(load_module("net.py:grey")[0].state_dict(), "plain.safetensors")
    stretch = ("stretch", "net.py:grey", "-w", "plain.safetensors", *SIMULATED, "--json")
    refuses(cli(*stretch, "--image-size", "8"), "(1, 1, 8, 8)", "--image-size", "(module, example input)")
    assert answer_of(cli(*stretch, "--image-size", "16"))["designs"]


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
        "--even-if-slower",
        "--json",
    )
    there = answer_of(cli(*stretch, "-p", cores, "--measure-all", "--no-measure"))
    answer_of(cli("profiles", "export", "-o", "p.json", "--json"))
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "here"))
    here = answer_of(cli(*stretch, "-p", cores, "--predict-only", "--profile", "p.json", "-o", "designs"))
    (design,), (same,) = here["designs"], there["designs"]
    assert design["id"] == same["id"]
    assert design["predicted_ms"] == pytest.approx(same["predicted_ms"], rel=1e-6)
    assert (here["clocks"], here["present_ms"]) == ({}, {design["id"]: None})  # another machine's are not known
    assert here["guessed_layers"] == []
    errors = here["errors"][design["id"]]
    assert errors["whole"] == {"median": 0.0, "p90": 0.0, "guessed": 0.0}
    assert len(errors["branches"]) == len(design["branches"])
    assert Path(design["file"]).is_file()
    assert not (folder / "here" / "profiles.sqlite").exists()  # nothing was measured
    elsewhere = ("stretch", "net.py:small", "--image-size", "96", "--predict-only", "--profile")
    lacking = f"cpu:{CORES[0]},opencl"
    refuses(cli(*elsewhere, "p.json", "-p", lacking), "p.json", "opencl", f"cpu:{CORES[0]}")
    refuses(cli(*elsewhere, "p.json", "-p", cores), "too little like", "export the profiles again")
    refuses(cli(*elsewhere, "net.py", "-p", cores), "net.py", "profiles export")
    refuses(cli(*elsewhere, "missing.json", "-p", cores), "missing.json", "No such file")
    refuses(cli(*elsewhere, "p.json", "-p", "sim:phone/cpu,sim:phone/gpu"), "simulated")
    refuses(cli(*elsewhere, "p.json", "-p", cores, "--measure-all"), "--measure-all", "--predict-only")
    refuses(cli("stretch", "net.py:small", "--profile", "p.json", "-p", cores), "--profile needs --predict-only")
    refuses(cli("stretch", "net.py:small", "--fresh", "--pareto"), "--fresh runs designs again; leave --pareto out")

    # The store there is changed to say that its times are those of a far lower clock than the present one.
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "there"))
    with closing(sqlite3.connect(folder / "there" / "profiles.sqlite")) as store, store:
        store.execute("UPDATE measurement SET clock = 1")
    done = cli(*stretch, "-p", cores, "--measure-all", "--no-measure")
    found = answer_of(done)
    (design,), slowest = found["designs"], min(found["clocks"].values())
    assert list(found["clocks"]) == cores.split(",")
    assert slowest > 2
    assert found["present_ms"] == {design["id"]: pytest.approx(design["predicted_ms"] / slowest)}
    said = f"first design takes about {found['present_ms'][design['id']]:.3f} ms"
    assert said in " ".join(done[2].split())


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
        done = cli(*prove, "--image-size", str(side), "-o", "proof.json", "-o", "proof.html")
        found = answer_of(done)
        macs[side] = {row["network"]: row["macs"] for row in found["rows"]}
        assert macs[side]["control"] == pytest.approx(macs[side]["branched"], rel=0.3)
        assert (found["predicted_ms"] is None) == ("the design was made for" in done[2]) == (side == 32)
    assert macs[32]["branched"] > 3 * macs[16]["branched"]
    assert cli("report", "proof.json", "-o", "again.html", "-o", "again.svg")[0] == 0
    assert Path("again.html").read_text() == Path("proof.html").read_text()
    assert "Where the time goes" in Path("again.svg").read_text()


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_weights_of_the_original_are_taken_as_such_beside_a_design(cli: Cli, folder: Path) -> None:
    """Their top-1 is not reported as the branched network's."""
    from nnstretch.cli.models.networks import NetworkOptions, build_network
    from nnstretch.training.weights import save_weights

    answer_of(cli("stretch", "net.py:small", *SIMULATED, "-o", "designs", "--json"))
    (design,) = Path("designs").glob("*.json")
    network = build_network("net.py:small", NetworkOptions())
    save_weights(network.module, Path("w.safetensors"), network.metadata(top1=87.5))
    cores = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    prove = ("bench", "net.py:small", "--design", str(design), "-p", cores, "--no-tune", "-r", "1", "--json")
    done = cli(*prove, "-w", "w.safetensors")
    tops = {row["network"]: row["top1"] for row in answer_of(done)["rows"]}
    assert tops == {"original": 87.5, "branched": None, "control": None}
    assert "w.safetensors are weights of the original, which the branched network inherits" in done[2]
    made = ("compile", "net.py:small", "--design", str(design), "-p", cores, "--no-tune", "-o", "net.nns")
    done = cli(*made, "-w", "w.safetensors")
    assert done[0] == 0
    assert "w.safetensors are weights of the original; the branched network inherits them" in done[2]
    assert "inherit" not in cli(*made, "-w", str(design.with_suffix(".safetensors")))[2]
    other = {**json.loads(design.read_text()), "id": "d000"}
    Path("other.json").write_text(json.dumps(other))
    refuses(
        cli("compile", "net.py:small", "--design", "other.json", "-w", str(design.with_suffix(".safetensors"))),
        "weights of the branching",
        "--design is",
    )


def test_a_network_stays_whole_where_no_branched_design_is_ahead(cli: Cli, folder: Path) -> None:
    assert SIMULATED[-1] == "--even-if-slower"
    stretch = ("stretch", "net.py:small", *SIMULATED[:-1], "-o", "designs")
    done = cli(*stretch, "--json")
    found = answer_of(done)
    (design,) = found["designs"]
    assert (design["meeting_points"], len(design["branches"])) == (0, 1)
    assert found["unbranched"] == {
        "predicted_ms": design["predicted_ms"],
        "processor": "sim:phone/cpu",
        "why_not_branched": None,
    }
    assert found["recalled"] is False
    assert found["branched_ms"] > design["predicted_ms"] == pytest.approx(min(found["original_ms"].values()))
    instead = "\nrun the network without branches, on sim:phone/cpu\n"
    assert instead in done[2]
    assert done[2].count(" pay") == 1
    assert "nnstretch train" not in done[2]
    note = (
        "ranching does not pay here: the network without branches, on sim:phone/cpu alone, is predicted to take "
        f"{design['predicted_ms']:.3f} ms; the fastest branched design {found['branched_ms']:.3f} ms"
    )
    assert note in " ".join(done[2].split())
    assert note in Path(found["page"]).read_text()
    done = cli("stretch", "net.py:small", *SIMULATED, "-o", "forced", "--json")
    (forced,) = answer_of(done)["designs"]
    assert instead in done[2]
    retrain = f"nnstretch train net.py:small --design {forced['file']} "
    assert f"to retrain a design all the same, with the network as its teacher:\n  {retrain}" in done[2]
    assert forced["meeting_points"]
    assert forced["predicted_ms"] == pytest.approx(found["branched_ms"])

    # The file is a design as any other; the network runs where it was predicted to be fastest.
    made = ("compile", "net.py:small", "--design", design["file"], "-p", "cpu:0", "--no-tune", "-o", "net.nns")
    assert answer_of(cli(*made, "--json"))["steps"]
    exported = ("export", "net.py:small", "--design", design["file"], "-o", "net.onnx")
    assert cli(*exported)[0] == 0
    refuses(cli(*exported, "--per-branch", "parts"), "has no branches", "meeting points")
    if len(CORES) > 1:
        cores = f"cpu:{CORES[0]},cpu:{CORES[1]}"
        proof = cli("bench", "net.py:small", "--design", design["file"], "-p", cores, "--no-tune", "-r", "1")
        assert proof[0] == 0
        assert "predicted ms" not in proof[1]  # a table without rows
        assert f"“branched” is the original network, alone, on cpu:{CORES[0]}" in proof[2]
    assert answer_of(cli(*stretch[:-4], "--alpha", "1e-9", "--json"))["unbranched"]["why_not_branched"].count("alpha")
    refuses(cli("stretch", "net.py:small", *SIMULATED, "--alpha", "1e-9"), "alpha")


def branches(*sizes: tuple[int, float, float]) -> tuple[BranchDesign, ...]:
    """Branches by processor, depth and width."""
    return tuple(BranchDesign(p, (0,), depth, width, 32, 10**7, 0.4) for p, depth, width in sizes)


@pytest.mark.parametrize("width", [80, 200])
def test_tables_of_designs_are_whole_on_narrow_terminals(width: int) -> None:
    segments = (
        SegmentDesign(0, 1, branches((1, 1.0, 1.0))),
        SegmentDesign(1, 10, branches((0, 0.67, 0.97), (1, 1.0, 0.41))),
    )
    found = Design("d90294bb4b3", segments, 16, 18 * 10**8, 10**6, 148 * 10**7, 10_200_000, 108.837)
    names = ("cpu:0-1", "opencl:0@2-3")
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(designs_table([found], names, (112.575, 121.199), {found.id: 107.123}))
    console.print(branches_table([found], names))
    text = console.export_text()
    assert "…" not in text
    head, rows = text.partition("original:")[0], text.partition("depth × width")[2]
    for cell in (
        "d90294bb4b3",
        "1.48 G 82%",
        "10.2 M",
        "108.837",
        "107.123",
        "1.03×",
        "44%",
        "params",
        "meets",
    ):
        assert cell in head, cell
    lines = [line.split("  ") for line in rows.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["1", "0", "0", "–", "whole"] in cells
    assert ["1", "1–9", "0.67 × 0.97", "1.00 × 0.41"] in cells


def test_the_table_of_designs_says_which_macs_it_leaves_out() -> None:
    segments = (SegmentDesign(0, 1, branches((0, 1.0, 1.0))),)
    found = Design("d1", segments, 16, 10**6, 10**6, 10**6, 10**6, 1.0)
    assert "8.39 M" in str(designs_table([found], ("cpu:0",), (1.0,), product_macs=8_388_608).caption)
    assert "MACs are" not in str(designs_table([found], ("cpu:0",), (1.0,)).caption)


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
    forced = (*stretch, "--even-if-slower")
    refuses(cli(*forced, "--beta", "0.0001"), "beta = 0.0001", "the least that can be reached is")
    refuses(cli(*forced, "--beta", "100", "--alpha", "1e-9"), "alpha = 1e-09", "the least that can be reached is")
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
    path = Path(__file__).resolve().parents[4] / "scripts" / "studies" / "predictor_check.py"
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


@pytest.mark.parametrize("place", ["new", "there"])
def test_nothing_stays_of_a_design_that_cannot_be_written(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The disk is full when its last large file is written."""

    def fails(model: object, path: Path) -> None:
        raise FileError(f"cannot write {path}: No space left on device")

    (folder / "there").mkdir()
    monkeypatch.setattr("nnstretch.frontends.onnx_file.save", fails)
    refuses(cli("stretch", "net.py:small", *SIMULATED, "-o", place), "cannot write", ".onnx", "No space left")
    assert list((folder / "there").iterdir()) == [] and not (folder / "new").exists()
