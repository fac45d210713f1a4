"""A network on several processors beside each alone."""

from __future__ import annotations

import json

import pytest
import torch

from nnstretch.api.options import CompileOptions
from nnstretch.bench.placement import measure_together, without_placements
from nnstretch.bench.timing import MeasurementOptions, TimingOptions
from nnstretch.branching.transform.network import export_branched
from nnstretch.devices.base.spec import usable_cores
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.report.documents.ways import together_document
from nnstretch.report.tables.runs import together_table
from nnstretch.support.progress import silent
from tests.kits.networks.tiny_branching import SIDE, branched

CORES = usable_cores()
QUICK = MeasurementOptions(TimingOptions(1, 0.001), compiling=CompileOptions(tune=False))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_branched_network_runs_on_each_processor_alone_as_well() -> None:
    graph = export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE))
    names = [f"cpu:{core}" for core in CORES[:2]]
    found = measure_together("net", graph, names, QUICK, silent)
    assert list(found.alone) == names
    assert found.pays
    assert found.max_rel_error < 1e-4
    assert "its design says where layers run" in str(together_table(found).caption)
    document = together_document(json.loads(json.dumps(found.to_json())))
    assert not [name for name in document.figures if "bound" in name]
    assert any(PLACEMENT_KEY in node.metadata_props for node in graph.graph), "the network is as it was"
    assert not any(PLACEMENT_KEY in node.metadata_props for node in without_placements(graph).graph.all_nodes())
