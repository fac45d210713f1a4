"""`nnstretch quantize`: layers that stay in float32, sensitivities, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nnstretch.frontends.onnx_file import load, save
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize
from nnstretch.report.documents.readers import read_document
from nnstretch.training.data.preprocessing import PHOTO_MEAN, PHOTO_STD, PREPROCESSING_KEY, Preprocessing
from tests.kits.command_line import Cli, refuses, said
from tests.kits.graphs.float_networks import classifier, normal


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    set_gains(monkeypatch, gains=False)
    save(classifier(), folder / "net.onnx")
    np.savez(folder / "x.npz", x=normal(4, 3, 16, 16))
    return ("quantize", "net.onnx", "--data", "x.npz", "-o", "q.onnx")


def set_gains(monkeypatch: pytest.MonkeyPatch, *, gains: bool) -> None:
    """Lets the commands believe that this machine's CPU is faster with narrow weights, or not."""
    function = "nnstretch.devices.cpu.routines.int8.weighted.gains_by_narrow_weights"
    monkeypatch.setattr(function, lambda _isa, _features: gains)


def test_weights_of_reduced_range(cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(cli(*command, "--json")[1])
    assert plain["full_range_error"] is None
    reduced = json.loads(cli(*command, "--reduce-range", "--json")[1])
    assert reduced["full_range_error"] == pytest.approx(plain["error"])
    assert reduced["error"] > plain["error"]
    weighted = [n.layer for n in layers(optimize(load(Path("q.onnx")))) if n.layer.op in ("Conv", "Dense")]
    assert weighted and all(layer.has_narrow_weights for layer in weighted)
    status, out, err = cli(*command, "--reduce-range")
    assert status == 0
    assert "; with weights of the full range 0.0" in out
    assert "as fast with weights of eight bits" in err
    set_gains(monkeypatch, gains=True)
    assert cli(*command, "--reduce-range")[2] == ""
    assert "(--reduce-range) are computed faster" in cli(*command)[2]


def test_sensitivities_and_layers_that_stay(cli: Cli, command: tuple[str, ...]) -> None:
    status, out, err = cli(*command, "--method", "mse", "--keep-float", "c2", "--keep-float", "auto:1", "--sensitivity")
    assert (status, err) == (0, "")
    *table, floating, last = out.splitlines()
    titles, rule, *rows = (line.strip() for line in table if line.strip())
    assert titles.split() == ["layer", "operator", "output", "error", "dB", "computes", "in"]
    assert set(rule) == {"─"}
    places = {row.split()[0]: row.split()[-1] for row in rows[:5]}
    assert set(places) == {"c1", "c3", "s3", "p", "y"}
    assert "output error" in last and "dB)" in last
    assert (
        floating == f"in float32: {', '.join(name for name in ('c1', 'c2', 'c3', 'y') if places.get(name) != 'int8')}"
    )
    answer = json.loads(cli(*command, "--keep-float", "c2", "--max-error", "0.001", "--json")[1])
    layers = [layer["layer"] for layer in answer["sensitivity"]]
    assert "c2" in answer["kept_float"]
    assert set(layers[:1]) <= set(answer["kept_float"])
    assert answer["error"] <= 0.001
    assert answer["sensitivity"][0]["snr_db"] == pytest.approx(-20 * np.log10(answer["sensitivity"][0]["error"]))
    status, out, err = cli(*command, "--max-error", "1e-12")
    assert (status, "no layer is in int8" in err) == (0, True)
    plain = json.loads(cli(*command, "--json")[1])
    assert (plain["sensitivity"], plain["kept_float"], plain["preprocessing"]) == ([], [], None)
    assert plain["snr_db"] == pytest.approx(-20 * np.log10(plain["error"]))


def test_a_page_of_a_quantised_network(cli: Cli, command: tuple[str, ...]) -> None:
    out = cli(*command, "--keep-float", "c2", "--sensitivity", "--rounding", "adaptive", "--json")[1]
    answer = json.loads(out)
    assert "c2" in answer["float_layers"]
    assert len(answer["float_layers"]) == answer["other_layers"]
    Path("q.json").write_text(out)
    document = read_document("q.json")
    tables = {one.title: one.table for one in document.sections if one.table is not None}
    assert [row[0] for row in tables["Layers in float32"].rows] == answer["float_layers"]
    assert [row[0] for row in tables["Sensitivity"].rows] == [one["layer"] for one in answer["sensitivity"]]
    assert len(tables["Adaptive rounding"].rows) == len(answer["rounding"])
    assert document.figures["MB of the file"] == pytest.approx(Path("q.onnx").stat().st_size / 1e6)


def test_calibration_files_that_are_damaged(cli: Cli, command: tuple[str, ...]) -> None:
    whole = Path("x.npz").read_bytes()
    np.save("array.npy", normal(4, 3, 16, 16))
    np.savez("number.npz", x=np.float32(1))
    np.savez_compressed("packed.npz", x=np.zeros((4, 3, 16, 16), np.float32))
    packed = bytearray(Path("packed.npz").read_bytes())
    packed[len(packed) // 3] ^= 0x10
    damaged = {"half": whole[: len(whole) // 2], "other": Path("array.npy").read_bytes(), "flipped": bytes(packed)}
    for name, content in damaged.items():
        Path(f"{name}.npz").write_bytes(content)
    for name in (*damaged, "number"):
        refuses(cli("quantize", "net.onnx", "--data", f"{name}.npz", "-o", "q.onnx"), f"{name}.npz")


def test_weights_that_lose_less(cli: Cli, command: tuple[str, ...]) -> None:
    status, out, _ = cli(*command, "--equalize", "--bias-correction")
    assert status == 0
    assert "pairs equalised: 1; biases corrected: 4; output error" in out
    answer = json.loads(cli(*command, "--bias-correction", "--keep-float", "y", "--json")[1])
    assert (answer["equalized_pairs"], answer["corrected_layers"]) == (0, 3)


def test_adaptive_rounding(cli: Cli, command: tuple[str, ...]) -> None:
    status, out, err = cli(*command, "--rounding", "adaptive")
    assert (status, err) == (0, "")
    head, _, *rows, _, last = (line for line in out.splitlines() if line.strip())
    assert head.split() == ["layer", "operator", "error,", "nearest", "error,", "adaptive", "weights", "changed"]
    assert [row.split()[0] for row in rows] == ["c1", "c2", "c3", "y"]
    assert " of 4 layers rounded adaptively; output error" in last
    answer = json.loads(cli(*command, "--rounding", "adaptive", "--json")[1])["rounding"]
    assert [layer["operator"] for layer in answer] == ["Conv", "Conv", "Conv", "Gemm"]
    assert all(layer["error"] <= layer["nearest_error"] for layer in answer)
    assert sum(layer["changed_weights"] for layer in answer) > 0
    assert json.loads(cli(*command, "--json")[1])["rounding"] == []
    refuses(cli(*command, "--rounding", "up"), "up", "adaptive")


def test_the_preprocessing_of_x(cli: Cli, folder: Path) -> None:
    stated = Preprocessing(16, 3, PHOTO_MEAN, PHOTO_STD, 1.0, "bicubic")
    for name, metadata in (("silent", {}), ("stating", {PREPROCESSING_KEY: stated.to_json()})):
        graph = classifier()
        graph.metadata_props.update(metadata)
        save(graph, folder / f"{name}.onnx")
    status, out, err = cli("quantize", "stating.onnx", "--data", "digits", "--images", "4", "-o", "q.onnx")
    assert status == 0, err
    assert out.splitlines()[0] == (
        "calibration images (as the model states): 16×16 pixels, RGB, of values 0 to 1 mean 0.485, 0.456, 0.406 and std 0.229, "
        "0.224, 0.225, bicubic from 16 pixels"
    )
    command = ("quantize", "silent.onnx", "--data", "digits", "--images", "4", "-o", "q.onnx")
    said = cli(*command)[1]
    assert "calibration images (assumed, since the model's metadata have no nnstretch.preprocessing): 16×16" in said
    answer = json.loads(cli(*command, "--json")[1])["preprocessing"]
    assert (answer["stated"], answer["channel_order"], answer["image_size"]) == (False, "RGB", 16)
    assert len(answer["mean"]) == len(answer["std"]) == 3


def test_what_is_refused(cli: Cli, command: tuple[str, ...], folder: Path) -> None:
    refuses(cli(*command, "--keep-float", "nothing*"), "nothing*", "c1")
    refuses(cli(*command, "--keep-float", "auto:0"), "auto:0", "auto:3")
    refuses(cli(*command, "--keep-float", "auto", "--keep-float", "heads"), "--keep-float", "heads")
    refuses(cli(*command, "--max-error", "0"), "largest error", "0.01")
    refuses(cli(*command, "--method", "guess"), "guess", "mse")
    assert not (folder / "q.onnx").exists()


def test_constant_calibration_data_are_warned_of(cli: Cli, command: tuple[str, ...], folder: Path) -> None:
    status, _, err = cli(*command)
    assert (status, "constant" in err) == (0, False)
    images = normal(4, 3, 16, 16)
    for data, about in (
        (np.zeros_like(images), "input 'x' is 0 everywhere"),
        (np.where(np.arange(3).reshape(3, 1, 1) == 1, np.float32(0.7), images), "channel 1 of input 'x' has one value"),
        (
            np.where(np.arange(3).reshape(3, 1, 1) > 0, np.float32(0.7), images),
            "channels 1, 2 of input 'x' have one value",
        ),
    ):
        np.savez(folder / "x.npz", x=data)
        status, _, err = cli(*command)
        (line,) = said(err)
        assert status == 0
        assert line.startswith(f"warning: calibration data are constant: {about}")
        assert "a .npz file of real inputs" in line
