"""Leases: trials of dead workers are queued again.

A worker that runs a trial writes a heartbeat into the trial's attribute `lease` every few seconds. A trial whose heartbeat has
not changed for `patience` seconds, by the observer's own clock, is given up: its state becomes FAIL, and its parameters are
queued again. On the machine of a dead process, which its worker's name tells apart from later ones, nothing is waited for.

Storages change the state of a running trial once, whoever asks, so only one observer queues a trial again. If that observer is
killed in between, another one does it later; if two do, the first copy counts. A worker that was merely stopped cannot finish a
trial that was given up. This needs no heartbeat of the storage, which journals do not have.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

LEASE = "lease"
"""Attribute of a trial: its worker's name and a count of heartbeats."""
GIVEN_UP = "given up"
"""Attribute of a trial that does not count: `lost` (its worker died) or `surplus` (enough others run)."""
AGAIN = "again"
"""Attribute of a queued trial: number of the lost one that it repeats."""
LOST, SURPLUS = "lost", "surplus"

_FIXED = "fixed_params"  # Optuna's attribute with the parameters of a queued trial


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds between heartbeats, and without one until a trial is given up."""

    interval: float = 5.0
    patience: float = 30.0


def is_given_up(trial: FrozenTrial) -> bool:
    """Whether a trial does not count because it was queued again or given back."""
    return trial.state.name == "FAIL" and GIVEN_UP in trial.user_attrs


def _is_lost(trial: FrozenTrial) -> bool:
    return is_given_up(trial) and trial.user_attrs[GIVEN_UP] == LOST


@cache
def _machine() -> str:
    """The machine since its last start, and the namespace of its process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = "unknown"
    return f"{socket.gethostname()}/{boot}/{namespace}".replace(":", "")


def worker_name() -> str:
    """A name that no other process has."""
    return f"{_machine()}:{os.getpid()}:{_start_of(os.getpid())}"


def _start_of(process: int) -> str:
    """When a process of this machine started, in ticks; "" if there is none of this number, or it is a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


def _is_dead(worker: str) -> bool:
    """Whether a worker of this machine has ended; false for those of other machines."""
    machine, _, process = worker.rpartition(":")[0].rpartition(":")
    return machine == _machine() and _start_of(int(process)) != worker.rpartition(":")[2]


@contextmanager
def leased(trial: Trial, times: LeaseTimes) -> Iterator[Callable[[], bool]]:
    """Holds the lease of a trial while the block runs.

    Yields:
        A function that says whether the trial was given up meanwhile.
    """
    from optuna.exceptions import UpdateFinishedTrialError

    name, stop, lost = worker_name(), threading.Event(), threading.Event()

    def write(beat: int) -> None:
        try:
            trial.storage.set_trial_user_attr(trial._trial_id, LEASE, {"worker": name, "beat": beat})
        except UpdateFinishedTrialError:
            lost.set()
            stop.set()
        except Exception:  # noqa: BLE001 - a storage that does not answer now may answer at the next heartbeat
            return

    def beat() -> None:
        count = 0
        while not stop.wait(times.interval):
            count += 1
            write(count)

    write(0)
    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield lost.is_set
    finally:
        stop.set()
        thread.join()


@dataclass(eq=False)
class LeaseObserver:
    """Finds trials whose workers are dead, and queues them again.

    Attributes:
        study: to look at.
        times: of its leases.
    """

    study: Study
    times: LeaseTimes
    _seen: dict[int, tuple[Any, float]] = field(default_factory=dict, init=False)

    def requeue_lost(self) -> int:
        """Queues the trials of dead workers again; returns their number. To be called every few seconds."""
        trials = self.study.get_trials(deepcopy=False)
        repeated = {trial.user_attrs[AGAIN] for trial in trials if AGAIN in trial.user_attrs}
        count = 0
        for trial in trials:
            if trial.state.name == "RUNNING" and self._is_expired(trial):
                count += requeue(self.study, trial)
            elif _is_lost(trial) and trial.number not in repeated and self._is_unchanged(trial.number, LOST):
                _queue_again(self.study, trial)  # the observer that gave it up has had time to do this
                count += 1
        return count

    def _is_expired(self, trial: FrozenTrial) -> bool:
        lease = trial.user_attrs.get(LEASE)
        if lease is not None and _is_dead(lease["worker"]):
            return True
        return self._is_unchanged(trial.number, None if lease is None else (lease["worker"], lease["beat"]))

    def _is_unchanged(self, number: int, now: Any) -> bool:
        """Whether something about a trial has been the same for as long as the patience is."""
        before, since = self._seen.get(number, (self, 0.0))
        if before != now:
            self._seen[number] = (now, time.monotonic())
            return False
        return time.monotonic() - since >= self.times.patience


def requeue(study: Study, trial: FrozenTrial) -> bool:
    """Gives a running trial up and queues it again; returns false if it has ended meanwhile."""
    if not give_up(study, trial._trial_id, LOST):
        return False
    _queue_again(study, trial)
    return True


def _queue_again(study: Study, trial: FrozenTrial) -> None:
    fixed = {**trial.system_attrs.get(_FIXED, {}), **trial.params}
    kept = {key: value for key, value in trial.user_attrs.items() if key not in {LEASE, GIVEN_UP}}
    study.enqueue_trial(fixed, user_attrs={**kept, AGAIN: trial.number})


def give_up(study: Study, trial_id: int, why: str) -> bool:
    """Ends a running trial that does not count; returns whether it was still running."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    storage = study._storage
    try:
        storage.set_trial_user_attr(trial_id, GIVEN_UP, why)
        return bool(storage.set_trial_state_values(trial_id, state=TrialState.FAIL))
    except UpdateFinishedTrialError:
        return False
