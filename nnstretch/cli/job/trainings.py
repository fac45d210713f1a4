"""Trainings of a job (`transform_and_train`) and what is kept of them: weights and scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.networks import JobNetworks
from nnstretch.cli.job.shared_cores import Share, all_threads, sharing_cores
from nnstretch.cli.job.stages import Answer
from nnstretch.cli.models.networks import Network
from nnstretch.cli.training import blockwise_phase, event_shown, on_chosen_epoch

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.support.progress import Progress
    from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
    from nnstretch.training.recipe import Recipe


class Trainings:
    """Trains the networks of a job."""

    def __init__(self, networks: JobNetworks, advice: str, share: Share) -> None:
        """Takes what all trainings share.

        Args:
            networks: of the job, with its images.
            advice: what the message of a training that a signal has stopped says to do.
            share: of the cores that a training on CPUs has, unless its recipe gives a number of threads.
        """
        self._networks = networks
        self._advice = advice
        self._share = share

    def train(self, network: Network, recipe: Recipe, teacher: nn.Module | None, folder: Path) -> dict[str, Any]:
        """Trains a network, a branched one with a block-wise start; goes on with what is in the folder."""
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals
        from nnstretch.training.loop.torch_settings import find_device
        from nnstretch.training.loop.trainer import train

        networks = self._networks
        device = find_device(networks.options.device)
        network.module.to(device)
        share = self._share if recipe.threads is None and device.type == "cpu" else all_threads
        run = RunOptions(folder / "run", resume=True, metadata=network.metadata(**networks.about))
        if teacher is not None:
            teacher.to(device)
        with networks.report.progress("Training") as advance, sharing_cores(share) as look:

            def after_step(done: int, total: int, what: str) -> None:
                look()
                advance(done, total, what)

            start = self._blockwise(network, recipe, teacher, after_step)
            with stopped_by_signals(self._advice) as stop:
                shown = event_shown(after_step)
                result = train(network.module, networks.dataset, recipe, teacher, shown, run, stop, start)
        network.module.to("cpu")
        networks.report.note(result.note)
        networks.report.note(on_chosen_epoch(result, run.best))
        history = [asdict(record) for record in result.history]
        score = round(result.validation_score, 4)
        return {"history": history, f"validation_{networks.measure.key}": score, "unreadable": result.unreadable}

    def _blockwise(
        self, network: Network, recipe: Recipe, teacher: nn.Module | None, advance: Progress
    ) -> BlockwisePhase | None:
        """The start in which the segments of a branched network learn side by side; the control has none."""
        from nnstretch.branching.transform.network import BranchedNetwork

        if teacher is None or not isinstance(network.module, BranchedNetwork) or not recipe.blockwise_epochs:
            return None
        return blockwise_phase(network.module, teacher, self._networks.dataset, recipe, advance)

    def save(self, network: Network, folder: Path, found: Mapping[str, Any]) -> Answer:
        """Writes the weights of a network; returns its scores, and what its training found."""
        from nnstretch.training.evaluation.accuracy import scored
        from nnstretch.training.weights import save_weights

        dataset, measure = self._networks.dataset, self._networks.measure
        splits = {"validation": dataset.validation, "test": dataset.test}
        scores = {
            key: round(scored(network.module, split, dataset).percent, 4)
            for name, split in splits.items()
            if (key := f"{name}_{measure.key}") not in found
        }
        about = network.metadata(**self._networks.about, **{measure.key: scores[f"test_{measure.key}"]})
        save_weights(network.module, folder / "weights.safetensors", about)
        counts = {"macs": network.macs, "params": network.parameters}
        return {"weights": "weights.safetensors", "measure": measure._asdict(), **counts, **scores, **found}
