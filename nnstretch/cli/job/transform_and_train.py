"""From a model and labelled images to a branched, retrained and measured network, in stages that can be resumed.

    baseline      the model with the weights given, or trained
    designs       branchings for the processors, best first, with inherited weights; or the one that is given
    retrain-…     every design, and the single-branch control of the best one, retrained with the model as their teacher
    int8          the networks quantised after training, if asked for, or trained through quantisation
    measure       the chosen design beside its strongest alternatives; package, ONNX file, timeline and report

The chosen design is the fastest predicted one whose score on the validation images is at most `max_drop` below the model's, or
the one with the highest score. Test images are read for the reported scores alone. Scores are of the task's measure, such as
top-1.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.designs import check_processors, fingerprint, is_original, search_options, searched, taken
from nnstretch.cli.job.int8_networks import CALIBRATION_IMAGES, calibrated, trained
from nnstretch.cli.job.measurement import Measured, measure
from nnstretch.cli.job.networks import CONTROL, ORIGINAL, Candidate, JobNetworks, stage_measure
from nnstretch.cli.job.preparing import PreparationBeside
from nnstretch.cli.job.retraining import retrain_in_rounds
from nnstretch.cli.job.shared_cores import Share, beside
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.cli.job.trainings import Trainings
from nnstretch.cli.job.transform_options import BASELINE, DESIGNS, INT8, MEASURE, RETRAIN, TransformOptions
from nnstretch.errors import NNStretchError, UsageError
from nnstretch.frontends.resolve import is_model_file
from nnstretch.support.image_size import json_size
from nnstretch.support.locks import lock_folder

if TYPE_CHECKING:
    from nnstretch.cli.console import Reporter


class TransformAndTrain:
    """One job."""

    def __init__(
        self, options: TransformOptions, report: Reporter, advice: str = "", share: Share | None = None
    ) -> None:
        """Takes the options.

        Args:
            options: of the job.
            report: gets progress and notes.
            advice: what the message of a training that a signal has stopped says to do.
            share: of the cores that a training has; None: of those that the preparation of processors leaves.
        """
        self.options = options
        self.networks = JobNetworks(options, report)
        self.job = Job(options.folder, options.redo)
        self._preparation = PreparationBeside(options)
        self._trainings = Trainings(self.networks, advice, share or beside(self._preparation.cores_taken))
        self._advice = advice
        self._said: set[str] = set()  # stages whose end another process has reported
        named = options.int8_recipe
        self._int8_recipe = None if named is None else self.networks.recipe(named)

    @property
    def report(self) -> Reporter:
        """Gets progress and notes."""
        return self.networks.report

    def run(self) -> dict[str, Any]:
        """Runs all stages that are not done; returns the answer, which is also written to `answer.json`.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.report.documents.readers import JOB_ANSWER
        from nnstretch.support.settings import write_text

        self._check()
        with lock_folder(self.options.folder, "-o"), ExitStack() as stack:
            stack.callback(self._preparation.end)
            original, designs = self.begun()
            candidates = self.retrain(original, designs)
            answer = {
                "model": Path(self.options.model).name,
                "measure": original.measure._asdict(),
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

    def _check(self) -> None:
        """Refuses what cannot be done before the long work."""
        options = self.options
        names, _ = search_options(options)
        for name in (options.recipe, options.retrain_recipe):
            self.networks.recipe(name)
        if self._int8_recipe is not None and not self._int8_recipe.qat:
            raise UsageError(f"--int8-recipe {options.int8_recipe} has no `qat: true`; take the preset qat")
        if options.design is not None:
            check_processors(options.design, names)
            self.networks.network(None, options.design)

    def begun(self) -> tuple[Candidate, list[Path]]:
        """The trained model, and the files of the designs that are retrained."""
        original = self.baseline()
        return original, self.designs(original)

    # -- baseline -------------------------------------------------------------------------------------------------

    def baseline(self) -> Candidate:
        """The trained model."""
        options = self.options
        settings = {"model": options.model, "data": options.data, "image_size": json_size(options.image_size)}
        settings |= {"head": options.head} if options.head else {}  # folders of earlier versions have none
        if options.weights is not None or is_model_file(options.model):
            given = {**settings, "weights": fingerprint(options.weights or Path(options.model))}
            stage = self.stage(BASELINE, "evaluating the model", given, self._take_baseline)
        else:
            trained_by = {**settings, "recipe": self.networks.recipe(options.recipe).to_json()}
            stage = self.stage(BASELINE, "training the model", trained_by, self._train_baseline)
        return Candidate.of(ORIGINAL, stage)

    def _take_baseline(self, folder: Path) -> Answer:
        """Evaluates the weights given, or those of the model's file, and keeps a copy of them."""
        return self._trainings.save(self.networks.network(self.options.weights), folder, {})

    def _train_baseline(self, folder: Path) -> Answer:
        from nnstretch.compiler.processors import check_listed

        check_listed(self.options.processors)  # a missing device is found before the long work
        self._preparation.begin(self.report)
        network, recipe = self.networks.network(None), self.networks.recipe(self.options.recipe)
        return self._trainings.save(network, folder, self._trainings.train(network, recipe, None, folder))

    # -- designs --------------------------------------------------------------------------------------------------

    def designs(self, original: Candidate) -> list[Path]:
        """Files of the designs, best first; of the one that was given, without a search."""
        options = self.options
        if options.design is not None:
            given = {"design": fingerprint(options.design)}
            stage = self.stage(DESIGNS, "taking the design", given, partial(taken, options.design))
        else:
            settings = {"processors": options.processors, **options.search}
            stage = self.stage(DESIGNS, "searching designs", settings, partial(self._search, original), [BASELINE])
        return [stage.folder / name for name in stage.answer["designs"]]

    def _search(self, original: Candidate, folder: Path) -> Answer:
        self._preparation.end()
        network = self.networks.network(original.weights)
        return searched(self.report, network, *search_options(self.options), folder)

    @property
    def _unbranched(self) -> str | None:
        """Why the design is the original network, once there are designs; None if it is branched."""
        why = self.job.stages[DESIGNS].answer.get("unbranched")
        return None if why is None else str(why)

    # -- retraining -----------------------------------------------------------------------------------------------

    def retrain(self, original: Candidate, designs: Sequence[Path]) -> list[Candidate]:
        """The designs and the control of the best one, retrained where they learn; others keep inherited weights."""
        designs_of = {**{path.stem: path for path in designs}, CONTROL: designs[0]}
        learning = {name: design for name, design in designs_of.items() if self._learns(design)}
        self._retrain_together(original, learning)
        return [self.retrain_one(original, name, design) for name, design in designs_of.items()]

    def _learns(self, design: Path) -> bool:
        """Whether a design is retrained: that is not left out, and it is not the original, as where branching does not pay."""
        return RETRAIN not in self.options.skip and not is_original(design)

    def _retrain_together(self, original: Candidate, designs_of: Mapping[str, Path]) -> None:
        """Retrains networks at the same time where this pays. What is not done afterwards is done in this process."""
        for name in designs_of:
            self.job.renew(f"{RETRAIN}-{name}")
        left = [name for name in designs_of if not self.job.is_done(f"{RETRAIN}-{name}")]
        threads = self.networks.recipe(self.options.retrain_recipe).threads or 1

        def began(names: Sequence[str]) -> None:
            self._said |= {f"{RETRAIN}-{name}" for name in names}

        def ended(name: str) -> None:
            self._export_early(original, name, designs_of[name])

        retrain_in_rounds(self.options, left, threads, self.report, self._advice, began, ended)

    def _export_early(self, original: Candidate, name: str, design: Path) -> None:
        """Exports what is measured in any case on the core of a retraining that has ended, while others go on."""
        if MEASURE in self.options.skip or not self.job.is_done(f"{RETRAIN}-{name}"):
            return
        with suppress(NNStretchError):  # the measurement says why a network cannot be exported
            self.networks.graph(original, original, design)
            if name == CONTROL:
                self.networks.graph(original, self.retrain_one(original, name, design), design)

    def retrain_one(self, original: Candidate, name: str, design: Path) -> Candidate:
        """A design retrained, or the control of one."""
        recipe = self.networks.recipe(self.options.retrain_recipe)
        trains = self._learns(design)

        def work(folder: Path) -> Answer:
            network = self.networks.inherited(original, name, design)
            if not trains:
                return self._trainings.save(network, folder, {})
            teacher = self.networks.network(original.weights).module
            return self._trainings.save(network, folder, self._trainings.train(network, recipe, teacher, folder))

        settings = {"recipe": recipe.to_json() if trains else None}
        title = f"{'retraining' if trains else 'evaluating'} {name}"
        stage = self.stage(f"{RETRAIN}-{name}", title, settings, work, [BASELINE, DESIGNS])
        return Candidate.of(name, stage, None if name == CONTROL else design)

    # -- int8 -----------------------------------------------------------------------------------------------------

    def int8(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """The networks in int8 and their scores; empty if they are not asked for."""
        if not self.options.int8 or INT8 in self.options.skip:
            return []
        original, recipe = candidates[0], self._int8_recipe

        def work(folder: Path) -> Answer:
            designs = [c.design for c in candidates if c.design is not None]
            made = {one.name: self.networks.rebuilt(original, one, designs) for one in candidates}
            if recipe is None:
                return {"networks": calibrated(self.networks, made, folder)}
            teacher = self.networks.network(original.weights).module
            return {"networks": trained(self.networks, self._trainings, recipe, made, teacher, folder)}

        after = [name for name in self.job.stages if name != INT8]
        settings = {"images": CALIBRATION_IMAGES} if recipe is None else {"recipe": recipe.to_json()}
        return list(self.stage(INT8, "quantising", settings, work, after).answer["networks"])

    # -- measurement ----------------------------------------------------------------------------------------------

    def chosen(self, original: Candidate, candidates: Sequence[Candidate]) -> Candidate:
        """The first design, in the order of the search, that keeps the score; else the one with the highest score.

        Only validation images decide.
        """
        designs = [candidate for candidate in candidates if candidate.design is not None]
        least = original.validation_score - self.options.max_drop
        good = (candidate for candidate in designs if candidate.validation_score >= least)
        return next(good, max(designs, key=lambda candidate: candidate.validation_score))

    def measure(self, original: Candidate, candidates: Sequence[Candidate]) -> dict[str, Any] | None:
        """The chosen design beside its alternatives; None if that is left out."""
        if MEASURE in self.options.skip:
            return None
        chosen = self.chosen(original, candidates)
        work = partial(self._measure, original, candidates, chosen)
        settings = {"chosen": chosen.name, "processors": self.options.processors}
        after = [name for name in self.job.stages if name != INT8]
        return dict(self.stage(MEASURE, "measuring", settings, work, after).answer)

    def _measure(self, original: Candidate, candidates: Sequence[Candidate], chosen: Candidate, folder: Path) -> Answer:
        from nnstretch.branching.design.design import load_design

        control = next(candidate for candidate in candidates if candidate.name == CONTROL)
        first = next(candidate.design for candidate in candidates if candidate.design is not None)
        compared = {"original": original, "control": control, "branched": chosen}
        assert chosen.design is not None
        shutil.copyfile(chosen.weights, folder / "branched.safetensors")
        measured = Measured(
            {name: self.networks.graph(original, one, first) for name, one in compared.items()},
            original.measure,
            {name: one.test_score for name, one in compared.items()},
            load_design(chosen.design),
            self._unbranched,
            self._histories(chosen.design.stem),
        )
        return measure(self.options, measured, folder, self.report)

    def _histories(self, chosen: str) -> dict[str, list[dict[str, Any]]]:
        """Trainings of the networks that are compared, epoch by epoch."""
        stages = {"original": BASELINE, "branched": f"{RETRAIN}-{chosen}", "control": f"{RETRAIN}-{CONTROL}"}
        return {name: list(self.job.stages[stage].answer.get("history", ())) for name, stage in stages.items()}

    # -- stages ---------------------------------------------------------------------------------------------------

    def stage(
        self,
        name: str,
        title: str,
        settings: Mapping[str, Any],
        work: Callable[[Path], Answer],
        after: Sequence[str] = (),
    ) -> Stage:
        """Runs a stage, and says what becomes of it."""

        def announced(folder: Path) -> Answer:
            self.report.note(f"{title} …")
            return work(folder)

        stage = self.job.run(name, settings, announced, after)
        done = "was done" if stage.was_done else f"{stage.seconds:.0f} s"
        if not (stage.was_done and name in self._said):
            measure = stage_measure(stage)
            test = stage.answer.get(f"test_{measure.key}")
            score = "" if test is None else f", {measure.name} {test:.2f} % on the test images"
            self.report.note(f"{name}: {done}{score}")
        return stage
