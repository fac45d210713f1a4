"""A recording of a small network's layers, written and read."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

from nnstretch.frontends.torch_module import export
from scripts.studies.record_measurements import read_record, record
from tests.kits.boards.cores import OWN_CORE


def test_every_candidate_is_recorded(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 8, 1))
    model, written = tmp_path / "m.onnx", tmp_path / "record.json"
    ir.save(export(network.eval(), torch.zeros(1, 16, 6, 6)), model)
    record([str(model)], f"cpu:{OWN_CORE}", written, most=1)
    found = read_record(written)
    assert found.machine.cores == 1
    (recorded,) = found.networks[str(model)]
    assert "float32[16,16,1,1]" in recorded.task.candidates[0].workload
    assert len(recorded.task.candidates) == len(recorded.seconds) > 1
    assert len({(point.routine, str(point.parameters)) for point in recorded.task.candidates}) == len(recorded.seconds)
    assert any(seconds is not None and 0 < seconds < 1 for seconds in recorded.seconds)
