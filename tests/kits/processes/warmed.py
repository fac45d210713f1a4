"""What the first export and the first training of a process do, done while this module is imported: by a server of forks.

The exporter builds a table of operators, and optimisers import a compiler. Either takes longer than most commands. Trainings
import timm and TensorBoard, which takes as long as a short training. The measurement of how much processors slow each other
down gets fewer rounds, as it would take longer than most commands, too. Retrainings run in forks like the job that starts them.
"""

from __future__ import annotations

import torch
import torch.utils.tensorboard
from torch import nn
from tqdm import tqdm  # type: ignore[import-untyped]

from nnstretch.cli.job import retraining
from nnstretch.frontends.torch_module import export
from nnstretch.scheduler.measurement import interference
from nnstretch.support import child_process
from nnstretch.training.libraries import library

interference._ROUNDS, interference._RUNS = 2, 1
interference._CHAIN, interference._SMALL_IMAGE = ((16, 1),), (1, 16, 8, 8)
# The program of the forks comes first in PATH.
retraining.WORKER = ("python", "-m", "nnstretch.cli.job.retraining_worker")


def _stay(parent: int) -> None:
    """A fork's parent is the server, which kills it when its program is killed."""


child_process.die_with_parent = _stay
library("timm.optim")
tqdm.monitor_interval = 0  # the exporter's bar would start a thread, which forks lack
with torch.random.fork_rng():
    _module = nn.Conv2d(1, 1, 1)
    export(_module, torch.zeros(1, 1, 1, 1))
    torch.optim.SGD(_module.parameters())
