"""A target as the place of measurements: candidates become model files that its runner races."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nnstretch.compiler.targets.candidate_models import CandidateModel, CandidateModels
from nnstretch.compiler.targets.opencl import device_names
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.targets.base import RunnerEndedError, TargetError, TargetTimeoutError
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import BenchOptions, ModelResult
from nnstretch.devices.targets.shell import is_storage_error
from nnstretch.errors import FileError, NNStretchError
from nnstretch.graph.layer import TensorType
from nnstretch.package.standalone import SUFFIX, step_order, write_model_file
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.interference import round_trip_plan, undisturbed
from nnstretch.scheduler.measurement.race import interval, typical
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest, WrongAnswerError
from nnstretch.scheduler.measurement.site import MeasurementSite, ReferenceFrequency
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.plan.compiled import Compiled

LOOK = BenchOptions(runs=2, warmup=0.0, patience=120.0)
"""The first look at candidates, after which slow ones leave the race."""
RACE = BenchOptions(seconds=0.03, warmup=0.0, patience=120.0)
_RACED_RUNS, _LONGEST_RACE = 10, 0.2
"""A race of slow candidates takes this number of runs of the fastest one, within these seconds per candidate."""
WHOLE = BenchOptions(seconds=0.5, warmup=0.2, patience=120.0)
"""Runs of whole plans."""
TRACE = BenchOptions(runs=1, warmup=0.0, timeline=True, patience=120.0)
"""A traced run of a plan. A model file that is named several times is traced as often."""
_TRACES, _KEPT_TRACES = 7, 4
"""Number of traces, and of the fastest ones, which count: a disturbance makes a run longer."""
_HOPELESS = 1.4
"""A candidate that takes this many times the fastest one in the first look leaves the race."""
_MOST_BYTES = 128 << 20
"""Candidates with more bytes in total are measured in several groups, each together with the best one so far."""
_MOST_SAMPLES = 30
"""Runs of a candidate that the profile store keeps."""
TYPICAL_CACHES = CacheSizes(512 << 10, 2 << 20)
"""Typical sizes: many kernels of phones do not report them."""


class TargetSite(MeasurementSite):
    """The runner on a target.

    The runner brings weights and inputs of a layer to the caches before it times it. A run computes the layer with several
    copies of its weights, which a core's own caches do not hold in networks whose weights do not fit there either.
    """

    def __init__(self, device: Device) -> None:
        """Takes a device, which the caller closes."""
        self._device = device
        self._made: Path | None = None
        self._races, self._slowed_races = 0, 0

    @property
    def device(self) -> Device:
        """What the runner is on."""
        return self._device

    @property
    def note(self) -> str:
        if not self._slowed_races:
            return ""
        return (
            f"{self._device.name} lowered its clocks in {self._slowed_races} of {self._races} comparisons; let it cool down, "
            "and run it again with --fresh"
        )

    @property
    def caches(self) -> CacheSizes:
        return TYPICAL_CACHES

    def compare(
        self, candidates: CandidateSet, test: LayerUnderTest, reference: ReferenceFrequency
    ) -> dict[int, Measurement]:
        models = CandidateModels(test, self._device.isa, self.caches, self._folder, device_names(self._device.probe))
        models.add_layouts(candidates.candidates)
        found: dict[int, Measurement] = {}
        files: dict[int, CandidateModel] = {}
        inputs = models.input_files()
        try:
            while candidates.worth_measuring({}):
                race = _TargetRace(candidates, models, inputs, self._device, files)
                made = race.run()
                self._races += 1
                self._slowed_races += race.is_slowed
                candidates.seconds.update((number, measurement.seconds) for number, measurement in made.items())
                found.update(made)
                self._discard([files.pop(number).file for number in files.keys() - {candidates.best}])
        finally:
            self._discard([*inputs.values(), *(model.file for model in files.values())])
        return found

    def seconds(self, compiled: Compiled) -> Sequence[float]:
        return self.timed(compiled, WHOLE).samples

    def timed(self, compiled: Compiled, options: BenchOptions, name: str = "plan") -> ModelResult:
        """Timed runs of a plan.

        Args:
            compiled: the plan.
            options: how it is timed.
            name: that its model file carries.

        Raises:
            TargetError: it does not run there, or the device cannot be used.
        """
        (result,) = self._run_plan(compiled, options, 1, name)
        return result

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        results = self._run_plan(compiled, TRACE, _TRACES)
        order = step_order(compiled.plan)
        seconds = np.zeros((len(compiled.plan.steps), len(results)))
        for column, result in enumerate(results):
            spans = [(step["end"] - step["begin"]) * 1e-9 for step in result.timeline or ()]
            if len(spans) != len(order):
                raise TargetError(f"{self._device.name}: the runner's timeline does not have the plan's steps")
            seconds[order, column] = spans
        fastest = np.argsort(seconds.sum(axis=0), kind="stable")[:_KEPT_TRACES]
        return seconds[:, fastest]

    def round_trip(self, host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
        (result,) = self._run_plan(round_trip_plan(host, device, tensor), RACE, 1, "transfer")
        return undisturbed(result.samples), result.samples

    def close(self) -> None:
        """Removes the files of candidates from this machine. The device stays open, and the site can measure again."""
        made, self._made = self._made, None
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        """A folder of this machine for the files of candidates; made on first use."""
        if self._made is None:
            self._made = Path(tempfile.mkdtemp(prefix="nnstretch-candidates-"))
        return self._made

    def _run_plan(
        self, compiled: Compiled, options: BenchOptions, times: int, name: str = "plan"
    ) -> tuple[ModelResult, ...]:
        """Runs of a plan, whose model file is named several times.

        Raises:
            TargetError: it does not run there.
        """
        file = self._folder / f"plan{SUFFIX}"
        write_model_file(compiled, name, self._device.isa, file, device_names(self._device.probe))
        try:
            found = self._device.bench([file] * times, options)
        finally:
            self._discard([file])
        if error := next((result.error for result in found.models if result.error is not None), None):
            raise TargetError(f"{self._device.name}: the network does not run: {error}")
        return found.models

    def _discard(self, files: Sequence[Path]) -> None:
        """Removes files from the device and from this machine."""
        try:
            self._device.discard(files)
        finally:
            for file in files:
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Ran:
    """What the runner gave for a candidate: its result and outputs, or only a failure."""

    result: ModelResult
    outputs: Sequence[bytes] = ()


@dataclass(eq=False)
class _TargetRace:
    """Candidates that are on the target at the same time and race against each other and the incumbent.

    The incumbent is the fastest known candidate. Times of the others are scaled by its known time over its time in this race.

    Attributes:
        candidates: all of the layer.
        models: make them files.
        inputs: of the runner.
        device: the target.
        files: those that are written; the caller removes them.
        is_slowed: whether the device lowered its clocks meanwhile.
    """

    candidates: CandidateSet
    models: CandidateModels
    inputs: Mapping[str, Path]
    device: Device
    files: dict[int, CandidateModel]
    is_slowed: bool = False
    _failed: dict[int, Measurement] = field(default_factory=dict)
    _errors: dict[int, float | None] = field(default_factory=dict)  # of candidates with a right answer
    _samples: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def run(self) -> dict[int, Measurement]:
        """Measures as many candidates as fit, at least one."""
        incumbent = self.candidates.best
        self._write([] if incumbent is None else [incumbent])
        self._write(self.candidates.unknown_heads())
        if len(self.files) > 1 or len(self.candidates.candidates) > 1:
            self._measure(list(self.files), LOOK)
        least = min((min(samples) for samples in self._samples.values()), default=0.0)
        scale = self._scale()
        looked = {number: scale * min(samples) for number, samples in self._samples.items()}
        self._write(self.candidates.worth_measuring(looked))
        racers = [n for n in self.files if n not in self._samples or min(self._samples[n]) <= _HOPELESS * least]
        self._measure(racers, self._race(least))
        scale, state = self._scale(), self.models.test.state
        found = dict(self._failed)
        for number, samples in self._samples.items():
            values = tuple(scale * seconds for seconds in samples)
            found[number] = Measurement(
                typical(values), values, None, interval(values), self._errors.get(number), state
            )
        return {number: measurement for number, measurement in found.items() if number != incumbent}

    def _race(self, least: float) -> BenchOptions:
        """How long candidates race. `least` are seconds of the fastest one, or 0."""
        repeats = max((model.repeats for model in self.files.values()), default=1)
        return replace(RACE, seconds=min(_LONGEST_RACE, max(RACE.seconds, _RACED_RUNS * repeats * least)))

    def _scale(self) -> float:
        """The incumbent's known time over its time in this race."""
        best = self.candidates.best
        known = None if best is None else self.candidates.seconds[best]
        return (
            1.0 if best is None or known is None or best not in self._samples else known / typical(self._samples[best])
        )

    def _write(self, numbers: Iterable[int]) -> None:
        """Writes candidates as files, as many as fit on the target, at least one besides the incumbent."""
        for number in numbers:
            others = (self.files.keys() | self._failed.keys()) - {self.candidates.best}
            if number in self.files or number in self._failed:
                continue
            if others and sum(model.file.stat().st_size for model in self.files.values()) >= _MOST_BYTES:
                return
            try:
                self.files[number] = self.models.write(number, self.candidates.candidates[number])
            except FileError:
                raise
            except NNStretchError as error:
                self._fail(number, str(error))

    def _fail(self, number: int, reason: str) -> None:
        self._failed[number] = Measurement(None, failure=reason, state=self.models.test.state)

    def _measure(self, numbers: Sequence[int], options: BenchOptions) -> None:
        """Runs candidates; new ones fail if their answer is wrong."""
        numbers = [number for number in numbers if number in self.files and number not in self._failed]
        for number, ran in self._ran(numbers, options).items():
            self._samples.pop(number, None)
            self.is_slowed |= bool(ran.result.throttled)
            if ran.result.error is not None:
                if is_storage_error(ran.result.error):
                    raise TargetError(f"{self.device.name}: {ran.result.error}; free some space there")
                self._fail(number, ran.result.error)
                continue
            try:
                self._check(number, ran.outputs)
            except WrongAnswerError as error:
                self._failed[number] = error.measurement(self.models.test.state)
                continue
            seconds = ran.result.samples or ((ran.result.p50_ms or 0.0) * 1e-3,)
            kept = np.linspace(0, len(seconds) - 1, min(len(seconds), _MOST_SAMPLES)).astype(int)
            self._samples[number] = tuple(seconds[i] / self.files[number].repeats for i in kept)

    def _check(self, number: int, outputs: Sequence[bytes]) -> None:
        """Checks the answer of a candidate, once. Raises WrongAnswerError."""
        if number in self._errors:
            return
        test, error = self.models.test, None
        if test.case.reference is not None:
            stored = self.files[number].stored_outputs(outputs)
            error = test.error_of(self.candidates.candidates[number], stored)
        self._errors[number] = error

    def _ran(self, numbers: Sequence[int], options: BenchOptions) -> dict[int, _Ran]:
        """Runs candidates together.

        If that ends the runner, the halves run by themselves, and a candidate that ends it alone has failed.

        Raises:
            TargetError: the device cannot be used any more.
        """
        if not numbers:
            return {}
        try:
            return self._ran_once(numbers, options)
        except (RunnerEndedError, TargetTimeoutError) as error:
            if len(numbers) > 1:
                middle = len(numbers) // 2
                return self._ran(numbers[:middle], options) | self._ran(numbers[middle:], options)
            if is_storage_error(str(error)):
                raise
            self.device.check()  # raises if the device is to blame
            return (
                self._failure(numbers[0], error)
                if isinstance(error, TargetTimeoutError)
                else self._again(numbers, options)
            )

    def _again(self, numbers: Sequence[int], options: BenchOptions) -> dict[int, _Ran]:
        """Runs a candidate that ended the runner once more: a system ends programs for other reasons, too."""
        try:
            return self._ran_once(numbers, options)
        except (RunnerEndedError, TargetTimeoutError) as error:
            return self._failure(numbers[0], error)

    def _failure(self, number: int, error: TargetError) -> dict[int, _Ran]:
        return {number: _Ran(ModelResult(str(self.files[number].file), error=str(error)))}

    def _ran_once(self, numbers: Sequence[int], options: BenchOptions) -> dict[int, _Ran]:
        """Runs candidates together; with outputs if the answer of one is not checked. Raises as the device does."""
        files = [self.files[number].file for number in numbers]
        if all(number in self._errors for number in numbers):
            found = self.device.bench(files, options, inputs=self.inputs).models
            return {number: _Ran(result) for number, result in zip(numbers, found, strict=True)}
        answer, outputs = self.device.bench_with_outputs(files, options, self.inputs)
        return dict(zip(numbers, map(_Ran, answer.models, outputs), strict=True))
