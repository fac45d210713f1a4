"""`nnstretch evaluate`: every form that a network ships in, classes one by one, two networks on the same images."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from PIL import Image

from nnstretch.training.evaluation.statistics import mcnemar, wilson_interval
from tests.kits.command_line import Cli, answer_of, refuses

pytestmark = pytest.mark.usefixtures("network")

IMAGES = 539
LEARNING = """
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = []
    for before, after in ((1, 16), (16, 24), (24, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 6, 10)), torch.zeros(1, 1, 16, 24)
"""
"""A network that learns stretched digits within seconds: images are no squares."""
QUICK = ("--data", "digits", "--no-tune", "--threads", "1", "--json")


def test_every_form_of_a_network_has_the_same_accuracy(cli: Cli, folder: Path) -> None:
    (folder / "learning.py").write_text(LEARNING)
    network = ("learning.py:network", "--weights", "w.safetensors")
    trained = answer_of(cli("train", network[0], "--data", "digits", "-t", "1", "-o", "w.safetensors", "--json"))
    assert trained["top1"] > 85
    for product in (("w.nns",), ("alone", "--standalone")):
        assert cli("compile", *network, "--no-tune", "--threads", "1", "-o", *product)[0] == 0
    made = cli("quantize", *network, "--data", "digits", "--images", "64", "-o", "int8.onnx")
    assert made[0] == 0, made
    (model_file,) = (folder / "alone").glob("*.nnm")
    forms: dict[str, tuple[str, ...]] = {
        "torch": (*network, "--engine", "torch"),
        "compiled": network,
        "onnxruntime": (*network, "--engine", "ort"),
        "package": ("w.nns",),
        "standalone": (str(model_file),),
        "int8": ("int8.onnx",),
        "int8 on onnxruntime": ("int8.onnx", "--engine", "onnxruntime"),
    }
    for name, form in forms.items():
        how = QUICK if name not in ("package", "standalone") else ("--data", "digits", "--json")
        answer = answer_of(done := cli("evaluate", *form, *how))
        assert "assumed" not in done[2], name
        assert answer["top1"] == pytest.approx(trained["top1"], abs=2 if "int8" in name else 0.4), name
        assert answer["top5"] > answer["top1"]
        assert answer["top5"] == pytest.approx(trained["top5"], abs=0.6)
        assert (answer["images"], answer["image_size"]) == (IMAGES, [16, 24])
        right = round(answer["top1"] / 100 * IMAGES)
        assert answer["top1_interval"] == pytest.approx([100 * end for end in wilson_interval(right, IMAGES)])
    both = answer_of(cli("evaluate", *network, *QUICK, "--engine", "onnxruntime", "--compare", "int8.onnx"))["compare"]
    assert 95 < both["agreement"] <= 100
    assert both["top1"] == pytest.approx(trained["top1"], abs=2)
    refuses(cli("evaluate", str(model_file), "--data", "digits", "--engine", "torch"), "standalone", "torch")
    refuses(cli("evaluate", str(model_file), *QUICK, "-p", "cpu:0"), "processors")
    refuses(cli("evaluate", "w.nns", "--data", "digits", "--image-size", "24"), "16×24 pixels", "--image-size is 24×24")
    refuses(cli("evaluate", "int8.onnx", *QUICK, "--image-size", "24x16"), "16×24 pixels", "--image-size is 24×16")


def test_other_image_sizes(cli: Cli) -> None:
    for engine in ("torch", "nnstretch"):
        answer = answer_of(cli("evaluate", "net.py:small", "--engine", engine, *QUICK, "--image-size", "24x16"))
        assert answer["image_size"] == [24, 16]
    refuses(
        cli("evaluate", "net.py:small", *QUICK, "--image-size", "24", "--shape", "x=1,1,24,24"),
        "--shape",
        "--image-size",
    )


def test_images_that_are_not_square(cli: Cli, folder: Path) -> None:
    """A file for inputs of 16×24, evaluated on photographs by both engines, and quantised by them."""
    (folder / "wide.py").write_text(LEARNING.replace("32 * 6, 10", "32 * 6, 2"))
    assert cli("export", "wide.py:network", "-o", "wide.onnx")[0] == 0
    for number in range(12):
        split, label = ("train", "val", "test")[number % 3], "ab"[number % 2]
        place = folder / "photos" / split / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (90, 40 + number), (20 * number, 9, 9)).save(place / f"{number}.png")
    how = ("--data", "folder:photos", "--json")
    ours, other = (
        answer_of(cli("evaluate", "wide.onnx", *how, "--no-tune", "--threads", "1", "--engine", engine))
        for engine in ("nnstretch", "onnxruntime")
    )
    assert (ours["image_size"], ours["images"]) == ([16, 24], 4)
    assert ours["top1"] == other["top1"]
    for data in ("folder:photos", "photos/train/a"):
        made = answer_of(cli("quantize", "wide.onnx", "--data", data, "--images", "2", "-o", "int8.onnx", "--json"))
        assert made["preprocessing"]["image_size"] == [16, 24]
    refuses(cli("evaluate", "wide.onnx", *how, "--image-size", "16"), "16×24 pixels", "--image-size is 16×16")


@pytest.mark.parametrize("engine", ["nnstretch", "onnxruntime"])
def test_data_of_other_classes_are_refused_before_the_network_is_compiled(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    def compiled(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr("nnstretch.cli.models.sources.Source.open", compiled)
    monkeypatch.setattr("nnstretch.cli.models.classifiers._onnxruntime", compiled)
    (folder / "three.py").write_text(LEARNING.replace("32 * 6, 10", "32 * 6, 3"))
    done = cli("evaluate", "three.py:network", "--data", "digits", "--engine", engine)
    refuses(done, "writes [1, 3] for 1 image of 10 classes; [1, 10] is wanted")


def test_classes_of_other_names_are_refused_and_of_another_order_named(cli: Cli, folder: Path) -> None:
    digits = "digits.onnx"
    assert cli("export", "net.py:small", "-o", digits)[0] == 0
    how = ("--data", "digits", "--engine", "onnxruntime")

    def named(names: list[str]) -> tuple[int, str, str]:
        model = onnx.load(digits)
        onnx.helper.set_model_props(model, {"nnstretch.classes": json.dumps(names)})
        onnx.save(model, digits)
        return cli("evaluate", digits, *how)

    numbers = [str(digit) for digit in range(10)]
    refuses(named([str(100 + n) for n in range(10)]), "no class of digits ('0', '1', '2' and 7 more)", "'100', '101'")
    for same in (numbers, [f"digit {n}" for n in numbers]):
        assert "names differ" not in named(same)[2]
    moved = " ".join(named(["0", "1", "3", "2", *numbers[4:9], "11"])[2].split())
    assert "digits.onnx has no class '9'; class 2 is '2' in digits and '3' in digits.onnx" in moved


def test_classes_one_by_one(cli: Cli) -> None:
    command = ("evaluate", "net.py:small", "--data", "digits", "--engine", "torch", "--device", "cpu", "--per-class")
    classes = answer_of(cli(*command, "--json"))["per_class"]
    assert [one["class"] for one in classes] == [str(digit) for digit in range(10)]
    assert sum(one["images"] for one in classes) == IMAGES == sum(one["answered"] for one in classes)
    for one in classes:
        low, high = one["top1_interval"]
        assert low <= one["top1"] <= high
        assert one["top1"] == 100 or one["most_taken_for"]["images"] >= 1
    status, out, err = cli(*command)
    assert status == 0, err
    shown = [line for line in out.splitlines() if line.strip()]
    assert len(shown) == 3 + 10  # accuracies, titles, a rule, and the classes
    assert "most taken for" in out


def test_two_networks_on_the_same_images(cli: Cli, folder: Path, onnx_file: Path) -> None:
    command = ("evaluate", "net.py:small", "--data", "digits", "--engine", "torch", "--compare")
    same = answer_of(cli(*command, "net.py:unsized", "--image-size", "16", "--json"))["compare"]
    assert (same["agreement"], same["only_first"], same["only_second"], same["mcnemar_p"]) == (100, 0, 0, 1)
    assert same["confusion_changes"] == []
    trained = cli("train", "net.py:small", "--data", "digits", "--epochs", "1", "-t", "1", "-o", "w.safetensors")
    assert trained[0] == 0
    answer = answer_of(cli(*command, "net.py:small:w.safetensors", "--json"))
    other = answer["compare"]
    assert other["model"] == "net.py:small:w.safetensors"
    assert other["both_right"] + other["only_first"] == round(answer["top1"] / 100 * IMAGES)
    assert other["both_right"] + other["only_second"] == round(other["top1"] / 100 * IMAGES)
    assert other["both_right"] + other["only_first"] + other["only_second"] + other["both_wrong"] == IMAGES
    assert other["mcnemar_p"] == pytest.approx(mcnemar(other["only_first"], other["only_second"]))
    changes = other["confusion_changes"]
    assert 0 < len(changes) <= 10
    differences = [abs(one["first"] - one["second"]) for one in changes]
    assert differences == sorted(differences, reverse=True)
    status, out, err = cli(*command, "net.py:small:w.safetensors")
    assert status == 0, err
    assert "McNemar" in out
    assert "taken for" in out
    compiled = answer_of(done := cli("evaluate", str(onnx_file), *QUICK, "--compare", str(onnx_file)))
    said = f"images (assumed, since the metadata of {onnx_file} have no nnstretch.preprocessing): 16×16 pixels, grey"
    assert done[2].count(said) == 1
    assert compiled["compare"]["agreement"] == 100
    refuses(cli("evaluate", "net.py:small", "--data", "digits", "--compare-design", "d.json"), "--compare")
    refuses(cli(*command, "net.py:small:missing.safetensors"), "missing.safetensors")
    refuses(cli("evaluate", "net.py:small", *QUICK, "--device", "cpu"), "--device cpu", "--engine torch")
    refuses(cli("evaluate", "net.py:small", *QUICK, "--engine", "torch", "--device", "abacus"), "abacus")
