"""The front of a sweep: its table, and the files of its designs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.models.sources import Source
from nnstretch.cli.stretching.files import DesignFiles, write_design
from nnstretch.errors import FileError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.int8_form import INT8
from nnstretch.report.tables.text import plain_table
from nnstretch.support.image_size import ImageSize, sides
from nnstretch.sweeps.objectives import Objective, Values

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.cli.models.networks import Network
    from nnstretch.sweeps.designs import DesignSweep, SweepPoint
    from nnstretch.sweeps.measures.quantizer import Quantizer
    from nnstretch.sweeps.measures.results import ResultStore


@dataclass(frozen=True)
class FrontFiles:
    """Writes the designs of a front, with their weights (inherited ones if they were not trained), ONNX files and packages.

    There are no packages for processors that designs cannot run on.

    Attributes:
        folder: of the files.
        network: the original.
        sweep: that found the designs.
        processors: of the branches, as the user wrote them.
        results: has the trained weights.
        quantizer: of designs in int8; None: there are none.
        tune: whether designs were tuned before they were measured.
    """

    folder: Path
    network: Network
    sweep: DesignSweep
    processors: str
    results: ResultStore
    quantizer: Quantizer | None
    tune: bool

    def write(self, rank: int, point: SweepPoint) -> str:
        """Writes a design, and returns the path of its JSON file.

        A design in int8 has an ONNX file in float32, too, as its training left it.

        Raises:
            FileError: a file cannot be written, or this machine does not have the weights.
        """
        from nnstretch.branching.stretch import rebuild
        from nnstretch.training.weights import load_weights

        size = point.design.image_size
        original = self.network
        if size is not None and sides(size) != original.example_input.shape[2:]:
            original = _resized(original, size)
        module = rebuild(original.module, original.example_input, point.design).eval()
        if point.weights is not None:
            load_weights(module, self._weights(point, point.weights))
        branched = replace(original, module=module, design=point.design)
        path, _ = write_design(DesignFiles(self.folder, False, None), f"{rank + 1}-", original, branched, ())
        onnx = path.with_suffix(".onnx")
        if point.form.dtype == INT8:
            onnx = self._write_int8(path)
        if self.sweep.runs_here:
            self._write_package(path, onnx, branched)
        return str(path)

    def _write_int8(self, path: Path) -> Path:
        """The design of a JSON file in int8, as an ONNX file."""
        from nnstretch.frontends.onnx_file import load

        assert self.quantizer is not None
        onnx = path.with_suffix(".int8.onnx")
        self.quantizer.write(load(path.with_suffix(".onnx")), onnx)
        return onnx

    def _write_package(self, path: Path, onnx: Path, branched: Network) -> None:
        """The plan of a design for the processors of the sweep, made as for its measured runs."""
        from nnstretch.compiler.compile import compile_model
        from nnstretch.frontends.onnx_file import load
        from nnstretch.training.data.preprocessing import PREPROCESSING_KEY

        options = CompileOptions(self.processors, tune=self.tune)
        source = Source(self.network.spec, options, path.with_suffix(".safetensors"), path)
        about: dict[str, Any] = {"source": source.to_json(), "tuned": self.tune, "processors": self.processors}
        if branched.preprocessing is not None:
            about[PREPROCESSING_KEY] = branched.preprocessing.to_json()
        with compile_model(load(onnx), self.sweep.processors, tune=self.tune) as session:
            session.save(path.with_suffix(".nns"), {**about, "macs": session.plan.macs})

    def _weights(self, point: SweepPoint, key: str) -> Path:
        """The file of a design's trained weights.

        Raises:
            FileError: this machine does not have it.
        """
        path = self.results.weights(key)
        if not path.is_file():
            raise FileError(
                f"the weights of trial {point.number} are not in {self.results.folder}; name the folder of the worker that "
                "trained it (--work), or copy its files here"
            )
        return path


def _resized(network: Network, size: ImageSize) -> Network:
    """The network with an example input of another size."""
    import torch

    image = torch.randn((*network.example_input.shape[:2], *sides(size)), generator=torch.Generator().manual_seed(0))
    return replace(network, example_input=image, options=replace(network.options, image_size=size))


def front_table(
    points: Sequence[SweepPoint],
    original: Values,
    objectives: Sequence[Objective],
    files: Sequence[str | None],
    targets: Sequence[str] = (),
) -> Table:
    """A row for the original and one per design of the front; with several types or targets it has those of the design."""
    more: dict[str, Sequence[str]] = {}
    of_original = {"dtype": DEFAULT_DTYPE}
    if any(point.form.dtype == INT8 for point in points):
        more["dtype"] = [point.form.dtype for point in points]
    if len(targets) > 1:
        more["target"] = [point.target for point in points]
    if any(files):
        more["file"] = [file or "" for file in files]
    columns = [f">{objective.name} {objective.unit}" for objective in objectives]
    table = plain_table("design", *columns, ">meeting points", ">trial", *more)
    if any(objective.name == "macs" for objective in objectives):
        table.caption = "macs: of convolutions and dense layers"

    def shown(values: Values) -> list[str]:
        return [f"{values[objective.name]:.4g}" for objective in objectives]

    table.add_row("original", *shown(original), "0", "–", *(of_original.get(name, "–") for name in more))
    for number, point in enumerate(points):
        rest = (column[number] for column in more.values())
        table.add_row(point.design.id, *shown(point.values), str(point.design.meeting_points), str(point.number), *rest)
    return table
