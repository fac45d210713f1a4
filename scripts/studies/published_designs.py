"""Compares designs of our search with published designs of equal MACs, both in simulated time, as a Markdown table.

    python scripts/studies/published_designs.py resnet34=R-34-CG.yaml,R-34-CD.yaml resnet50=R-50-CG.yaml \
        -p sim:phone/cpu,sim:phone/gpu -p sim:phone/cpu,sim:phone/gpu,sim:phone/dsp --image-size 224 -o table.md

NET=FILE[,FILE…] names a network, as `nnstretch bench` takes it, and files in the form of NN-Stretch's authors. A file counts on
the processors that its DEVICES name; where several do, the fastest of them has the row. Each row is what these commands say:

    nnstretch stretch NET -p PROCESSORS --min-macs SHARE --even-if-slower --best-effort --top 1 -o designs
    nnstretch bench NET --design FILE.yaml -p PROCESSORS
    nnstretch bench NET --design designs/1-….json -p PROCESSORS

SHARE is the published design's MACs over the original's, so that ours has at least as many. Original and control of equal MACs
run on the fastest processor alone, and on all of them, placed and split by the scheduler. Nothing is measured, so all machines
print the same. Rows are kept in the work folder; an interrupted table goes on there, as long as the code is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn

import nnstretch
from nnstretch import devices, scheduler, zoo
from nnstretch.api.options import StretchOptions
from nnstretch.api.stretch import stretch
from nnstretch.bench.ablation.result import Ablation
from nnstretch.bench.ablation.simulation import simulate_ablation, simulated_source
from nnstretch.branching.pycls.files import read_published
from nnstretch.branching.stretch import published
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.network import export_branched
from nnstretch.cli.console import exit_status
from nnstretch.cli.models.networks import Network, NetworkOptions, build_network
from nnstretch.compiler.compile import simulate_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import parse_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.torch_module import export
from nnstretch.report.tables.text import ms_text, share_text, times_text
from nnstretch.support.image_size import parse_image_size
from nnstretch.support.json_text import DAMAGED
from nnstretch.support.settings import write_text
from nnstretch.zoo.blocks import SqueezeExcite

COLUMNS = (
    "network", "processors", "original, fastest alone", "original, split", "control, fastest alone", "control, split",
    "perfect split", "published", "its MACs", "ours", "our MACs", "× published", "× best alternative", "of the perfect split",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A network on processors; latencies in milliseconds, MACs as shares of the original's.

    Attributes:
        network: its name.
        processors: their names in the profile.
        file: the published design.
        original_ms, original_split_ms, control_ms, control_split_ms, perfect_split_ms: of the alternatives; the control has the
            published design's MACs, and is taken on its fastest processor.
        published_ms, published_macs: of the published design.
        ours_ms, ours_macs: of the search's design.
    """

    network: str
    processors: str
    file: str
    original_ms: float
    original_split_ms: float
    control_ms: float
    control_split_ms: float
    perfect_split_ms: float
    published_ms: float
    published_macs: float
    ours_ms: float
    ours_macs: float

    @property
    def gain(self) -> float:
        """Latency of the published design over that of ours."""
        return self.published_ms / self.ours_ms

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        alternatives = (self.original_ms, self.original_split_ms, self.control_ms, self.control_split_ms)
        return (
            self.network,
            self.processors,
            *(ms_text(ms, 2) for ms in (*alternatives, self.perfect_split_ms)),
            ms_text(self.published_ms, 2),
            share_text(self.published_macs),
            ms_text(self.ours_ms, 2),
            share_text(self.ours_macs),
            times_text(self.gain),
            times_text(min(alternatives) / self.ours_ms),
            share_text(self.perfect_split_ms / self.ours_ms),
        )


def efficientnet_b5_without_gates() -> tuple[nn.Module, torch.Tensor]:
    """EfficientNet-B5 as NN-Stretch timed it: without squeeze-and-excitation, and with ReLU6."""
    network = zoo.build("efficientnet_b5")
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SqueezeExcite):
                setattr(parent, name, nn.Identity())
            elif isinstance(child, nn.SiLU):
                setattr(parent, name, nn.ReLU6())
    return network.eval(), torch.zeros(1, 3, 224, 224)


class Study:
    """The rows of one network."""

    def __init__(self, model: str, files: Sequence[Path], image_size: str | None) -> None:
        """Takes the network as `nnstretch bench` does, its published files, and the side of its images."""
        self.model, self.files, self.image_size = model, files, image_size

    @property
    def name(self) -> str:
        """How the table calls the network."""
        return self.model.rpartition(":")[2]

    def row(self, processors: str) -> Row | None:
        """The network on processors; None if no file is for them.

        Raises:
            NNStretchError: a file, the profile or the network is wrong, or no design is found.
        """
        found = [(self._published(file, names), file) for file in self.files if (names := _order(file, processors))]
        if not found:
            return None
        best, file = min(found, key=lambda entry: entry[0].branched_ms)
        ratio = best.branched_row.macs / self._original.macs
        ours_ms, ours_macs = self._searched(processors, ratio)
        return Row(
            self.name,
            ", ".join(spec.part for spec in parse_processors(processors)),
            file.name,
            min(best.original_ms.values()),
            best.original_split_ms,
            min(best.control_ms.values()),
            best.control_split_ms,
            best.perfect_split_ms,
            best.branched_ms,
            ratio,
            ours_ms,
            ours_macs / self._original.macs,
        )

    def _published(self, file: Path, processors: str) -> Ablation:
        """A published design beside its alternatives."""
        network = self._original
        result = published(network.module, network.example_input, read_published(file))
        control = single_branch_control(network.module, network.example_input, result.design.macs)
        graphs = (self._graph, export(control, network.example_input))
        branched = export_branched(result.module, network.example_input)
        return simulate_ablation(*graphs, branched, processors, design=result.design)

    def _searched(self, processors: str, least: float) -> tuple[float, int]:
        """Milliseconds and MACs of the search's design with at least a share of the original's MACs."""
        network = self._original
        options = StretchOptions(processors, min_macs=least, even_if_slower=True, best_effort=True)
        found = stretch(network.module, network.example_input, options=options)[0]
        _, run = simulate_model(export_branched(found.module, network.example_input), build_processors(processors))
        return run.total * 1e-6, found.design.macs

    @cached_property
    def _original(self) -> Network:
        size = None if self.image_size is None else parse_image_size(self.image_size)
        return build_network(self.model, NetworkOptions(image_size=size))

    @cached_property
    def _graph(self) -> ir.Model:
        return self._original.export()


def _order(file: Path, processors: str) -> str:
    """The processors with those of a file first, in the file's order; empty if some are not among them."""
    specs = {spec.part: str(spec) for spec in parse_processors(processors)}
    devices = read_published(file).processors
    if not set(devices) <= specs.keys():
        return ""
    return ",".join(specs[name] for name in dict.fromkeys([*devices, *specs]))


@cache
def code_digest() -> str:
    """What stands for the code that makes rows: this file, and the packages that search, plan and simulate."""
    folders = [Path(folder) for package in (nnstretch, devices, scheduler) for folder in package.__path__]
    files = [Path(__file__), *(file for folder in folders for file in sorted(folder.rglob("*.py")))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def kept_row(study: Study, processors: str, work: Path) -> Row | None:
    """A row, from the work folder if an earlier call with the same files, profile and code has left it there.

    Raises:
        NNStretchError: as `Study.row`.
    """
    source = simulated_source(processors)
    if source is None:
        raise UsageError(f"-p {processors}: name processors of a profile, as in sim:phone/cpu,sim:phone/gpu")
    texts = [str(asdict(read_published(file))) for file in study.files]
    key = json.dumps([study.model, study.image_size, processors, source.identity, code_digest(), *texts])
    path = work / f"{study.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
    with suppress(OSError, *DAMAGED):  # missing, damaged, or of an earlier version
        return Row(**json.loads(path.read_text(encoding="utf-8")))
    row = study.row(processors)
    if row is not None:
        work.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(row), indent=1))
    return row


def table(rows: Sequence[Row], profiles: Sequence[str]) -> str:
    """The Markdown table, and in how many rows our design is ahead."""
    lines = [COLUMNS, ("---", "---", *["--:"] * (len(COLUMNS) - 2)), *(row.cells for row in rows)]
    ahead = sum(row.gain > 1 for row in rows)
    note = (
        f"Milliseconds, simulated from {' and '.join(profiles)}. Our design is faster than the published one in {ahead} of "
        f"{len(rows)} rows."
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{note}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NET=FILE[,FILE…]", help="a network and published designs of it")
    parser.add_argument("-p", "--processors", action="append", required=True, metavar="LIST", help="repeatable")
    parser.add_argument("--image-size", metavar="SIZE", help="as of nnstretch bench")
    parser.add_argument("--work", type=Path, default=Path("out/published"), metavar="DIR", help="kept rows")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table; always printed, too")
    return exit_status(lambda: compare_all(parser.parse_args(arguments)))


def compare_all(options: argparse.Namespace) -> None:
    """Makes all rows and shows the table, which is written after each row.

    Raises:
        NNStretchError: an argument is wrong, or a row cannot be made.
    """
    studies = [_study(text, options.image_size) for text in options.networks]
    profiles = sorted({str(source.profile) for names in options.processors if (source := simulated_source(names))})
    rows: list[Row] = []
    for study in studies:
        for processors in options.processors:
            print(f"{study.name} on {processors}", file=sys.stderr)
            row = kept_row(study, processors, options.work)
            if row is None:
                continue
            rows.append(row)
            if options.output is not None:
                write_text(options.output, table(rows, profiles))
    print(table(rows, profiles), end="")


def _study(text: str, image_size: str | None) -> Study:
    model, equals, files = text.partition("=")
    if not equals or not files:
        raise UsageError(f"{text} names no published design; write NET=FILE.yaml, as in resnet34=R-34-CG.yaml")
    return Study(model, [Path(file) for file in files.split(",")], image_size)


if __name__ == "__main__":
    sys.exit(main())
