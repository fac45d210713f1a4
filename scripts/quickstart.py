"""The main job, end to end: train a network, branch it, retrain it, compile it, and measure the gain.

A ResNet-18 learns the handwritten digits of scikit-learn (64×64), is branched for the processors of this machine,
retrained with distillation, and measured beside the original, ONNX Runtime and the equal-MACs control.

    scripts/quickstart [--out out/quickstart] [--processors cpu:0,opencl:0@1] [--seed 0] [--quick]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from nnstretch.errors import NNStretchError

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

    from nnstretch.bench.ablation.result import Ablation
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.loop import TrainingResult
    from nnstretch.training.recipe import Recipe

IMAGE_SIZE = 64
console = Console(width=None if sys.stdout.isatty() else 110)


class Stage(AbstractContextManager["Stage"]):
    """Progress of one step: a moving bar on a terminal, one line elsewhere."""

    def __init__(self, title: str) -> None:
        """`title` names the step."""
        self._title = title
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, total=None, note="")
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if console.is_terminal:
            self._bar.stop()
        elif error is None:
            console.print(f"{self._title} … {time.perf_counter() - self._start:.0f} s")

    def show(self, done: int, total: int, what: str) -> None:
        """Moves the bar; a total of 0 means unknown."""
        self._bar.update(self._task, completed=done, total=total or None, note=what[:40])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/quickstart"), help="folder for what it writes")
    parser.add_argument("--processors", help="such as cpu:0,opencl:0@1; chosen if left out")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--quick", action="store_true", help="train for one epoch only, to see that everything works")
    options = parser.parse_args(arguments)
    try:
        run(options.out, options.processors or choose_processors(), options.seed, options.quick)
    except NNStretchError as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


def choose_processors() -> str:
    """Half of the cores for the CPU and half for OpenCL if a device works; otherwise two groups of CPU cores.

    With a GPU, the CPU gets all cores. On a single core two processors share it.
    """
    from nnstretch.devices.base.spec import default_cores, format_cores
    from nnstretch.devices.opencl.runtime.runtime import probe

    cores = default_cores()
    half = len(cores) // 2
    mine, other = format_cores(cores[:half]), format_cores(cores[half:])
    usable = [(i, d) for i, d in enumerate(probe()) if d.usable]
    for index, device in sorted(usable, key=lambda entry: entry[1].on_cpu):
        if not device.on_cpu:
            return f"cpu:{format_cores(cores)},opencl:{index}"
        return f"cpu:{mine},opencl:{index}@{other}" if half else _on_one_core(cores[0], f"opencl:{index}")
    console.print(
        "no OpenCL device works: two groups of CPU cores are used instead (`apt-get install pocl-opencl-icd`)"
    )
    return f"cpu:{mine},cpu:{other}" if half else _on_one_core(cores[0], "cpu")


def _on_one_core(core: int, other: str) -> str:
    """Two processors on the only core; prints a note."""
    console.print(
        f"[bold]this process has the time of one core only (core {core}): both processors share it and take turns; "
        "every step of the job can be seen, but running the branches at the same time saves nothing[/]",
        highlight=False,
    )
    return f"cpu:{core},{other}"


@dataclass(frozen=True)
class Trained:
    """A network and the result of its training."""

    module: torch.nn.Module
    result: TrainingResult


def run(out: Path, processors: str, seed: int, quick: bool) -> None:
    """The job's steps, in order."""
    import torch

    from nnstretch.branching.transform.control import single_branch_control
    from nnstretch.training.data import load_dataset
    from nnstretch.training.recipe import load_recipe

    started = time.perf_counter()
    make_folder(out)
    dataset = load_dataset("digits", IMAGE_SIZE)
    recipe = replace(load_recipe("quick"), seed=seed)
    again = replace(load_recipe("quick-retrain"), seed=seed)
    if quick:
        recipe, again = (replace(r, epochs=1, scales=((1, 0.5),)) for r in (recipe, again))
    console.print(
        f"processors: {processors}    digits: {len(dataset.train)} to learn from, {len(dataset.test)} to test"
    )
    original = train_original(dataset, recipe, seed)
    example = dataset.train.images(torch.arange(1))
    found = find_branching(original.module, example, processors)
    branched = retrain("retraining the branched network", found.module, dataset, again, original.module)
    control_module = single_branch_control(original.module, example, found.design.macs, found.design.multiple)
    control = retrain("retraining the single-branch control", control_module, dataset, again, original.module)
    graphs = export_all(original.module, control.module, branched.module, example)
    top1 = {
        "original": original.result.top1,
        "control": control.result.top1,
        "branched": branched.result.top1,
    }
    ablation = prove_it(graphs, processors, top1)
    write_products(
        out, ablation, found, branched, graphs, {"original": original, "branched": branched, "control": control}
    )
    show(ablation, out, time.perf_counter() - started)


def make_folder(out: Path) -> None:
    """Makes the output folder, before any work."""
    from nnstretch.errors import FileError

    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"cannot write to {out}: {error.strerror}; choose another place with --out") from error


def train_original(dataset: Dataset, recipe: Recipe, seed: int) -> Trained:
    """A ResNet-18 for small images, trained from scratch."""
    import torch

    from nnstretch.zoo import build

    torch.manual_seed(seed)
    module = build("resnet18", num_classes=dataset.num_classes, small_images=True, pretrained_seed=None, in_channels=1)
    return retrain("training the original network", module, dataset, recipe, None)


def retrain(
    title: str, module: torch.nn.Module, dataset: Dataset, recipe: Recipe, teacher: torch.nn.Module | None
) -> Trained:
    """Trains a network, with distillation if there is a teacher."""
    from nnstretch.training.loop import TrainingEvent, train

    with Stage(title) as stage:

        def show_event(event: TrainingEvent) -> None:
            stage.show(event.step, event.steps, f"{event.image_size}×{event.image_size}, loss {event.loss:.2f}")

        result = train(module, dataset, recipe, teacher=teacher, progress=show_event)
    console.print(f"  top-1 {result.top1:.2f} %")
    return Trained(module.eval(), result)


def find_branching(module: torch.nn.Module, example: torch.Tensor, processors: str) -> StretchResult:
    """The best-ranked branching with inherited weights; `example` ranks blocks by how much they change their input."""
    import nnstretch

    with Stage("finding a branching") as stage:
        results = nnstretch.stretch(module, example, processors, progress=stage.show)
    best = results[0]
    design = best.design
    console.print(
        f"  {design.macs / 1e6:.0f} of {design.original_macs / 1e6:.0f} million MACs, "
        f"{design.meeting_points} meeting points, predicted {design.predicted_ms or 0:.2f} ms"
    )
    return best


def export_all(
    original: torch.nn.Module, control: torch.nn.Module, branched: torch.nn.Module, example: torch.Tensor
) -> dict[str, ir.Model]:
    """All three networks as ONNX graphs."""
    from nnstretch.branching.transform.export import export_branched
    from nnstretch.frontends.torch_module import export

    with Stage("exporting to ONNX") as stage:
        exporters: dict[str, Callable[[], ir.Model]] = {
            "original": lambda: export(original, example),
            "control": lambda: export(control, example),
            "branched": lambda: export_branched(branched, example),  # type: ignore[arg-type]
        }
        graphs: dict[str, ir.Model] = {}
        for number, (name, exporter) in enumerate(exporters.items()):
            stage.show(number, len(exporters), name)
            graphs[name] = exporter()
    return graphs


def prove_it(graphs: dict[str, ir.Model], processors: str, top1: dict[str, float]) -> Ablation:
    """Compiles and measures all rows of the table."""
    from nnstretch.bench.ablation.ablation import ablate

    with Stage("compiling and measuring") as stage:
        return ablate(
            graphs["original"], graphs["control"], graphs["branched"], processors, top1=top1, progress=stage.show
        )


def write_products(
    out: Path,
    ablation: Ablation,
    found: StretchResult,
    branched: Trained,
    graphs: dict[str, ir.Model],
    trained: dict[str, Trained],
) -> None:
    """Writes report, timeline, ONNX file, weights, design and package."""
    from nnstretch.branching.design.design import save_design
    from nnstretch.compiler.compile import compile_model
    from nnstretch.compiler.processors import build_processors
    from nnstretch.frontends.onnx_file import save
    from nnstretch.report.charts.timeline import timeline_svg
    from nnstretch.report.pages.branching import write_report
    from nnstretch.support.settings import write_text
    from nnstretch.training.weights import save_weights

    save(graphs["branched"].clone(), out / "branched.onnx")
    save_weights(branched.module, out / "branched.safetensors", {"design": found.design.id})
    save_design(found.design, out / "design.json")
    with compile_model(graphs["branched"], build_processors(",".join(ablation.processors))) as session:
        session.save(out / "branched.nns", {"name": "branched ResNet-18", "top1": branched.result.top1})
        check_package(out / "branched.nns", session.zeros())
    write_text(out / "timeline.json", ablation.timeline.to_chrome_json())
    write_text(out / "timeline.svg", timeline_svg(ablation.timeline))
    histories = {name: one.result.history for name, one in trained.items()}
    write_report(out / "report.html", ablation, histories=histories, design=found.design)


def check_package(path: Path, feeds: dict[str, np.ndarray]) -> None:
    """Loads the written package and runs it once."""
    from nnstretch.scheduler.runtime.session import PlanSession

    with PlanSession.load(path) as session:
        session.run(None, feeds)


def show(ablation: Ablation, out: Path, seconds: float) -> None:
    """The table and the derived figures."""
    from nnstretch.report.tables.ablation import ablation_table

    console.print(ablation_table(ablation))
    console.print(f"written to {out}: {', '.join(sorted(p.name for p in out.iterdir()))}    ({seconds / 60:.1f} min)")


if __name__ == "__main__":
    sys.exit(main())
