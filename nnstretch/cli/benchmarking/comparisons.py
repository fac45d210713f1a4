"""What `nnstretch bench` compares on this machine: engines, designs, processors, or inputs in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.benchmarking.engine_comparison import (
    answer_endings,
    compare_models,
    parse_series,
    write_answer,
)
from nnstretch.cli.console import Reporter
from nnstretch.cli.options import several_processors
from nnstretch.cli.outputs import check_endings, note_written
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.table import Table

    from nnstretch.bench.timing import MeasurementOptions
    from nnstretch.cli.models.networks import Network
    from nnstretch.cli.models.sources import Source

ROUNDS = 10
"""Rounds in which every engine is timed once, if the user says nothing else."""
_TURN = 0.25
"""Seconds of a turn of an engine."""
_STREAMED_TURN = 0.5
"""Seconds of a turn with streams: long enough that filling and draining hardly count."""


@dataclass(frozen=True)
class Compared:
    """A command line of `nnstretch bench`; the fields are its options."""

    models: Sequence[str]
    suite: str | None
    against: str
    threads: str | None
    rounds: int
    budget: float
    seed: int
    layers: bool
    start: bool
    resume: bool
    design: Path | None
    weights: Path | None
    original_weights: Path | None
    image_size: ImageSize | None
    processors: str | None
    outputs: Sequence[Path]
    options: CompileOptions
    limit_ms: float | None = None

    def check(self) -> None:
        """Refuses options that do not go together.

        Raises:
            UsageError: some do not.
        """
        options = self.options
        if self.design is None and self.original_weights is not None:
            raise UsageError("--original-weights goes with --design; --weights is for the network itself")
        if self.design is None:
            for model in self.models:
                self._source(model).check_image_size()
        if self.design is not None and options.batch is not None:
            raise UsageError("--batch does not go with --design, which compares runs of single images")
        if self.limit_ms is not None and (self.design is None or options.streams is None):
            raise UsageError(
                "--latency-limit goes with --design and --streams: it bounds the latency of inputs in flight"
            )
        if options.plan is not None and not (self.design is None and self.processors is None and self.suite is None):
            raise UsageError(
                "--plan is for a comparison of engines on one model; leave --design, --processors and --suite out"
            )

    def measure(self, report: Reporter) -> int:
        """Compares; shows and writes the results. Returns the exit status."""
        if self.design is None and self.processors is None and self.options.streams is None:
            return self._compare_engines(report)
        if self.design is not None:
            self._compare_designs(report, self.design)
        elif self.options.streams is not None:
            self._compare_streams(report, self.options.streams)
        elif self.processors is not None:
            self._compare_processors(report, self.processors)
        return 0

    def target_sources(self, report: Reporter) -> list[Source]:
        """What is compared on targets: the models, or a branched network after all its alternatives.

        Raises:
            UsageError: there is none, no such suite, or several numbers of cores are given.
            NNStretchError: a network cannot be built.
        """
        from nnstretch.bench.comparison.suite import models_of_suite
        from nnstretch.cli.models.sources import Source
        from nnstretch.cli.targets.designs import design_sources

        options = replace(self.options, processors=self.processors or "cpu", threads=_one_count(self.threads))
        if self.design is not None:
            model = self._only_model("--design is for one network")
            if options.plan is not None:
                raise UsageError("--plan is for one network; --design compares several")
            return design_sources(*self._networks(report, model, self.design), options)
        if self.original_weights is not None:
            raise UsageError("--original-weights goes with --design")
        named = [*self.models, *(models_of_suite(self.suite) if self.suite else ())]
        if not named:
            raise UsageError("nothing to measure; give a MODEL or a --suite")
        unique = dict.fromkeys(named)
        return [Source(name, options, self.weights, image_size=self.image_size) for name in unique]

    def _compare_engines(self, report: Reporter) -> int:
        from nnstretch.bench.timing import TimingOptions

        timing = TimingOptions(self.rounds, _TURN, self.budget)
        series = parse_series(
            self.models, self.suite, self.against, self.threads, timing, self.options,
            layers=self.layers, start=self.start, seed=self.seed,
        )  # fmt: skip
        if self.weights is not None:
            self._only_model("--weights is for one network")
        if self.weights is not None or self.image_size is not None:
            series = replace(series, image_size=self.image_size, load=lambda model: self._source(model).load())
        status = compare_models(report, series, self.outputs, resume=self.resume)
        for model in dict.fromkeys(self.models):
            report.note(self._source(model).note_of_weights)
        return status

    def _compare_streams(self, report: Reporter, streams: int) -> None:
        from nnstretch.bench.throughput import measure_throughput
        from nnstretch.report.tables.runs import fewer_streams_text, memory_text, throughput_table

        source, graph = self._graph("streams", "--streams is for one network")
        with report.progress("Comparing") as advance:
            found = measure_throughput(
                Path(source.model).name,
                graph,
                self.processors or "cpu",
                streams,
                self._measuring(_STREAMED_TURN),
                advance,
            )
        best = found.best.arrangement
        notes = () if best is None else (memory_text(best), fewer_streams_text(streams, best))
        self._finish(report, found.to_json(), throughput_table(found), *notes, source.assumptions)

    def _compare_processors(self, report: Reporter, processors: str) -> None:
        from nnstretch.bench.placement import measure_together
        from nnstretch.report.tables.runs import idle_text, together_table

        self._refuse_packages()
        names = several_processors(processors, "a comparison of all with each (--threads N takes N cores of one)")
        source, graph = self._graph("processors", "--processors is for one network, which is placed on them")
        with report.progress("Comparing") as advance:
            found = measure_together(Path(source.model).name, graph, names, self._measuring(), advance)
        self._finish(report, found.to_json(), together_table(found), idle_text(found.idle), source.assumptions)

    def _refuse_packages(self) -> None:
        """Refuses packages where processors are chosen.

        Raises:
            UsageError: there is one.
            FileError, PackageError: it cannot be read.
        """
        from nnstretch.scheduler.plan.packaging import processors_of_package

        for source in map(self._source, self.models):
            if source.is_package:
                raise UsageError(
                    f"the processors of a package are fixed, and those of {source.model} are "
                    f"{processors_of_package(Path(source.model))}; leave -p out, or give the model that it was made from"
                )

    def _compare_designs(self, report: Reporter, design: Path) -> None:
        from nnstretch.bench.ablation.simulation import simulated_source
        from nnstretch.cli.benchmarking.designs import DesignComparison

        model = self._only_model("--design is for one network")
        processors = self.processors or "cpu,opencl"
        check_endings(self.outputs, "a comparison of designs is", answer_endings())
        several_processors(processors, "a comparison of designs")
        simulated = simulated_source(processors) is not None
        if simulated and self.rounds != ROUNDS:
            report.note(f"--rounds {self.rounds} changes nothing: a simulated run takes the same time in every round")
        networks = self._networks(report, model, design)
        if self.options.streams is None:
            DesignComparison(model, *networks, processors, simulated, self._measuring()).compare(report, self.outputs)
            return
        from nnstretch.bench.design_throughput import ThroughputGoal

        measuring = self._measuring(_STREAMED_TURN)
        goal = ThroughputGoal(self.options.streams, self.limit_ms)
        DesignComparison(model, *networks, processors, simulated, measuring).compare_streams(
            report, goal, self.outputs, design
        )

    def _networks(self, report: Reporter, model: str, design: Path) -> tuple[Network, Network]:
        """The original network, and the branched one with weights of its own or inherited ones."""
        let_idle_threads_sleep()
        from nnstretch.cli.models.networks import NetworkOptions, branch, build_network, known_options, read_about

        original_weights, weights = self.original_weights, self.weights
        if weights is not None and not read_about(weights).get("design"):
            report.note(
                f"{weights} are weights of the original, which the branched network inherits; --weights takes those that "
                "`nnstretch train --design` wrote, and --original-weights these"
            )
            original_weights, weights = original_weights or weights, None
        about = NetworkOptions(image_size=self.image_size, seed=self.seed)
        original = build_network(model, about.filled(known_options({}, design)), original_weights)
        if weights is None:
            return original, branch(original, design)
        return original, build_network(model, original.options, weights, design)

    def _measuring(self, turn: float | None = None) -> MeasurementOptions:
        """How runs are timed."""
        from nnstretch.bench.timing import MeasurementOptions, TimingOptions

        timing = TimingOptions(self.rounds) if turn is None else TimingOptions(self.rounds, turn)
        return MeasurementOptions(timing, self.seed, self.options)

    def _only_model(self, purpose: str) -> str:
        """The only model that was named.

        Raises:
            UsageError: there are others, or none.
        """
        if self.suite is None and not self.models:
            raise UsageError(f"{purpose}; give it as MODEL: a name or a file")
        if self.suite is not None or len(self.models) != 1:
            raise UsageError(f"{purpose}; {self.suite or len(self.models)} {'was' if self.suite else 'were'} given")
        return self.models[0]

    def _source(self, model: str) -> Source:
        """A model with what the options say about it."""
        from nnstretch.cli.models.sources import Source

        return Source(model, self.options, self.weights, image_size=self.image_size)

    def _graph(self, compared: str, purpose: str) -> tuple[Source, ir.Model]:
        """The only model and its graph.

        Raises:
            UsageError: it is a package or not the only one, or an output is no JSON file.
            NNStretchError: it cannot be read.
        """
        source = self._source(self._only_model(purpose))
        check_endings(self.outputs, f"a comparison of {compared} is", answer_endings())
        return source, source.load()

    def _finish(self, report: Reporter, answer: Mapping[str, Any], table: Table, *notes: str) -> None:
        """Writes and shows an answer."""
        written = write_answer(self.outputs, answer)
        report.show(table)
        for note in notes:
            report.note(note)
        note_written(report, written)
        report.finish(answer)


def _one_count(threads: str | None) -> int | None:
    """The number of cores on a target; None for all that are fast.

    Raises:
        UsageError: it is no number, or several are given.
    """
    if threads is None:
        return None
    if not threads.isdigit() or not int(threads):
        raise UsageError(f"--threads {threads!r} is not one number of cores, which --target takes")
    return int(threads)
