"""The process that prepares a job's processors: it makes the network by itself, beside the training."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from nnstretch.cli.job import preparation_worker
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.graph.layers import graph_inputs, layers
from nnstretch.passes import optimize

NETWORK = """
import torch
from torch import nn


def make(num_classes=10):
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)]
    return nn.Sequential(*layers), torch.zeros(1, 1, 16, 16)
"""


def test_the_network_of_a_job_is_prepared_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ir.Model]] = []

    def prepare(processors: str, network: Callable[[], ir.Model]) -> None:
        asked.append((processors, network()))

    (tmp_path / "net.py").write_text(NETWORK)
    options = TransformOptions(f"{tmp_path / 'net.py'}:make", "digits", "cpu:0,cpu:1", tmp_path / "job", image_size=24)
    arguments = json.dumps({"parent": os.getppid(), "options": options.to_json()})
    monkeypatch.setattr(sys, "argv", ["worker", arguments])
    monkeypatch.setattr(preparation_worker, "prepare", prepare)
    monkeypatch.setattr(preparation_worker, "die_with_parent", lambda _: None)
    assert preparation_worker.main() == 0
    ((processors, model),) = asked
    graph = optimize(model)
    assert processors == options.processors
    assert [kind.shape for _, kind in graph_inputs(graph)] == [(1, 1, 24, 24)]
    assert next(node.layer.op for node in layers(graph)) == "Conv"
    assert not (tmp_path / "job").exists()
