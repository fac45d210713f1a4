"""A file per branch: run one after another as the JSON file says, they compute what the whole network computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import nnstretch as nns
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Merge
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork, export_branched
from nnstretch.errors import DesignError, UsageError
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.reference import run_proto
from tests.kits.networks.any_module import UNet, small
from tests.kits.networks.tiny_branching import SIDE, original

interpreter = pytest.importorskip("ai_edge_litert.interpreter")


def network(plan: Blueprint, segments: list[Segment], branches: int) -> BranchedNetwork:
    """Every segment that can be branched has branches of half the width; the others run on processor 0."""
    choices = []
    for segment in segments:
        chosen = [BranchChoice(0, tuple(segment.blocks), 1.0)]
        if plan.branchable(segment):
            chosen = [BranchChoice(i, tuple(segment.blocks), 0.5) for i in range(branches)]
        choices.append(SegmentChoice(segment, plan.meeting(segment, chosen)))
    return build(plan, make_design(plan, choices)).eval()


def chain(merge: Merge, branches: int) -> tuple[BranchedNetwork, torch.Tensor]:
    images = torch.randn(1, 1, SIDE, SIDE)
    plan = blueprint(original(), images, 4, merge)
    return network(plan, list(plan.traced.stages), branches), images


def with_skips() -> tuple[BranchedNetwork, torch.Tensor]:
    images = torch.randn(1, 3, 32, 32)
    plan = blueprint(small(UNet()), images, 4)
    return network(plan, [Segment(i, i + 1) for i in range(len(plan.traced.blocks))], 2), images


NETWORKS = {
    "concat": lambda: chain(Merge.CONCAT, 2),
    "three branches, 1x1": lambda: chain(Merge.CONCAT_1X1, 3),
    "sum of three": lambda: chain(Merge.ADD, 3),
    "skip connections": with_skips,
}


def run_onnx(file: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = onnx.load(file)
    return dict(zip([o.name for o in model.graph.output], run_proto(model, feeds), strict=True))


def run_tflite(file: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    runner = interpreter.Interpreter(str(file)).get_signature_runner()
    found: dict[str, np.ndarray] = runner(**{name: np.ascontiguousarray(value) for name, value in feeds.items()})
    return found


def shapes(tensors: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    return {tensor["name"]: tuple(tensor["shape"]) for tensor in tensors}


def check_files(folder: Path, images: np.ndarray, expected: np.ndarray) -> None:
    """Runs the files in their order and compares the answer with that of the network."""
    index = json.loads((folder / "branches.json").read_text())
    last = index["layout"] == "NHWC"
    (read,), (written,) = index["inputs"], index["outputs"]
    tensors = {read: images.transpose(0, 2, 3, 1) if last else images}
    for part in index["files"]:
        run = run_tflite if last else run_onnx
        found = run(folder / part["file"], {name: tensors[name] for name in shapes(part["inputs"])})
        assert {name: value.shape for name, value in found.items()} == shapes(part["outputs"])
        tensors |= found
    answer = tensors[written].transpose(0, 3, 1, 2) if last and expected.ndim == 4 else tensors[written]
    assert np.allclose(answer, expected, atol=1e-5)
    for join in index["joins"]:
        parts = [tensors[name] for name in join["tensors"]]
        joined = np.concatenate(parts, join["axis"]) if join["operator"] == "concat" else np.sum(parts, axis=0)
        assert joined.shape == tuple(join["result"]["shape"])
        assert any(join["result"]["name"] in part["joins"] for part in index["files"])


@pytest.mark.parametrize("name", NETWORKS)
def test_branches_compute_what_the_network_computes(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, images = NETWORKS[name]()
    with torch.no_grad():
        expected = module(images).numpy()
    graph = export_branched(module, images)
    for suffix in ("onnx", "tflite"):
        folder = tmp_path / suffix
        folder.mkdir()
        made = nns.export(graph, tmp_path / f"whole.{suffix}", branches=folder, check=False)
        assert [file.name for file in made.branches][-1] == f"head.{suffix}"
        check_files(folder, images.numpy(), expected)


def test_where_branches_run(tmp_path: Path) -> None:
    """Files state processors; those of one segment read nothing of each other, so they run at the same time."""
    torch.manual_seed(0)
    module, images = chain(Merge.ADD, 2)
    nns.export(module, tmp_path / "whole.onnx", images)
    nns.export(tmp_path / "whole.onnx", tmp_path / "again.onnx", branches=tmp_path, processors=("cpu:0", "cpu:1"))
    index = json.loads((tmp_path / "branches.json").read_text())
    assert index["processors"] == ["cpu:0", "cpu:1"]
    assert [(part["file"], part["processor"]) for part in index["files"]] == [
        *((f"segment{s}-branch{b}.onnx", b) for s in (0, 1) for b in (0, 1)),
        ("head.onnx", None),
    ]
    for segment in (0, 1):
        parts = [part for part in index["files"] if part["segment"] == segment]
        made = {name for part in parts for name in shapes(part["outputs"])}
        assert not made & {name for part in parts for name in shapes(part["inputs"])}
    assert [join["operator"] for join in index["joins"]] == ["add", "add"]


def test_models_without_branches(tmp_path: Path) -> None:
    images = torch.randn(1, 1, SIDE, SIDE)
    with pytest.raises(DesignError, match="no branches; give the --design"):
        nns.export(original(), tmp_path / "whole.onnx", images, branches=tmp_path)
    module, images = chain(Merge.CONCAT, 2)
    with pytest.raises(UsageError, match="for 2 processors, and 1 are named"):
        nns.export(module, tmp_path / "whole.onnx", images, branches=tmp_path, processors=("cpu",))
    with pytest.raises(UsageError, match=r"is a \.pt2 file"):
        nns.export(module, tmp_path / "whole.pt2", images, branches=tmp_path)
    assert not list(tmp_path.iterdir())


def test_placement_stays_in_the_file(tmp_path: Path) -> None:
    module, images = chain(Merge.CONCAT, 2)
    nns.export(module, tmp_path / "whole.onnx", images)
    placed = {node.metadata_props.get("nnstretch.processor") for node in load(tmp_path / "whole.onnx").graph}
    assert placed == {None, "0", "1"}
