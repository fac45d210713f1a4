"""Examines sweeps of designs: time and front, samplers at equal budgets, the ranking by predictions, a front with trainings.

    python scripts/studies/sweep_study.py front samplers ranking textures --network resnet18 --work study

`front`: a sweep on processors of this machine; its front beside the analytic search's, and its time. `samplers`: hypervolume of
predicted latency and MACs for several samplers and seeds, on simulated processors, which no noise reaches. `ranking`: Kendall's
tau between predicted and measured latencies of random designs. `textures`: a sweep for latency, accuracy and memory that trains
designs of a small network of its own, and what `nnstretch bench` and `evaluate` say of the packages on its front
(`nnstretch.cli.job.front_study`). What a part has done is kept in the folder, and goes on there.
"""

from __future__ import annotations

import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.cli.job.front_study import STAGES, FrontOptions, FrontStudy, front_lines
from nnstretch.cli.options import make_directory
from nnstretch.errors import DesignError, FileError, MissingExtraError, UsageError
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from optuna import Study

    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.cli.models.networks import Network
    from nnstretch.sweeps.designs import DesignSweep
    from nnstretch.sweeps.space import PredictedDesign

_TURNS = 5  # of measuring a design for `ranking`
_WARM = 8  # designs of the analytic search's front
PARTS = ("front", "samplers", "ranking", "textures")
STUDIES = {"random": ("random", 0), "tpe cold": ("tpe", 0), "tpe warm": ("tpe", _WARM), "auto": ("auto", 0)}
"""Name -> sampler and number of designs of the analytic search that come first."""
_CONFIDENCE = 0.95
_PAUSE = 60.0  # seconds without a finished trial after which a study was interrupted


@dataclass(frozen=True)
class Examination:
    """What the parts share.

    Attributes:
        spec: the network, as users name it.
        processors: of this machine, for `front` and `ranking`.
        simulated: for `samplers`.
        folder: of studies and results.
        trials: of every study.
        seeds: studies per sampler.
        designs: predicted by `ranking`.
        measured: designs among them that it measures.
        limits: of segments.
        tune: whether measured designs are tuned.
        trained: what `textures` does.
    """

    spec: str
    processors: str
    simulated: str
    folder: Path
    trials: int
    seeds: int
    designs: int
    measured: int
    limits: SearchLimits
    tune: bool
    trained: FrontOptions

    @cached_property
    def network(self) -> Network:
        """The network with random weights."""
        from nnstretch.cli.models.networks import NetworkOptions, build_network

        return build_network(self.spec, NetworkOptions())

    def sweep(self, name: str, processors: str, sampler: str = "tpe", warm: int = 0, seed: int = 0) -> DesignSweep:
        """A sweep of latency and MACs with a journal of its own, which is created or resumed."""
        from nnstretch.compiler.processors import build_processors
        from nnstretch.sweeps.designs import DesignSweep, SweepSpec
        from nnstretch.sweeps.workers.worker import SweepBudget

        spec = SweepSpec(
            limits=self.limits, budget=SweepBudget(self.trials), storage=str(self.folder / f"{name}.journal"), resume=True,
            sampler=sampler, seed=seed, warm=warm, about={"model": self.spec},
        )  # fmt: skip
        return DesignSweep(self.network.module, self.network.example_input, build_processors(processors), spec)

    def studied(self, sweep: DesignSweep) -> Study:
        """The study of a sweep with all its trials."""
        from nnstretch.sweeps.evaluation import DesignEvaluation
        from nnstretch.sweeps.measures.results import ResultStore
        from nnstretch.sweeps.objectives import Fidelity, parse_objectives

        study, spec, space = sweep.open(), sweep.spec, sweep.space
        sweep.warm_start(study)
        objectives = parse_objectives("latency,macs")
        results = ResultStore(self.folder / "results")
        sweep.run(
            study,
            DesignEvaluation(study, space, objectives, Fidelity.PREDICTED, space.limits, spec.bounds, results),
        )
        return study

    # -- parts ----------------------------------------------------------------------------------------------------

    def front(self) -> dict[str, Any]:
        """A sweep that begins with the analytic search's front, the fronts of both by the same predictions, and the times.

        The search that is timed measures layers. So the sweep's own, which comes after it, may find other designs; these are
        compared.
        """
        from nnstretch.branching.search.options import SearchOptions
        from nnstretch.branching.search.search import search
        from nnstretch.sweeps.study import WARM, feasible_front

        sweep = self.sweep("front", self.processors, warm=_WARM)
        begin = time.perf_counter()
        options = SearchOptions(len(sweep.names), sweep.spec.limits, _WARM, pareto=True, even_if_slower=True)
        search(sweep._blueprint(sweep.spec.forms[0]), sweep.predictor, options)
        searched = time.perf_counter() - begin
        study = self.studied(sweep)

        def values(
            parameters: Mapping[str, Any],
        ) -> tuple[float, float]:  # predictions change while layers are measured
            predicted = sweep.space.design(parameters)
            return 1e3 * predicted.prediction.seconds, predicted.design.macs / 1e6

        front = [values(trial.params) for trial in feasible_front(study)]
        analytic = [values(trial.params) for trial in study.trials if WARM in trial.user_attrs]
        return {
            "trials": len(study.trials),
            "search_s": searched,
            "sweep_s": _seconds(study),
            "front": front,
            "analytic": analytic,
            **compared_fronts(analytic, front),
        }

    def samplers(self) -> dict[str, Any]:
        """Hypervolumes of all samplers over the seeds, as shares of that of all trials together."""
        losses: dict[str, list[np.ndarray]] = {}
        for name, (sampler, warm) in STUDIES.items():
            if not _is_at_hand(sampler):
                continue
            for seed in range(self.seeds):
                sweep = self.sweep(f"{name.replace(' ', '-')}-{seed}", self.simulated, sampler, warm, seed)
                losses.setdefault(name, []).append(losses_of(self.studied(sweep))[: self.trials])
        return {"processors": self.simulated, "trials": self.trials, "samplers": hypervolumes(losses)}

    def ranking(self) -> dict[str, Any]:
        """Predictions of random designs, and measurements of some that are spread over the predictions.

        Tau is that of the least latency of several turns, which neighbours on a shared machine disturb least. Tau between
        turns says how well latencies can be ranked at all: where it is low, the machine was disturbed, and nothing is shown.
        """
        from scipy.stats import kendalltau

        from nnstretch.sweeps.measures.results import ResultStore, digest

        sweep = self.sweep("ranking", self.processors)
        timer = sweep.timer(tune=self.tune)
        if timer is None:
            raise UsageError(f"designs cannot run on {self.processors}; name processors that are here")
        store = ResultStore(self.folder / "ranking")
        common = {"network": sweep.digest, "machine": [one.fingerprint for one in sweep.processors.named]}
        predicted = {one.design.id: one for one in self._random_designs(sweep)}
        # Measurements of layers change predictions, which must be those from before the designs ran.
        asked = {**common, "designs": self.designs, "measured": self.measured}
        kept: dict[str, float] = store.get(digest(asked), lambda: {"ms": self._spread(predicted.values())})["ms"]
        chosen = [predicted[name] for name in kept if name in predicted]
        measured: dict[str, list[float]] = {}
        # Each turn has another order, so that a disturbed minute is no property of similar designs.
        for turn in range(_TURNS):
            for place in np.random.default_rng(turn).permutation(len(chosen)):
                one = chosen[place]
                about = {**common, "design": one.design.id, "tune": self.tune, "turn": turn}
                found = store.get(digest(about), lambda one=one: timer(one))  # type: ignore[misc]
                measured.setdefault(one.design.id, []).append(found["latency"])
        expected = [kept[one.design.id] for one in chosen]
        turns = np.array([measured[one.design.id] for one in chosen])
        tau, chance = kendalltau(expected, turns.min(axis=1))
        return {
            "designs": len(predicted), "measured": len(chosen), "kendall_tau": float(tau), "p": float(chance),
            "kendall_tau_of_medians": float(kendalltau(expected, np.median(turns, axis=1)).statistic),
            "kendall_tau_between_turns": float(
                np.median([kendalltau(one, other).statistic for one, other in combinations(turns.T, 2)])
            ),
            "ms": [(ms, *some) for ms, some in zip(expected, turns.tolist(), strict=True)],
        }  # fmt: skip

    def _spread(self, predicted: Iterable[PredictedDesign]) -> dict[str, float]:
        """Predicted milliseconds of the designs to measure, by identifier: at equal steps in the order of predictions."""
        order = sorted(predicted, key=lambda one: one.prediction.seconds)
        places = np.unique(np.linspace(0, len(order) - 1, self.measured).astype(int))
        return {order[place].design.id: 1e3 * order[place].prediction.seconds for place in places}

    def textures(self) -> dict[str, Any]:
        """A front by real trainings, and what other commands say of it."""
        return FrontStudy(self.trained).run()

    def _random_designs(self, sweep: DesignSweep) -> list[Any]:
        """Different designs of the space within its limits, as far as there are as many."""
        from optuna import create_study, logging
        from optuna.samplers import RandomSampler

        from nnstretch.sweeps.evaluation import limited_design

        logging.set_verbosity(logging.WARNING)
        study = create_study(sampler=RandomSampler(0))
        found: dict[str, PredictedDesign] = {}
        for _ in range(20 * self.designs):
            limited = limited_design(
                study.ask(dict(sweep.space.distributions)), sweep.space, sweep.space.limits, sweep.spec.bounds
            )
            if limited.is_feasible:
                found[limited.predicted.design.id] = limited.predicted
            if len(found) == self.designs:
                break
        if len(found) < 2:
            raise DesignError(f"{len(found)} of {20 * self.designs} random designs are within the limits; 2 are wanted")
        return list(found.values())


def _is_at_hand(sampler: str) -> bool:
    """Whether a sampler is installed, and downloaded or can be."""
    from nnstretch.sweeps.samplers import find_sampler

    try:
        find_sampler(sampler)(0)
    except (MissingExtraError, FileError):
        return False
    return True


def _seconds(study: Study) -> float:
    """Seconds from trial to trial; pauses of more than a minute, between runs of this script, do not count."""
    ends = [trial.datetime_complete.timestamp() for trial in study.trials if trial.datetime_complete]
    begins = [trial.datetime_start.timestamp() for trial in study.trials[:1] if trial.datetime_start]
    steps = np.diff(sorted([*begins, *ends]))
    return float(steps[steps < _PAUSE].sum())


def compared_fronts(analytic: Sequence[Sequence[float]], front: Sequence[Sequence[float]]) -> dict[str, Any]:
    """How many points (latency, MACs) of the analytic search another front contains, dominates, or does neither of.

    Points that differ by less than a thousandth are equal.
    """
    counts = {"contained": 0, "dominated": 0, "missed": 0}
    for latency, macs in analytic:
        reached = [one for one in front if one[0] <= latency * 1.001 and one[1] >= macs * 0.999]
        better = any(one[0] < latency * 0.999 or one[1] > macs * 1.001 for one in reached)
        counts["dominated" if better else "contained" if reached else "missed"] += 1
    return counts


def losses_of(study: Study) -> np.ndarray:
    """Latency and negative MACs of every trial, in order; infinite for those that are not within all limits."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        is_counted = trial.state.name == "COMPLETE" and all(value <= 0 for value in trial.constraints.values())
        rows.append((trial.values[0], -trial.values[1]) if is_counted else (math.inf, math.inf))
    return np.array(rows)


def hypervolumes(losses: Mapping[str, Sequence[np.ndarray]]) -> dict[str, dict[str, Any]]:
    """Mean hypervolume after 50 trials and after all of them, with its interval over several seeds.

    A hypervolume is a share of that of all points together, between their best and worst values.

    Args:
        losses: of the trials, per sampler and seed.
    """
    from scipy.stats import t

    from nnstretch.sweeps.ladder import hypervolume

    points = np.concatenate([one for some in losses.values() for one in some])
    points = points[np.isfinite(points).all(axis=1)]
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-12)
    reference = (1.001, 1.001)
    whole = hypervolume((points - low) / span, reference)
    result: dict[str, dict[str, Any]] = {}
    for name, some in losses.items():
        result[name] = {}
        for count in sorted({min(50, len(some[0])), len(some[0])}):
            shares = [hypervolume((one[:count] - low) / span, reference) / whole for one in some]
            mean = float(np.mean(shares))
            ends: tuple[float | None, float | None] = (None, None)
            if len(shares) > 1:
                half = float(
                    t.ppf((1 + _CONFIDENCE) / 2, len(shares) - 1) * np.std(shares, ddof=1) / len(shares) ** 0.5
                )
                ends = (mean - half, mean + half)
            result[name][str(count)] = {"mean": mean, "low": ends[0], "high": ends[1], "seeds": shares}
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Examines and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("parts", nargs="+", metavar="PART", choices=PARTS, help=", ".join(PARTS))
    parser.add_argument("--network", default="resnet18", help="zoo name or module.py:factory (default: resnet18)")
    parser.add_argument("--processors", "-p", default="cpu:0,cpu:1", help="that measure (default: cpu:0,cpu:1)")
    parser.add_argument("--simulated", default="sim:phone/cpu,sim:phone/gpu", help="processors of `samplers`")
    parser.add_argument("--work", "-o", type=Path, default=Path("sweep_study"), help="folder of studies and results")
    parser.add_argument("--trials", type=int, default=200, help="of every study (default: 200)")
    parser.add_argument("--seeds", type=int, default=5, help="studies per sampler (default: 5)")
    parser.add_argument("--designs", type=int, default=1000, help="that `ranking` predicts (default: 1000)")
    parser.add_argument("--measured", type=int, default=50, help="designs that `ranking` measures (default: 50)")
    parser.add_argument("--no-tune", action="store_true", help="measure designs with routines chosen by estimates")
    parser.add_argument("--alpha", type=float, default=0.3, help="as `nnstretch stretch` has it (default: 0.3)")
    parser.add_argument("--beta", type=float, default=0.8, help="as `nnstretch stretch` has it (default: 0.8)")
    _add_training_options(parser)
    given = parser.parse_args(arguments)

    def work() -> None:
        from nnstretch.branching.search.limits import SearchLimits

        folder = make_directory(given.work)
        made = Examination(
            given.network, given.processors, given.simulated, folder, given.trials, given.seeds, given.designs,
            given.measured, SearchLimits(given.alpha, given.beta), not given.no_tune, _front_options(given, folder),
        )  # fmt: skip
        answer = {part: getattr(made, part)() for part in given.parts}
        write_text(folder / "answer.json", json.dumps(answer, indent=1))
        print_answer(answer, show, as_json=given.json)

    return exit_status(work)


def _add_training_options(parser: ArgumentParser) -> None:
    """The options of `textures`."""
    add = parser.add_argument_group("textures").add_argument
    add("--epochs", type=int, default=16, help="of the original's training (default: 16)")
    add("--retrain-epochs", type=int, default=4, help="of a design's full training (default: 4)")
    add("--epoch-images", type=int, default=5000, help="training images per epoch (default: 5000)")
    add("--held-out", type=int, help="validation images, and test images (default: all)")
    add("--redo", choices=STAGES, help="run this stage and those after it again")


def _front_options(given: Namespace, folder: Path) -> FrontOptions:
    """What `textures` does."""
    return FrontOptions(
        folder / "textures", given.processors, given.trials, not given.no_tune, given.epochs, given.retrain_epochs,
        given.epoch_images, given.held_out, given.redo,
    )  # fmt: skip


def show(answer: Mapping[str, Any]) -> None:
    """A few lines per part."""
    if front := answer.get("front"):
        print(
            "front: {trials} trials in {sweep_s:.0f} s after a search of {search_s:.0f} s; of the search's points {contained} "
            "are contained, {dominated} dominated, {missed} missed".format(**front)
        )
    for name, counts in answer.get("samplers", {}).get("samplers", {}).items():
        for count, one in counts.items():
            interval = "" if one["low"] is None else f" ({one['low']:.4f} to {one['high']:.4f})"
            print(f"{name}, {count} trials: hypervolume {one['mean']:.4f}{interval}")
    if ranking := answer.get("ranking"):
        print(
            "ranking: Kendall's tau {kendall_tau:.3f} (p {p:.2g}; {kendall_tau_of_medians:.3f} of medians; "
            "{kendall_tau_between_turns:.3f} between two turns of measuring) of {measured} measured designs among "
            "{designs}".format(**ranking)
        )
    if textures := answer.get("textures"):
        counts = textures["trials"]
        print(f"textures: {counts['complete']} designs trained to the end, {counts['pruned']} pruned before")
        print(*front_lines(textures), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
