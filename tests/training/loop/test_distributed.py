"""Trainings of several processes: what one process computes, and what happens when one is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from nnstretch.cli.main import main
from nnstretch.errors import StoppedError, UsageError
from nnstretch.training.data.loader import TrainingBatches
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation.objectives import TargetObjective
from nnstretch.training.loop.averaging import recompute_batch_norms
from nnstretch.training.loop.checkpoint import load_checkpoint
from nnstretch.training.loop.distributed import (
    Ranks,
    SplitShare,
    _own_device,
    end_group,
    joined_processes,
    share_of,
    synchronised_batch_norms,
)
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.optimisers import make_optimiser
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.sharding import sharded_copy
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.loop.trainer import train
from nnstretch.training.quantization.rounding import ActivationQuantizer
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import read_tensors
from tests.kits.networks.small_network import SMALL_NETWORK
from tests.kits.networks.small_training import few_digits
from tests.kits.networks.unreadable_images import made
from tests.kits.processes.forks import assert_no_threads_of_a_group, join_group, run_in_group, run_side_by_side

RECIPE = Recipe(
    epochs=2, batch_size=16, lr=0.05, model_ema=True, model_ema_decay=0.9, precise_bn_samples=48, shift=0.05,
    grad_accum_steps=2, clip_grad=1.0, amp_dtype="float32", threads=1, workers=0, target_accuracy=99.9,
)  # fmt: skip


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(128, 16), nn.BatchNorm1d(16), nn.Linear(16, 10),
    )  # fmt: skip


def few() -> Dataset:
    """80 digits to learn from; 21 to validate on, which two processes cannot share evenly."""
    return few_digits(80, 21)


def _train(rank: int, count: int, folder: str) -> None:
    """Trains in one of several processes; the teacher's logits and feature maps are learnt, too."""
    module = network()
    result = train(module, few(), RECIPE, teacher=network(), run=RunOptions(Path(folder) / "run"))
    torch.save([module.state_dict(), result.validation_score], f"{folder}/{rank}")


def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    module = network()
    expected = train(module, few(), RECIPE, teacher=network(), run=RunOptions(tmp_path / "one"))
    run_in_group(_train, 2, str(tmp_path))
    found = [torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2)]
    for weights, accuracy in found:
        assert accuracy == expected.validation_score
        for name, value in module.state_dict().items():
            torch.testing.assert_close(weights[name], value, atol=2e-5, rtol=2e-4, msg=name)
            assert torch.equal(weights[name], found[0][0][name]), name
    one, two = (load_checkpoint(RunOptions(tmp_path / name).last) for name in ("one", "run"))
    assert [r.train_top1 for r in two.history] == pytest.approx([r.train_top1 for r in one.history], abs=2.6)
    assert [r.loss for r in two.history] == pytest.approx([r.loss for r in one.history], rel=1e-4)


def _train_in_parts(rank: int, count: int, folder: str, trainings: Mapping[str, Recipe], stop: int | None) -> None:
    """Trains with recipes, each in the folder of its name and from where that stands, and may stop after a step."""
    for name, recipe in trainings.items():
        request = StopRequest()

        def see(event: TrainingEvent, request: StopRequest = request) -> None:
            if event.step == stop:
                request.signal = signal.SIGTERM

        module, options = network(), RunOptions(Path(folder) / name, resume=stop is None)
        with suppress(StoppedError):
            train(module, few(), recipe, network(), see, options, request)
        torch.save(module.state_dict(), f"{folder}/{name}-{rank}")


@pytest.mark.slow
def test_shards_compute_what_whole_weights_do(tmp_path: Path) -> None:
    """A training stops with two processes in shards, and goes on with two, or with one and whole weights."""
    plain = replace(RECIPE, lr=0.02, epochs=1, target_accuracy=0.0)
    recipes = {"sgd": plain, "adamw": replace(plain, opt="adamw", lr=0.002)}
    divided = {name: replace(recipe, fsdp=True) for name, recipe in recipes.items()}
    run_in_group(_train_in_parts, 2, str(tmp_path), divided, 2)
    for name in recipes:
        saved = load_checkpoint(RunOptions(tmp_path / name).last)
        assert saved.counters.step == 2
        assert all(type(value) is Tensor for value in saved.tensors.values())
        shutil.copytree(tmp_path / name, tmp_path / f"{name} alone")
    run_in_group(_train_in_parts, 2, str(tmp_path), divided, None)
    for name, recipe in recipes.items():
        module, alone = network(), network()
        expected = train(module, few(), recipe, network(), run=RunOptions(tmp_path / f"{name} whole"))
        train(alone, few(), recipe, network(), run=RunOptions(tmp_path / f"{name} alone", resume=True))
        first, second = (torch.load(tmp_path / f"{name}-{rank}", weights_only=True) for rank in range(2))
        two = load_checkpoint(RunOptions(tmp_path / name).last)
        assert two.history[0].loss == pytest.approx(expected.history[0].loss, rel=1e-5)
        for key, value in module.state_dict().items():
            assert torch.equal(first[key], second[key]), key
            if name == "sgd":  # Adam enlarges rounding where gradients are 0, as those of biases before batch norms
                torch.testing.assert_close(first[key], value, atol=2e-6, rtol=1e-5, msg=key)
                torch.testing.assert_close(alone.state_dict()[key], value, atol=2e-6, rtol=1e-5, msg=key)
        one = load_checkpoint(RunOptions(tmp_path / f"{name} whole").last).tensors
        assert {key: value.shape for key, value in one.items()} == {key: t.shape for key, t in two.tensors.items()}


def test_shards_refuse_optimisers_that_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.training.loop.optimisers.DTensor", Tensor)
    with pytest.raises(UsageError, match="opt lamb cannot train shards; take sgd, momentum, adam or adamw"):
        make_optimiser(network(), TargetObjective(), replace(RECIPE, opt="lamb"))


@pytest.mark.parametrize("changes", [{"torchcompile": "eager"}, {"amp_dtype": "float16"}])
def test_shards_refuse_what_they_cannot_follow(changes: dict[str, Any]) -> None:
    recipe = replace(RECIPE, fsdp=True, **changes)
    assert sharded_copy(network(), recipe, Ranks(), torch.device("cpu")) is None
    with pytest.raises(UsageError, match=f"{next(iter(changes))}.*fsdp"):
        sharded_copy(network(), recipe, Ranks(0, 2), torch.device("cpu"))


def test_batch_norms_may_have_statistics_of_their_own(tmp_path: Path) -> None:
    """The statistics of the first process are those of the result, in all processes and in the average."""
    recipe = replace(RECIPE, sync_bn=False, precise_bn_samples=0, epochs=1, target_accuracy=0.0)
    run_in_group(_train_in_parts, 2, str(tmp_path), {"own": recipe}, None)
    first, second = (torch.load(tmp_path / f"own-{rank}", weights_only=True) for rank in range(2))
    module = network()
    train(module, few(), replace(recipe, sync_bn=True), network())
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert any(not torch.allclose(value, first[name], atol=1e-3) for name, value in module.state_dict().items())


BAD, SEED = frozenset({8, 13}), 2
"""Images that cannot be decoded, and a seed that gives each of two processes one of them."""


def _train_on_unreadable(rank: int, count: int, folder: str) -> None:
    images, recipe = made(64, bad=BAD, side=8), Recipe(epochs=1, batch_size=4, workers=0, seed=SEED)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    result = train(module, images, recipe, run=RunOptions(Path(folder) / "run"))
    torch.save([result.unreadable, result.note], f"{folder}/{rank}")


def test_images_that_any_process_could_not_decode_are_counted(tmp_path: Path) -> None:
    recipe = Recipe(epochs=1, batch_size=4, workers=0, seed=SEED)
    batches = [TrainingBatches(made(64, bad=BAD, side=8), recipe, rank=rank, ranks=2) for rank in (0, 1)]
    assert [len(list(one.epoch(0))) for one in batches] == [16, 16]
    assert all(len(one.unreadable) == 1 for one in batches), "each process sees one of them"
    run_in_group(_train_on_unreadable, 2, str(tmp_path))
    for rank in range(2):
        count, note = torch.load(tmp_path / str(rank), weights_only=True)
        assert count == 2
        assert note.startswith("2 of 64 training images cannot be decoded")
    assert len(load_checkpoint(RunOptions(tmp_path / "run").last).counters.unreadable) == 2


def _fail() -> None:
    """Fails right after a collective operation, with the network that began it in a variable."""
    parallel = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
    torch.autograd.backward([parallel(torch.ones(2, 3)).sum()])
    raise KeyError("after a step")


def _end_after_an_error(rank: int, count: int, file: str) -> None:
    join_group(rank, count, file)
    try:
        _fail()
    except KeyError:
        end_group()
        assert_no_threads_of_a_group()


def test_an_error_that_refers_to_the_group_does_not_keep_it(tmp_path: Path) -> None:
    run_side_by_side(_end_after_an_error, 2, str(tmp_path / "meet"))


def _normalise(rank: int, count: int, folder: str) -> None:
    norm, images = nn.BatchNorm2d(3), _images()[rank::count].clone().requires_grad_()
    with synchronised_batch_norms(Ranks.current()):
        loss = (norm(images) ** 3).sum()
    torch.autograd.backward([loss])
    precise = nn.BatchNorm2d(3)
    recompute_batch_norms(precise, _batches()[rank::count], Ranks.current())
    torch.save([images.grad, norm.running_mean, norm.running_var, precise.running_var], f"{folder}/{rank}")


def _images() -> Tensor:
    return torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * 2 + 3


def _batches() -> list[Tensor]:
    images = _images()
    return [images[first : first + 2] for first in range(0, len(images), 2)]


def test_batch_norms_see_the_whole_batch(tmp_path: Path) -> None:
    norm, images = nn.BatchNorm2d(3), _images().requires_grad_()
    torch.autograd.backward([(norm(images) ** 3).sum()])
    precise = nn.BatchNorm2d(3)
    recompute_batch_norms(precise, _batches())
    assert images.grad is not None
    run_in_group(_normalise, 2, str(tmp_path))
    for rank in range(2):
        gradient, mean, variance, precise_variance = torch.load(tmp_path / str(rank), weights_only=True)
        torch.testing.assert_close(gradient, images.grad[rank::2], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mean, norm.running_mean)
        torch.testing.assert_close(variance, norm.running_var)
        torch.testing.assert_close(precise_variance, precise.running_var)


def _round(rank: int, count: int, folder: str) -> None:
    quantizer = ActivationQuantizer(-1.0, 1.0, "ema").train()
    quantizer(_images()[rank::count])
    torch.save([quantizer.low, quantizer.high], f"{folder}/{rank}")


def test_ranges_of_activations_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """Else every process would round in another way."""
    whole = ActivationQuantizer(-1.0, 1.0, "ema").train()
    whole(_images())
    run_in_group(_round, 2, str(tmp_path))
    for rank in range(2):
        low, high = torch.load(tmp_path / str(rank), weights_only=True)
        assert (float(low), float(high)) == (float(whole.low), float(whole.high))


def test_a_split_is_shared_without_loss() -> None:
    split = few().validation
    shares = [share_of(split, Ranks(rank, 4)) for rank in range(4)]
    assert sorted(np.concatenate([share.labels for share in shares]).tolist()) == sorted(split.labels.tolist())
    assert [len(share) for share in shares] == [6, 5, 5, 5]
    np.testing.assert_array_equal(shares[1].arrays(np.array([2])), split.arrays(np.array([9])))
    assert len(SplitShare(split, 30, 4)) == 0
    assert share_of(split, Ranks()) is split


@pytest.mark.parametrize(
    ("given", "own"), [("cuda", "cuda:1"), ("xpu", "xpu:1"), ("cpu", "cpu"), ("mps", "mps"), (None, None)]
)
def test_every_process_of_a_machine_has_its_own_device(
    monkeypatch: pytest.MonkeyPatch, given: str | None, own: str | None
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _own_device(given) == own


def test_one_device_for_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UsageError, match=r"--device cuda:0 would give one .* all 2 processes .*; write --device cuda, "),
        joined_processes("cuda:0"),
    ):
        pass
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # one process on each of two machines
    assert _own_device("cuda:0") == "cuda:0"


def test_a_single_process_needs_no_group() -> None:
    ranks = Ranks.current()
    assert (ranks.rank, ranks.count, ranks.is_first) == (0, 1, True)
    assert ranks.any(True, False) == [True, False]
    with synchronised_batch_norms(ranks):
        assert functional.batch_norm(torch.ones(2, 1), torch.zeros(1), torch.ones(1)).shape == (2, 1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(SMALL_NETWORK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = (
    *("train", "net.py:small", "--data", "digits", "--image-size", "16", "--batch-size", "64", "--device", "cpu"),
    *("--target-accuracy", "0", "--threads", "1", "--epochs", "3", "-o", "w.safetensors"),
)


def launched(*more: str) -> subprocess.Popen[str]:
    """`nnstretch train` in two processes that torchrun starts."""
    command = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "nnstretch",
    )
    return subprocess.Popen((*command, *COMMAND, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _command(rank: int, count: int, folder: str, *more: str) -> None:
    """`nnstretch train` in one of several processes, as torchrun starts it; its standard output is a file."""
    os.chdir(folder)
    os.dup2(os.open(f"out{rank}", os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    group = partial(distributed.init_process_group, init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    distributed.init_process_group = group
    assert main([*COMMAND, *more]) == 0


def workers(launcher: int) -> Iterator[int]:
    """The processes that a launcher has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher:
            yield int(path.parent.name)


@pytest.mark.slow
def test_a_lost_process_ends_the_others_in_one_line_and_the_training_goes_on(folder: Path) -> None:
    run_side_by_side(_command, 2, str(folder), "--run-dir", "whole")
    assert sorted((folder / f"out{rank}").read_text().count("top-1") for rank in range(2)) == [0, 1]
    expected, _ = read_tensors(folder / "w.safetensors")

    process = launched("--checkpoint-minutes", "0")
    last = RunOptions(folder / "w.run").last
    while not last.exists() or load_checkpoint(last).counters.epoch < 1:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(max(workers(process.pid)), signal.SIGKILL)
    _, err = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "Traceback" not in err.partition("ChildFailedError")[0].partition("torch/distributed")[0], err
    assert len([line for line in err.splitlines() if line.startswith(("error: another process", "stopped after"))]) == 1

    for name in ("out0", "out1", "meet"):
        (folder / name).unlink(missing_ok=True)
    run_side_by_side(_command, 2, str(folder), "--resume", "--json")
    answer = "".join((folder / f"out{rank}").read_text() for rank in range(2))
    assert [record["epoch"] for record in json.loads(answer)["history"]] == [1, 2, 3]
    found, _ = read_tensors(folder / "w.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
