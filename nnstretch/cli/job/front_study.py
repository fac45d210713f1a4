"""A front of latency, accuracy and memory by real trainings, each of whose points other commands confirm.

The job (`cli.job.stages`) has these stages:

    original    a small network is trained on `textures`
    sweep       `nnstretch sweep designs` trains the best of its designs; a package for each one on the front, and the original
    confirm     `nnstretch bench` and `nnstretch evaluate` on each package

Commands do all of it, each in a process of its own, in the job's folder: what they were given is what a user gives. Designs are
random beside those of the analytic search, so that their choice does not depend on the noise of latencies. `--redo sweep`
measures them again and trains only what was not trained before. Nothing is chosen by test images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnstretch.bench.kept_answers import command_answer
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.cli.job.study_options import COMMON, IMAGE_SIZE, RETRAINING, TRAINING
from nnstretch.cli.options import make_directory
from nnstretch.errors import UsageError
from nnstretch.support.settings import write_text

STAGES = ("original", "sweep", "confirm")
_OBJECTIVES = "latency", "accuracy", "memory"
_MIB = 2**20
_RESULTS = "results"
# The accuracy says what a design's capacity is worth.
_LIMITS = ("--alpha", "100", "--beta", "100", "--min-macs", "0.3")
_WARM = 16  # designs of the analytic search
_REDUCTION = 2
_BLOCKWISE_EPOCHS = 0.5
_FILE = '''"""The network and the images of the study."""

from dataclasses import replace
from pathlib import Path

import torch

from nnstretch.bench.accuracy.images import stored_textures
from nnstretch.bench.accuracy.networks import SWEPT, build_network


def images():
    return stored_textures(Path(__file__).with_name("images"), {size}, {epoch_images}, {held_out})


def validation():
    """The same with the validation images in the place of the test images, which `nnstretch evaluate` reads."""
    return replace(images(), test=images().validation)


def network():
    return build_network(SWEPT, images().num_classes, seed=0), torch.zeros(1, 3, {size}, {size})
'''


@dataclass(frozen=True)
class FrontOptions:
    """What the study does.

    Attributes:
        folder: for all that is written.
        processors: of this machine, of one core each.
        trials: of the sweep.
        tune: whether designs and packages are tuned.
        epochs: of the original's training.
        retrain_epochs: of the full training of a design.
        epoch_images: training images per epoch.
        held_out: validation images, and as many test images; None: all.
        redo: of `STAGES`, the first one that is run again.
    """

    folder: Path
    processors: str
    trials: int = 160
    tune: bool = True
    epochs: int = 16
    retrain_epochs: int = 4
    epoch_images: int = 5_000
    held_out: int | None = None
    redo: str | None = None


class FrontStudy:
    """The study.

    Attributes:
        options: what it does.
    """

    def __init__(self, options: FrontOptions) -> None:
        self.options = options
        self._job = Job(options.folder, options.redo)

    def run(self) -> dict[str, Any]:
        """Runs the stages that are not done; returns the sweep's trials by state and a row per package, the original first.

        Raises:
            UsageError: packages cannot run on the processors.
            CommandError: a command failed; it has said why.
            FileError: a file cannot be written.
        """
        if "sim:" in self.options.processors:
            raise UsageError(f"designs cannot run on {self.options.processors}; name processors that are here")
        self._write_inputs()
        tune = self.options.tune
        images = {"epoch_images": self.options.epoch_images, "held_out": self.options.held_out}
        settings = {**images, "epochs": self.options.epochs, "processors": self.options.processors, "tune": tune}
        self._job.run("original", settings, self._original)
        settings = {"trials": self.options.trials, "retrain_epochs": self.options.retrain_epochs}
        swept = self._job.run("sweep", settings, self._sweep, ["original"])
        confirmed = self._job.run("confirm", {}, lambda _: self._confirm(swept), ["original", "sweep"])
        return {"trials": swept.answer["trials"], **confirmed.answer}

    def _write_inputs(self) -> None:
        """The files that commands read."""
        from nnstretch.training.recipe_files import load_recipe, save_recipe

        options, folder = self.options, make_directory(self.options.folder)
        values = {"size": IMAGE_SIZE, "epoch_images": options.epoch_images, "held_out": options.held_out}
        write_text(folder / "study.py", _FILE.format(**values))
        recipes = {
            "original": ("nnstretch", options.epochs, TRAINING),
            "retraining": ("finetune", options.retrain_epochs, {**RETRAINING, "blockwise_epochs": _BLOCKWISE_EPOCHS}),
        }
        for name, (preset, epochs, changes) in recipes.items():
            recipe = replace(load_recipe(preset), name=name, epochs=epochs, **{**COMMON, **changes})
            save_recipe(recipe, folder / f"{name}.yaml")

    # -- stages ----------------------------------------------------------------------------------------------------

    def _original(self, folder: Path) -> Answer:
        """Trains the original."""
        weights = f"{folder.name}/original.safetensors"
        self._command("train", "study.py:network", "--data", "study.py:images", "--recipe", "original.yaml", "-o", weights,
                      "--resume", "auto")  # fmt: skip
        return {"weights": weights}

    def _sweep(self, folder: Path) -> Answer:
        """Sweeps with trainings; results of trainings are kept beside the stage's folder, those of runs are not."""
        if not (folder / "sweep.journal").exists():
            self._forget_runs()
        weights = str(self._job.stages["original"].answer["weights"])
        network = ("study.py:network", "-w", weights, "-p", self.options.processors, *self._tune)
        found = self._command(
            "sweep", "designs", *network, "--data", "study.py:images", "--recipe", "retraining.yaml", "--objectives",
            ",".join(_OBJECTIVES), "--fidelity", "trained", *_LIMITS, "--warm-start", str(_WARM), "--reduction",
            str(_REDUCTION), "--sampler", "random", "--trials", str(self.options.trials), "--study", "textures", "--resume",
            "--storage", f"{folder.name}/sweep.journal", "--work", _RESULTS, "-o", f"{folder.name}/front",
        )  # fmt: skip
        package = f"{folder.name}/original.nns"
        self._command("compile", *network, "-o", package)
        return {**found, "package": package}

    def _confirm(self, swept: Stage) -> Answer:
        """What other commands say of the packages, beside what the sweep has said."""
        reported = {str(swept.answer["package"]): swept.answer["original"]}
        reported |= {str(Path(one["file"]).with_suffix(".nns")): one["values"] for one in swept.answer["front"]}
        benched = self._command("bench", *reported)
        rows = []
        for found in benched["results"]:
            ours, package = found["engines"]["nnstretch"], found["model"]
            confirmed = {
                "latency": ours["p50_ms"],
                "accuracy": self._top1(package, "validation"),
                "memory": ours["plan_bytes"] / _MIB,
            }
            interval, test = ours.get("interval_ms"), self._top1(package, "images")
            rows.append(
                {
                    "package": package,
                    "macs": found["macs"],
                    "reported": reported[package],
                    "confirmed": confirmed,
                    "latency_interval": interval,
                    "test_top1": test,
                }
            )
        return {"disturbed": benched["disturbed"], "rows": rows}

    def _top1(self, package: str, images: str) -> float:
        return float(self._command("evaluate", package, "--data", f"study.py:{images}")["top1"])

    # -- commands --------------------------------------------------------------------------------------------------

    @property
    def _tune(self) -> tuple[str, ...]:
        return () if self.options.tune else ("--no-tune",)

    def _command(self, *arguments: str) -> dict[str, Any]:
        return command_answer((*arguments, "--json"), folder=self.options.folder)

    def _forget_runs(self) -> None:
        """Removes measured runs of designs from the sweep's results, so that they are measured again."""
        for path in (self.options.folder / _RESULTS).glob("*.json"):
            if "latency" in json.loads(path.read_text()):
                path.unlink()


def front_lines(answer: Mapping[str, Any]) -> list[str]:
    """The table in Markdown: what the sweep reported, what commands confirmed, and the differences."""
    units = {"latency": "latency in ms", "memory": "memory in MiB", "accuracy": "validation top-1 in %"}
    titles = "".join(f" {title}: sweep | confirmed | difference |" for title in units.values())
    lines = [f"| design | MACs |{titles} test top-1 in % |", "|---" + "|--:" * (2 + 3 * len(units)) + "|"]
    for row in answer["rows"]:
        cells = []
        for name in units:
            first, second = row["reported"][name], row["confirmed"][name]
            digits = ".2f" if name == "accuracy" else ".3f"
            difference = f"{second - first:+.2f}" if name == "accuracy" else f"{second / first - 1:+.1%}"
            cells += [format(first, digits), format(second, digits), difference]
        title = Path(row["package"]).stem
        lines.append(f"| {title} | {row['macs'] / 1e6:.1f} M | {' | '.join(cells)} | {row['test_top1']:.2f} |")
    return lines
