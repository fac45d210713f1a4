"""`nnstretch sweep designs`: opens or resumes a study, runs its workers, writes and shows the front."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions, StretchOptions
from nnstretch.cli.console import Reporter
from nnstretch.cli.sources import Source
from nnstretch.cli.stretching.files import DesignFiles, write_design
from nnstretch.errors import FileError, UsageError
from nnstretch.report.tables.text import plain_table
from nnstretch.sweeps.objectives import Fidelity, Objective
from nnstretch.sweeps.samplers import OPENMP_THREADS
from nnstretch.sweeps.study import WARM, states

if TYPE_CHECKING:
    from optuna import Study
    from rich.table import Table

    from nnstretch.cli.networks import Network
    from nnstretch.compiler.processors import Processors
    from nnstretch.sweeps.accuracy import DesignTraining
    from nnstretch.sweeps.designs import DesignSweep, SweepPoint, SweepResult, SweepSpec
    from nnstretch.sweeps.evaluation import DesignEvaluation
    from nnstretch.sweeps.measuring import DesignTimer
    from nnstretch.sweeps.turns import Turns

_TICK = 0.5


@dataclass(frozen=True)
class DesignJob:
    """A sweep of designs as the command line describes it.

    Attributes:
        network: the original.
        processors: of the branches, as the user wrote them.
        objectives: of the study.
        fidelity: of the study's values.
        spec: what is explored, and how.
        data: of trainings; None: nothing is trained.
        recipe: of the full training.
        devices: that train: worker n takes number n, modulo their count; empty: all take the fastest one.
        tune: whether measured designs are tuned.
        work: folder of results.
        output: folder for the front; None: it is not written.
        workers: processes.
        worker: number of this process among them; None: it is the one that starts them.
    """

    network: Network
    processors: str
    objectives: tuple[Objective, ...]
    fidelity: Fidelity
    spec: SweepSpec
    data: str | None
    recipe: str
    devices: tuple[str, ...]
    tune: bool
    work: Path
    output: Path | None
    workers: int
    worker: int | None

    def run(self, report: Reporter) -> None:
        """Runs the sweep.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.compiler.processors import build_processors
        from nnstretch.sweeps.designs import DesignSweep
        from nnstretch.sweeps.turns import Turns

        with report.progress("Sweeping") as advance:
            sweep = DesignSweep(
                self.network.module, self.network.example_input, build_processors(self.processors), self.spec, advance
            )
            timer = self._timer(sweep)  # what it refuses leaves no study behind, and so does the training
            turns = Turns() if timer is None else Turns(self.work)
            training = self._training(sweep, turns)
            study = sweep.open()
            evaluation = self._evaluation(sweep, study, timer, training, turns)
            if self.worker is not None:
                sweep.run(study, evaluation, worker=self.worker, turns=turns)
                return
            report.note(sweep.warm_start(study))
            if self.workers > 1:
                self._run_workers(report)
            else:
                sweep.run(study, evaluation, turns=turns)
            result = sweep.result(study)
        self._finish(report, result, sweep)

    def _evaluation(
        self,
        sweep: DesignSweep,
        study: Study,
        timer: DesignTimer | None,
        training: DesignTraining | None,
        turns: Turns,
    ) -> DesignEvaluation:
        from nnstretch.sweeps.evaluation import DesignEvaluation
        from nnstretch.sweeps.results import ResultStore

        machine = "+".join(processor.fingerprint for processor in sweep.processors.named)
        return DesignEvaluation(
            study,
            sweep.space,
            self.objectives,
            self.fidelity,
            sweep.space.limits,
            self.spec.bounds,
            ResultStore(self.work),
            f"{sweep.digest}+{machine}",
            timer,
            training,
            self.spec.reduction,
            turns,
        )

    def _timer(self, sweep: DesignSweep) -> DesignTimer | None:
        """Runs designs; None on simulated processors.

        Raises:
            UsageError: an objective needs runs and there are none, or energy cannot be read.
        """
        from nnstretch.sweeps.energy import EnergyMeter

        names = {objective.name for objective in self.objectives}
        timer = sweep.timer(tune=self.tune, meter=EnergyMeter() if "energy" in names else None)
        if timer is None and any(one.known_from is Fidelity.MEASURED for one in self.objectives):
            raise UsageError(
                f"designs cannot run on {self.processors}; leave p90 and energy out of --objectives, or name processors that "
                "are here"
            )
        return timer

    def _training(self, sweep: DesignSweep, turns: Turns) -> DesignTraining | None:
        """Trains designs; None if the study's fidelity needs no training.

        Raises:
            UsageError: there are no images, they are for another task, or there is no such device.
        """
        if self.fidelity < Fidelity.DISTILLED:
            return None
        from nnstretch.cli.training import check_classification
        from nnstretch.sweeps.accuracy import DesignTraining
        from nnstretch.sweeps.results import ResultStore
        from nnstretch.training.data import load_dataset
        from nnstretch.training.loop.torch_settings import find_device
        from nnstretch.training.recipe_files import load_recipe

        if self.data is None:
            raise UsageError(f"accuracies of fidelity {self.fidelity.label} need images; name them with --data")
        image = self.network.example_input
        dataset = load_dataset(self.data, image.shape[-1], image.shape[1], preprocessing=self.network.preprocessing)
        check_classification(dataset, "a sweep for accuracy")
        devices = [find_device(name) for name in self.devices or (None,)]
        device = devices[(self.worker or 0) % len(devices)]
        return DesignTraining(
            self.network.module,
            dataset,
            load_recipe(self.recipe, self.network.spec),
            device,
            ResultStore(self.work),
            {"network": sweep.digest},
            turns,
        )

    def _run_workers(self, report: Reporter) -> None:
        """Runs the command in several processes; those of a study take over the trials of one that dies.

        Raises:
            UsageError: none of them ended well.
        """
        environment = dict(os.environ)
        if self.fidelity < Fidelity.DISTILLED:
            environment.setdefault(OPENMP_THREADS, "1")  # before torch is loaded there
        given = [argument for argument in sys.argv[1:] if argument not in {"--json", "--resume"}]
        command = [sys.executable, "-m", "nnstretch", *given, "--resume"]
        children = [
            subprocess.Popen([*command, "--worker", str(n)], stdout=subprocess.DEVNULL, env=environment)
            for n in range(self.workers)
        ]
        try:
            statuses = [child.wait() for child in children]
        except BaseException:
            for child in children:
                child.terminate()
            raise
        if all(statuses):
            raise UsageError(f"all {self.workers} workers failed; what they wrote says why: mend that and use --resume")
        for number, status in enumerate(statuses):
            if status:
                how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
                report.note(f"worker {number} {how}; the others took over its trial")

    def _finish(self, report: Reporter, result: SweepResult, sweep: DesignSweep) -> None:
        """Writes and shows the front."""
        with report.progress("Writing") as advance:
            files = []
            for rank, point in enumerate(result.front):
                advance(rank, len(result.front), point.design.id)
                files.append(self._write(rank, point, sweep))
        report.show(front_table(result.front, self.objectives, files))
        if not any(point.design.meeting_points for point in result.front):
            report.note(f"no branched design is on the front: {sweep.limits_note(result.study)}")
        counted = states(result.study)
        report.note(
            f"study {self.spec.study!r} in {self.spec.storage}: {counted['complete']} trials complete, {counted['pruned']} "
            f"pruned, {counted['fail']} failed"
        )
        warm = {trial.number for trial in result.study.get_trials(deepcopy=False) if WARM in trial.user_attrs}
        report.finish(
            {
                "study": self.spec.study,
                "storage": self.spec.storage,
                "objectives": [{"name": o.name, "unit": o.unit, "direction": o.direction} for o in self.objectives],
                "fidelity": self.fidelity.label,
                "trials": counted,
                "processors": sweep.names,
                "front": [
                    {
                        "id": point.design.id,
                        "trial": point.number,
                        "values": dict(point.values),
                        "file": file,
                        "merge": point.design.merge.value,
                        "image_size": point.design.image_size,
                        "meeting_points": point.design.meeting_points,
                        "warm_start": point.number in warm,
                    }
                    for point, file in zip(result.front, files, strict=True)
                ],
            }
        )
        if self.output is not None:
            packages = "; `nnstretch bench` and `evaluate` take their .nns files" if sweep.runs_here else ""
            report.note(f"wrote {len(files)} designs to {self.output}{packages}")

    def _write(self, rank: int, point: SweepPoint, sweep: DesignSweep) -> str | None:
        """A design of the front, with its weights (inherited ones if it was not trained), ONNX file, and package.

        There is no package for processors that designs cannot run on.

        Returns:
            The design's path; None without a folder.
        """
        if self.output is None:
            return None
        from nnstretch.branching.stretch import rebuild
        from nnstretch.training.weights import load_weights

        size = point.design.image_size
        original = self.network
        if size is not None and size != original.example_input.shape[-1]:
            original = resized(original, size)
        module = rebuild(original.module, original.example_input, point.design).eval()
        if point.weights is not None:
            load_weights(module, self._weights(point, point.weights))
        branched = replace(original, module=module, design=point.design)
        path, _ = write_design(DesignFiles(self.output, False, None), f"{rank + 1}-", original, branched, ())
        if sweep.runs_here:
            self._write_package(path, branched, sweep.processors)
        return str(path)

    def _write_package(self, path: Path, branched: Network, processors: Processors) -> None:
        """The plan of a design for the processors of the sweep, made as for its measured runs."""
        from nnstretch.compiler.compile import compile_model
        from nnstretch.frontends.onnx_file import load
        from nnstretch.training.data.preprocessing import PREPROCESSING_KEY

        options = CompileOptions(self.processors, tune=self.tune)
        source = Source(self.network.spec, options, path.with_suffix(".safetensors"), path)
        about: dict[str, Any] = {"source": source.to_json(), "tuned": self.tune, "processors": self.processors}
        if branched.preprocessing is not None:
            about[PREPROCESSING_KEY] = branched.preprocessing.to_json()
        model = load(path.with_suffix(".onnx"))  # which was exported just now
        with compile_model(model, processors, tune=self.tune) as session:
            session.save(path.with_suffix(".nns"), {**about, "macs": session.plan.macs})

    def _weights(self, point: SweepPoint, key: str) -> Path:
        """The file of a design's trained weights.

        Raises:
            FileError: this machine does not have it.
        """
        from nnstretch.sweeps.results import ResultStore

        path = ResultStore(self.work).weights(key)
        if not path.is_file():
            raise FileError(
                f"the weights of trial {point.number} are not in {self.work}; name the folder of the worker that trained it "
                "(--work), or copy its files here"
            )
        return path


def resized(network: Network, size: int) -> Network:
    """The network with an example input of another size."""
    import torch

    image = torch.randn((*network.example_input.shape[:2], size, size), generator=torch.Generator().manual_seed(0))
    return replace(network, example_input=image, options=replace(network.options, image_size=size))


def front_table(points: Sequence[SweepPoint], objectives: Sequence[Objective], files: Sequence[str | None]) -> Table:
    """A row per design of the front."""
    columns = [f">{objective.name} {objective.unit}" for objective in objectives]
    has_files = any(files)
    table = plain_table("design", *columns, ">meeting points", ">trial", *(["file"] if has_files else []))
    for point, file in zip(points, files, strict=True):
        values = [f"{point.values[objective.name]:.4g}" for objective in objectives]
        table.add_row(
            point.design.id,
            *values,
            str(point.design.meeting_points),
            str(point.number),
            *([file] if has_files else []),
        )
    return table


def about_job(job: DesignJob, options: StretchOptions) -> dict[str, Any]:
    """What must be the same in every process that works on a study, beside the network and the processors."""
    return {
        "model": job.network.spec,
        "fidelity": job.fidelity.label,
        "data": job.data,
        "recipe": job.recipe if job.data else None,
        "limits": {name: value for name, value in asdict(options.search_limits()).items() if value is not None},
        "bounds": asdict(job.spec.bounds),
    }
