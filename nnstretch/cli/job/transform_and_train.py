"""From a model and labelled images to a branched, retrained and measured network, in stages that can be resumed.

    baseline      the model with the weights given, or trained
    designs       branchings for the processors, best first, with inherited weights; or the one that is given
    retrain-…     every design, and the single-branch control of the best one, retrained with the model as their teacher
    int8          the networks quantised after training, if asked for, or trained through quantisation
    measure       the chosen design beside its strongest alternatives; package, ONNX file, timeline and report

The chosen design is the fastest predicted one whose accuracy on the validation images is at most `max_drop` below the
model's, or the most accurate one. Test images are read for the reported accuracies alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.shared_cores import half_of_the_cores
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.cli.job.transform_options import BASELINE, DESIGNS, INT8, MEASURE, RETRAIN, TransformOptions
from nnstretch.cli.models.networks import Network, branch
from nnstretch.cli.options import several_processors
from nnstretch.cli.training import (
    about_images,
    blockwise_phase,
    check_classification,
    event_shown,
    training_images,
    what_was_lost,
)
from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.frontends.resolve import is_model_file
from nnstretch.support.locks import lock_folder
from nnstretch.training.cores import usable_cores

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch import nn

    from nnstretch.api.options import StretchOptions
    from nnstretch.cli.console import Reporter
    from nnstretch.compiler.preparation import Preparation
    from nnstretch.scheduler.runtime.session import PlanSession
    from nnstretch.support.progress import Progress
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
    from nnstretch.training.loop.events import TrainingEvent
    from nnstretch.training.recipe import Recipe

_CONTROL = "control"
_CALIBRATION_IMAGES = 100
_PRECISION = 0.02  # of measured latencies, where a quiet machine allows it
_PREPARATION = (sys.executable, "-m", "nnstretch.cli.job.preparation_worker")


@dataclass(frozen=True)
class Candidate:
    """A network of the job: the original, the control or a design.

    Attributes:
        name: "original", "control" or the design's id.
        weights: its weights file.
        validation_top1, test_top1: in percent.
        design: its file; None if it is not branched.
    """

    name: str
    weights: Path
    validation_top1: float
    test_top1: float
    design: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, with paths as text."""
        values = asdict(self)
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


class TransformAndTrain:
    """One job."""

    def __init__(self, options: TransformOptions, report: Reporter, advice: str = "") -> None:
        """Takes the options.

        Args:
            options: of the job.
            report: gets progress and notes.
            advice: what the message of a training that a signal has stopped says to do.
        """
        self.options = options
        self.report = report
        self._advice = advice
        self._preparation: Preparation | None = None
        self._said: set[str] = set()  # stages whose end another process has reported
        self._graphs: dict[str, ir.Model] = {}  # by the names of candidates
        self.job = Job(options.folder, options.redo)

    def run(self) -> dict[str, Any]:
        """Runs all stages that are not done; returns the answer, which is also written to `answer.json`.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.report.documents.readers import JOB_ANSWER
        from nnstretch.support.settings import write_text

        self._search()  # refused before the long work, like the recipes
        for name in (self.options.recipe, self.options.retrain_recipe):
            self.recipe(name)
        if self._int8_recipe is not None and not self._int8_recipe.qat:
            raise UsageError(f"--int8-recipe {self.options.int8_recipe} has no `qat: true`; take the preset qat")
        if self.options.design is not None:
            self._check_design(self.options.design)
        with lock_folder(self.options.folder, "-o"), ExitStack() as stack:
            stack.callback(self._end_preparation)
            original, designs = self.begun()
            candidates = self.retrain(original, designs)
            answer = {
                "model": Path(self.options.model).name,
                "original": original.to_json(),
                "candidates": [candidate.to_json() for candidate in candidates],
                "int8": self.int8([original, *candidates]),
                "chosen": self.chosen(original, candidates).name,
                "unbranched": self._unbranched,
                "comparison": self.measure(original, candidates),
                "seconds": {kind: round(seconds, 1) for kind, seconds in self.job.seconds().items()},
            }
            write_text(self.options.folder / JOB_ANSWER, json.dumps(answer, indent=1) + "\n")
        return answer

    @property
    def _unbranched(self) -> str | None:
        """Why the design is the original network, once there are designs; None if it is branched."""
        why = self.job.stages[DESIGNS].answer.get("unbranched")
        return None if why is None else str(why)

    def begun(self) -> tuple[Candidate, list[Path]]:
        """The trained model, and the files of the designs that are retrained."""
        names, search = self._search()
        original = self.baseline()
        return original, self.designs(original, names, search)

    @cached_property
    def dataset(self) -> Dataset:
        """The images, loaded once: of the size and with the preprocessing of the weights, if they say."""
        options = self.options
        dataset = training_images(
            options.data,
            options.model,
            self.recipe(options.recipe),
            image_size=options.image_size,
            weights=options.weights,
        )
        check_classification(dataset, "this job")
        self.report.note(dataset.note)
        if options.image_size is None:
            self.report.note(f"images are {dataset.image_size}×{dataset.image_size}; --image-size names another size")
        return dataset

    def recipe(self, name: str) -> Recipe:
        """A recipe for this model, with the changes of the options."""
        from nnstretch.training.recipe_files import load_recipe, recipe_from_json

        found = load_recipe(name, self.options.model).to_json()
        # The stages of progressive resizing add up to the recipe's own epochs.
        stages: dict[str, Any] = {"scales": []} if "epochs" in self.options.changes else {}
        return recipe_from_json({**found, **stages, **self.options.changes})

    def network(self, weights: Path | None, design: Path | None = None) -> Network:
        """The model, or a branching of it. Its example input is a training image, by which the search ranks blocks."""
        import numpy as np
        import torch

        from nnstretch.cli.models.networks import NetworkOptions, build_network
        from nnstretch.training.data.unreadable import inputs_to_learn_from

        dataset, seed = self.dataset, self.recipe(self.options.recipe).seed
        form = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # a factory of the caller's draws its weights from torch's global generator
            network = build_network(self.options.model, form, weights)
        example = torch.from_numpy(inputs_to_learn_from(dataset.train, np.arange(1)))
        network = replace(network, example_input=example)
        return network if design is None else branch(network, design)

    def baseline(self) -> Candidate:
        """The trained model."""
        options = self.options
        settings = {"model": options.model, "data": options.data, "image_size": options.image_size}
        if options.weights is not None or is_model_file(options.model):
            given = {**settings, "weights": _fingerprint(options.weights or Path(options.model))}
            stage = self.stage(BASELINE, "evaluating the model", given, partial(self._take, options.weights))
        else:
            recipe = self.recipe(options.recipe)
            trained = {**settings, "recipe": recipe.to_json()}
            stage = self.stage(BASELINE, "training the model", trained, partial(self._train_baseline, recipe))
        return _candidate("original", stage)

    def _take(self, weights: Path | None, folder: Path) -> Answer:
        """Evaluates the weights given, or those of the model's file, and keeps a copy of them."""
        network = self.network(weights)
        return self._save(network, folder, {})

    def _train_baseline(self, recipe: Recipe, folder: Path) -> Answer:
        from nnstretch.compiler.processors import check_listed

        check_listed(self.options.processors)  # a missing device is found before the long work
        self._prepare()
        network = self.network(None)
        return self._save(network, folder, self._train(network, recipe, None, folder))

    def _prepare(self) -> None:
        """Builds the engine and compiles OpenCL programs beside the training, which leaves cores idle."""
        from nnstretch.compiler.preparation import Preparation
        from nnstretch.devices.base.spec import is_simulated

        if not any(map(is_simulated, self.options.processors.split(","))):
            self.report.note("preparing the processors beside the training: once per version")
            arguments = {"parent": os.getpid(), "options": self.options.to_json()}
            self._preparation = Preparation((*_PREPARATION, json.dumps(arguments)))

    def _is_building(self) -> bool:
        """Whether the engine is built beside this process, or what follows that in the preparation is done."""
        return self._preparation is not None and self._preparation.builds and not self._preparation.ended

    def _end_preparation(self) -> None:
        if self._preparation is not None:
            self._preparation.close()

    def _search(self) -> tuple[Sequence[str], StretchOptions]:
        """The names of the processors, and the options of the search.

        Raises:
            UsageError: there is no such option or processor, or too few processors.
        """
        from nnstretch.api.options import StretchOptions

        options = self.options
        for name in options.search:
            if name not in {one.name for one in fields(StretchOptions)}:
                raise UsageError(f"the search has no option {name!r}; `nnstretch stretch --help` lists them")
        search = StretchOptions(options.processors, **options.search)
        search.search_limits()
        return several_processors(options.processors, "a branching"), search

    def designs(self, original: Candidate, names: Sequence[str], search: StretchOptions) -> list[Path]:
        """Files of the designs, best first; of the one that was given, without a search."""
        if self.options.design is not None:
            given = {"design": _fingerprint(self.options.design)}
            stage = self.stage(DESIGNS, "taking the design", given, partial(self._take_design, self.options.design))
            return [stage.folder / name for name in stage.answer["designs"]]
        from nnstretch.cli.stretching.files import DesignFiles, write_all
        from nnstretch.cli.stretching.search import find

        options = self.options

        def work(folder: Path) -> Answer:
            self._end_preparation()  # it would disturb measurements
            network = self.network(original.weights)
            found = find(self.report, network, search, None)
            search_report = found.results[0].report
            self.report.note(search_report.lifted_note)
            self.report.note(search_report.unbranched_note(names))
            paths, page = write_all(self.report, DesignFiles(folder, False, None), network, names, found.results)
            return {
                "designs": [Path(str(path)).name for path in paths],
                "page": Path(str(page)).name,
                "lifted_limits": search_report.lifted or None,
                "unbranched": search_report.unbranched_note(names) if search_report.stays_unbranched else None,
            }

        settings = {"processors": options.processors, **options.search}
        stage = self.stage(DESIGNS, "searching designs", settings, work, [BASELINE])
        return [stage.folder / name for name in stage.answer["designs"]]

    def _check_design(self, design: Path) -> None:
        """Refuses a design that does not fit the network or the processors, before the long work.

        Raises:
            FileError, DesignError: it cannot be read, or is for another network.
            UsageError: it has branches for other processors.
        """
        from nnstretch.branching.design.design import load_design

        names, _ = self._search()
        highest = max(load_design(design).processors, default=0)
        if highest >= len(names):
            raise UsageError(
                f"{design} has branches for {highest + 1} processors, -p names {len(names)} ({', '.join(names)}); give as many"
            )
        self.network(None, design)

    def _take_design(self, design: Path, folder: Path) -> Answer:
        """Keeps a copy of the design given."""
        from nnstretch.branching.design.design import load_design, save_design

        self._end_preparation()
        made = load_design(design)
        save_design(made, folder / f"{made.id}.json")
        whole = made.is_original
        return {"designs": [f"{made.id}.json"], "unbranched": f"{design} has no branches" if whole else None}

    def retrain(self, original: Candidate, designs: Sequence[Path]) -> list[Candidate]:
        """The designs and the control of the best one, retrained where they learn; others keep inherited weights."""
        designs_of = {**{path.stem: path for path in designs}, _CONTROL: designs[0]}
        learning = {name: design for name, design in designs_of.items() if self._learns(design)}
        self._retrain_together(original, learning)
        return [self.retrain_one(original, name, design) for name, design in designs_of.items()]

    def _learns(self, design: Path) -> bool:
        """Whether a design is retrained: that is not left out, and it is not the original, as where branching does not pay."""
        from nnstretch.branching.design.design import load_design

        return RETRAIN not in self.options.skip and not load_design(design).is_original

    def _retrain_together(self, original: Candidate, designs_of: Mapping[str, Path]) -> None:
        """Retrains several networks at the same time, in processes, where this pays: on a CPU with several cores.

        What is not done afterwards is done in this process, which then meets the same errors.
        """
        from nnstretch.cli.job.retraining import retrain_together, rounds
        from nnstretch.training.loop.torch_settings import find_device

        for name in designs_of:
            self.job.renew(f"{RETRAIN}-{name}")
        left = [name for name in designs_of if not self.job.is_done(f"{RETRAIN}-{name}")]
        if find_device(self.options.device).type != "cpu":
            return
        cores, threads = usable_cores(), self.recipe(self.options.retrain_recipe).threads or 1
        for some in rounds(left, min(self.options.at_once, cores // threads)):
            self.report.note(f"retraining {' and '.join(some)} at the same time …")
            self._said |= {f"{RETRAIN}-{name}" for name in some}

            def ended(name: str) -> None:
                self._export_early(original, name, designs_of[name])

            retrain_together(self.options, some, cores // len(some), self.report, self._advice, ended)

    def _export_early(self, original: Candidate, name: str, design: Path) -> None:
        """Exports what is measured in any case on the core of a retraining that has ended, while others go on.

        Args:
            original: the original.
            name: of the network that was retrained.
            design: its design, or the one that it is the control of.
        """
        if MEASURE in self.options.skip or not self.job.is_done(f"{RETRAIN}-{name}"):
            return
        with suppress(NNStretchError):  # the measurement says why a network cannot be exported
            self._graph(original, original, design)
            if name == _CONTROL:
                self._graph(original, self.retrain_one(original, name, design), design)

    def _graph(self, original: Candidate, candidate: Candidate, design: Path) -> ir.Model:
        """The graph of a candidate, exported once; `design` is the one that it is the control of, if it is the control."""
        if candidate.name not in self._graphs:
            self._graphs[candidate.name] = self.rebuilt(original, candidate, [design]).export()
        return self._graphs[candidate.name]

    def retrain_one(self, original: Candidate, name: str, design: Path) -> Candidate:
        """A design retrained, or the control of one."""
        recipe = self.recipe(self.options.retrain_recipe)
        trains = self._learns(design)
        make = self._control if name == _CONTROL else self._branched

        def work(folder: Path) -> Answer:
            network = make(original, design)
            history = self._train(network, recipe, self.network(original.weights).module, folder) if trains else {}
            return self._save(network, folder, history)

        settings = {"recipe": recipe.to_json() if trains else None}
        title = f"{'retraining' if trains else 'evaluating'} {name}"
        stage = self.stage(f"{RETRAIN}-{name}", title, settings, work, [BASELINE, DESIGNS])
        return _candidate(name, stage, None if name == _CONTROL else design)

    def _branched(self, original: Candidate, design: Path) -> Network:
        """A design with weights inherited from the original."""
        return self.network(original.weights, design)

    def _control(self, original: Candidate, design: Path) -> Network:
        """The original scaled in width to the design's MACs."""
        from nnstretch.branching.design.design import load_design
        from nnstretch.branching.transform.control import single_branch_control

        network, made = self.network(original.weights), load_design(design)
        module = single_branch_control(network.module, network.example_input, made.macs, made.multiple)
        return replace(network, module=module)

    def rebuilt(self, original: Candidate, candidate: Candidate, designs: Sequence[Path]) -> Network:
        """A candidate with its weights."""
        from nnstretch.training.weights import load_weights

        if candidate.name == "original":
            return self.network(candidate.weights)
        make = self._control if candidate.design is None else self._branched
        network = make(original, candidate.design or designs[0])
        load_weights(network.module, candidate.weights)
        network.module.eval()
        return network

    def int8(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """The networks in int8 and their accuracies; empty if they are not asked for."""
        if not self.options.int8 or INT8 in self.options.skip:
            return []
        original, designs = candidates[0], [c.design for c in candidates if c.design is not None]

        def work(folder: Path) -> Answer:
            networks = {one.name: self.rebuilt(original, one, designs) for one in candidates}
            if self._int8_recipe is None:
                return {"networks": [self._quantise(name, made.export(), folder) for name, made in networks.items()]}
            teacher = self.network(original.weights).module
            return {"networks": [self._train_int8(name, made, teacher, folder) for name, made in networks.items()]}

        after = [name for name in self.job.stages if name != INT8]
        recipe = self._int8_recipe
        settings = {"images": _CALIBRATION_IMAGES} if recipe is None else {"recipe": recipe.to_json()}
        return list(self.stage(INT8, "quantising", settings, work, after).answer["networks"])

    @cached_property
    def _int8_recipe(self) -> Recipe | None:
        """The recipe of quantisation-aware training."""
        return None if self.options.int8_recipe is None else self.recipe(self.options.int8_recipe)

    def _quantise(self, name: str, graph: ir.Model, folder: Path) -> dict[str, Any]:
        """Calibrates a network and writes it in int8."""
        from nnstretch.quantization import quantize
        from nnstretch.training.data.calibration import CalibrationImages

        file = folder / f"{name}-int8.onnx"
        (read,) = (str(value.name) for value in graph.graph.inputs)
        calibration = CalibrationImages(self.dataset.train, _CALIBRATION_IMAGES)
        counts = quantize(graph, ({read: images} for images in calibration), file)
        self.report.note(calibration.note)
        return {"name": name, "file": file.name, "int8_layers": counts.int8, "top1": self._onnx_top1(file)}

    def _train_int8(self, name: str, network: Network, teacher: nn.Module, folder: Path) -> dict[str, Any]:
        """Trains a network through quantisation, and writes its weights and its file."""
        from nnstretch.cli.training import quantised
        from nnstretch.quantization import write_trained
        from nnstretch.training.weights import save_weights

        assert self._int8_recipe is not None
        with self.report.progress("Calibrating") as advance:
            network = quantised(network, self.dataset, self._int8_recipe, advance)
        self._train(network, self._int8_recipe, teacher, folder / name)
        file = folder / f"{name}-int8.onnx"
        counts = write_trained(network.export(), file)
        save_weights(network.module, folder / f"{name}.safetensors", network.metadata(**self._about))
        return {"name": name, "file": file.name, "int8_layers": counts.int8, "top1": self._onnx_top1(file)}

    def _onnx_top1(self, file: Path) -> float:
        """Top-1 on the test images, as ONNX Runtime computes a network for one image."""
        import onnxruntime

        from nnstretch.training.evaluation.accuracy import top1

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (read,) = (value.name for value in session.get_inputs())

        def logits(images: Any) -> Any:
            return session.run(None, {read: images})[0]

        return top1(logits, self.dataset.test, self.dataset.num_classes, batch=1)

    def chosen(self, original: Candidate, candidates: Sequence[Candidate]) -> Candidate:
        """The first design, in the order of the search, that keeps the accuracy; else the most accurate one.

        Only validation images decide.
        """
        designs = [candidate for candidate in candidates if candidate.design is not None]
        least = original.validation_top1 - self.options.max_drop
        good = (candidate for candidate in designs if candidate.validation_top1 >= least)
        return next(good, max(designs, key=lambda candidate: candidate.validation_top1))

    def measure(self, original: Candidate, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
        """The chosen design beside its alternatives; None if that is left out."""
        if MEASURE in self.options.skip:
            return None
        chosen = self.chosen(original, candidates)
        control = next(candidate for candidate in candidates if candidate.name == _CONTROL)
        designs = [candidate.design for candidate in candidates if candidate.design is not None]
        settings = {"chosen": chosen.name, "processors": self.options.processors}

        def work(folder: Path) -> Answer:
            networks = {
                "original": original,
                "control": control,
                "branched": chosen,
            }
            graphs = {name: self._graph(original, one, designs[0]) for name, one in networks.items()}
            top1 = {name: one.test_top1 for name, one in networks.items()}
            assert chosen.design is not None
            shutil.copyfile(chosen.weights, folder / "branched.safetensors")
            return self._measured(graphs, top1, chosen.design, folder)

        after = [name for name in self.job.stages if name != INT8]
        return dict(self.stage(MEASURE, "measuring", settings, work, after).answer)

    def _measured(
        self, graphs: Mapping[str, ir.Model], top1: Mapping[str, float], design: Path, folder: Path
    ) -> Answer:
        """Measures, and writes package, ONNX file, timeline and report."""
        from nnstretch.bench.ablation.ablation import ablate
        from nnstretch.bench.ablation.answer import comparison_answer
        from nnstretch.bench.timing import MeasurementOptions, TimingOptions, describe_machine
        from nnstretch.branching.design.design import load_design, save_design
        from nnstretch.compiler.pool import place_without_branches
        from nnstretch.devices.base import spec
        from nnstretch.frontends.onnx_file import save
        from nnstretch.report.charts.timeline import timeline_svg
        from nnstretch.report.documents.branching import branching_document
        from nnstretch.report.documents.writers import write
        from nnstretch.report.tables.ablation import ablation_table
        from nnstretch.support.settings import write_text

        def keep(session: PlanSession) -> None:
            name = f"branched {Path(self.options.model).name}"
            session.save(folder / "branched.nns", {"name": name, "top1": top1["branched"]})

        made = load_design(design)
        processors = spec.parse_processors(self.options.processors)
        with self.report.progress("Measuring") as advance:
            found = ablate(
                graphs["original"],
                graphs["control"],
                graphs["branched"],
                self.options.processors,
                top1=top1,
                design=made,
                unbranched_on=None if made.meeting_points else place_without_branches(made, processors),
                options=MeasurementOptions(TimingOptions(turn=self.options.turn, precision=_PRECISION)),
                progress=advance,
                keep=keep,
            )
        save(graphs["branched"].clone(), folder / "branched.onnx")
        save_design(made, folder / "design.json")
        write_text(folder / "timeline.json", found.timeline.to_chrome_json())
        write_text(folder / "timeline.svg", timeline_svg(found.timeline))
        answer = comparison_answer(
            Path(self.options.model).name,
            found,
            made,
            describe_machine(spec.usable_cores()),
            unbranched=self._unbranched,
            histories=self._histories(design.stem),
        )
        write(branching_document(answer), folder / "report.html")
        self.report.show(ablation_table(found))
        return answer

    def stage(
        self,
        name: str,
        title: str,
        settings: Mapping[str, Any],
        work: Callable[[Path], Answer],
        after: Sequence[str] = (),
    ) -> Stage:
        """Runs a stage, and says what becomes of it."""
        stage = self.job.run(name, settings, self._announced(title, work), after)
        done = "was done" if stage.was_done else f"{stage.seconds:.0f} s"
        if not (stage.was_done and name in self._said):
            self.report.note(f"{name}: {done}{_accuracy_text(stage.answer)}")
        return stage

    def _announced(self, title: str, work: Callable[[Path], Answer]) -> Callable[[Path], Answer]:
        def announced(folder: Path) -> Answer:
            self.report.note(f"{title} …")
            return work(folder)

        return announced

    def _train(self, network: Network, recipe: Recipe, teacher: nn.Module | None, folder: Path) -> dict[str, Any]:
        """Trains a network, a branched one with a block-wise start; goes on with what is in the folder."""
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals
        from nnstretch.training.loop.torch_settings import find_device
        from nnstretch.training.loop.trainer import train

        device = find_device(self.options.device)
        network.module.to(device)
        builds = self._is_building if recipe.threads is None and device.type == "cpu" else lambda: False
        run = RunOptions(folder / "run", resume=True, metadata=network.metadata(**self._about))
        if teacher is not None:
            teacher.to(device)
        with self.report.progress("Training") as advance, half_of_the_cores(builds) as look:
            start = self._blockwise(network, recipe, teacher, advance)
            shown = event_shown(advance)

            def after_step(event: TrainingEvent) -> None:
                look()
                shown(event)

            with stopped_by_signals(self._advice) as stop:
                result = train(network.module, self.dataset, recipe, teacher, after_step, run, stop, start)
        network.module.to("cpu")
        self.report.note(result.note)
        self.report.note(what_was_lost(result, run.best))
        history = [asdict(record) for record in result.history]
        score = round(result.validation_score, 4)
        return {"history": history, "validation_top1": score, "unreadable": result.unreadable}

    def _blockwise(
        self, network: Network, recipe: Recipe, teacher: nn.Module | None, advance: Progress
    ) -> BlockwisePhase | None:
        """The start in which the segments of a branched network learn side by side; the control has none."""
        from nnstretch.branching.transform.network import BranchedNetwork

        if teacher is None or not isinstance(network.module, BranchedNetwork) or not recipe.blockwise_epochs:
            return None
        return blockwise_phase(network.module, teacher, self.dataset, recipe, advance)

    def _histories(self, chosen: str) -> dict[str, list[dict[str, Any]]]:
        """Trainings of the networks that are compared, epoch by epoch."""
        stages = {"original": BASELINE, "branched": f"{RETRAIN}-{chosen}", "control": f"{RETRAIN}-control"}
        return {name: list(self.job.stages[stage].answer.get("history", ())) for name, stage in stages.items()}

    @property
    def _about(self) -> dict[str, Any]:
        """What weights say of their images."""
        return about_images(self.options.data, self.dataset)

    def _save(self, network: Network, folder: Path, found: Mapping[str, Any]) -> Answer:
        """Writes the weights of a network; returns its accuracies, and what its training found."""
        from nnstretch.training.evaluation.accuracy import top1
        from nnstretch.training.weights import save_weights

        splits = {"validation": self.dataset.validation, "test": self.dataset.test}
        accuracies = {
            f"{name}_top1": round(top1(network.module, split, self.dataset.num_classes), 4)
            for name, split in splits.items()
            if f"{name}_top1" not in found
        }
        about = network.metadata(**self._about, top1=accuracies["test_top1"])
        save_weights(network.module, folder / "weights.safetensors", about)
        counts = {"macs": network.macs, "params": network.parameters}
        return {"weights": "weights.safetensors", **counts, **accuracies, **found}


def summary(answer: Mapping[str, Any], folder: Path) -> str:
    """The answer of a job in a few lines: accuracies, the gain, and where the products are."""
    networks, why = [answer["original"], *answer["candidates"]], answer["unbranched"]
    lines = [] if why is None else [f"the network was not branched, and nothing was retrained: {why}"]
    mark = " (chosen)" if why is None else " (the original network)"
    lines += [
        f"{one['name']}: top-1 {one['test_top1']:.2f} % on the test images, {one['validation_top1']:.2f} % on the "
        f"validation images{mark if one['name'] == answer['chosen'] else ''}"
        for one in networks
    ]
    lines += [f"{one['name']} in int8: top-1 {one['top1']:.2f} % on the test images" for one in answer["int8"]]
    if answer["comparison"] is not None:
        best = answer["comparison"]["best_alternative"]
        gain = answer["comparison"]["speedup_best_alternative"]
        other = f"the {best['network']}, {best['how']}, on {best['processors']}"
        lines.append(f"{gain:.2f}× as fast as the best alternative: {other}")
        product = "branched network" if why is None else "compiled network"
        lines.append(f"{folder / MEASURE} has report.html, the {product} and its timeline")
    return "\n".join(lines)


def _candidate(name: str, stage: Stage, design: Path | None = None) -> Candidate:
    validation, test = (float(stage.answer[f"{split}_top1"]) for split in ("validation", "test"))
    return Candidate(name, stage.file("weights"), validation, test, design)


def _accuracy_text(answer: Answer) -> str:
    return f", top-1 {answer['test_top1']:.2f} % on the test images" if "test_top1" in answer else ""


def _fingerprint(file: Path) -> str:
    """A text that tells the content of a file from others.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from error
