"""A training leaves cores to what prepares processors, while that takes, and takes those of trainings that have ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from nnstretch.cli.job.preparing import PreparationBeside
from nnstretch.cli.job.retraining import share_cores
from nnstretch.cli.job.retraining_worker import GivenThreads
from nnstretch.cli.job.shared_cores import beside, sharing_cores
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.compiler.preparation import Preparation
from nnstretch.support.frames import write_frame
from nnstretch.support.worker_process import WorkerProcess
from nnstretch.training.loop.torch_settings import threads


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("taken", [1, 2])
def test_a_build_has_its_threads_until_it_has_ended(taken: int) -> None:
    going_on = [True]
    with sharing_cores(beside(lambda _: taken * going_on[0])) as look:
        found = [torch.get_num_threads()]
        for goes_on in (True, False, True):
            going_on[0] = goes_on
            look()
            found.append(torch.get_num_threads())
    assert found == [4 - taken, 4 - taken, 4, 4]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_left_alone_where_nothing_is_prepared(count: int) -> None:
    torch.set_num_threads(count)
    with sharing_cores(beside(lambda _: int(count == 1))) as look:
        look()
        assert torch.get_num_threads() == count
        torch.set_num_threads(2)
        look()
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == count


def test_the_last_of_several_trainings_gets_all_cores() -> None:
    """The processes that go on share the cores; what one has been given counts from its next step on."""
    echo = "import sys\nfrom nnstretch.support.frames import *\n"
    echo += "while True: write_frame(sys.stdout.buffer, read_frame(sys.stdin.buffer)[0])"
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess((sys.executable, "-c", echo), patience=0)) for _ in range(3)]
        workers[0].kill()
        share_cores(7, workers)  # one has just ended
        assert [worker.receive(60)[0] for worker in workers[1:]] == [{"threads": 2}] * 2
        share_cores(7, workers[1:2])
        assert workers[1].receive(60)[0] == {"threads": 7}


def test_a_training_follows_what_it_is_given() -> None:
    torch.set_num_threads(1)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as frames, os.fdopen(writing, "wb") as parent:
        given = GivenThreads(frames)
        with sharing_cores(given) as look:
            look()
            assert torch.get_num_threads() == 1
            with threads(None):  # a phase of a training whose recipe leaves the threads open
                write_frame(parent, {"threads": 3})
                while given(1) != 3:
                    time.sleep(0.01)
                look()
                assert torch.get_num_threads() == 3
            look()
            assert torch.get_num_threads() == 3
        parent.close()  # ends the thread that reads


def test_a_preparation_is_left_half_of_the_cores_to_build_and_one_for_the_rest() -> None:
    command = (sys.executable, "-c", "import sys; sys.stdin.read()")
    preparing = PreparationBeside(TransformOptions("resnet18", "digits", "cpu:0", Path("out")))
    assert preparing.cores_taken(8) == 0
    with Preparation(command) as preparation:
        preparing._preparation = preparation
        taken = []
        for preparation.builds in (True, False):
            taken.append(preparing.cores_taken(8))
        assert taken == [4, 1]
    assert preparing.cores_taken(8) == 0
