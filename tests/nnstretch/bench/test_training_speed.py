"""The speed of a training beside a plain loop: both train the same network on the same images in the same types."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nnstretch.bench.training_speed import Part, SpeedResult, SpeedSettings, training_speed
from nnstretch.errors import UsageError

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "studies" / "training_speed.py"
CPU = torch.device("cpu")
NETWORK = """
import torch
from torch import nn

def small(num_classes=4):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, num_classes)), torch.zeros(1, 3, 12, 12)
"""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"amp_dtype": "float32"},
        {"amp_dtype": "float32", "channels_last": False},
        {"amp_dtype": "bfloat16"},
        {"amp_dtype": "float32", "torchcompile": "eager"},
    ],
)
def test_both_loops_do_the_same_steps(changes: dict[str, Any]) -> None:
    """The losses of the last step agree, so weights, images, order, rate and types do."""
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    events: list[str] = []
    settings = SpeedSettings(batch=8, steps=3, warmup=2, rounds=2, threads=1, workers=0, **changes)
    found = training_speed(
        module,
        torch.zeros(1, 1, 12, 12),
        3,
        settings,
        CPU,
        lambda done, total, what: events.append(f"{done}/{total} {what}"),
    )
    assert events == ["0/4 round 1, training", "1/4 round 1, plain", "2/4 round 2, plain", "3/4 round 2, training"]
    for one, other in zip(found.training, found.plain, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5 if changes["amp_dtype"] == "float32" else 2e-2)
        assert one.images_per_second > 0 < other.images_per_second
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_ratio_is_the_median_over_the_rounds() -> None:
    result = SpeedResult(
        SpeedSettings(), tuple(Part(rate, 1.0) for rate in (9.0, 20.0, 99.0)), tuple(Part(10.0, 1.0) for _ in range(3))
    )
    assert result.ratio == 2.0
    assert result.to_json()["images_per_second"] == {"training": 20.0, "plain": 10.0}


def test_steps_on_accelerators_are_those_at_which_losses_are_fetched() -> None:
    on_gpu = SpeedSettings(steps=30, warmup=3).on(torch.device("cuda"))
    assert (on_gpu.steps, on_gpu.warmup) == (40, 20)
    assert SpeedSettings(steps=30, warmup=3).on(CPU) == SpeedSettings(steps=30, warmup=3)


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"warmup": 0}, {"batch": 1}])
def test_numbers_that_are_too_small_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(changes))} is .* or more are wanted"):
        SpeedSettings(**changes)  # type: ignore[arg-type]


def test_the_script_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    main = runpy.run_path(str(SCRIPT))["main"]
    short = ["--rounds", "1", "--steps", "2", "--warmup", "1", "--batch-size", "4", "--device", "cpu", "-t", "1"]
    call = [f"{tmp_path}/net.py:small", "--num-classes", "4", "--amp-dtype", "float32", *short]
    assert main([*call, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["image_size"] == 12
    assert answer["settings"]["amp_dtype"] == "float32"
    assert len(answer["rounds"]["training"]) == len(answer["rounds"]["plain"]) == 1
    assert answer["ratio"] == pytest.approx(
        answer["images_per_second"]["training"] / answer["images_per_second"]["plain"]
    )
    assert main(call) == 0
    assert "images/s, ratio " in capsys.readouterr().out
    assert main([*call, "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "error: rounds is 0; 1 or more are wanted\n"
