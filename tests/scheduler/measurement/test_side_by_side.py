"""Sessions and processes that use the same cores at the same time: all finish with the results of a run alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import format_cores
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORES = tuple(sorted(os.sched_getaffinity(0)))[:2]
TOGETHER = f"cpu:{format_cores(CORES)}"
RUNS = 150

OTHER_PROCESS = """
import sys
import numpy as np
from nnstretch.scheduler.runtime.session import PlanSession

package, x, y, runs = sys.argv[1:]
x, y = np.load(x), np.load(y)
with PlanSession.load(package) as session:
    print("ready", flush=True)
    sys.stdin.readline()
    wrong = 0
    for _ in range(int(runs)):
        answers = session.run(None, {"x": x})
        wrong += np.concatenate([answer.ravel() for answer in answers]).tobytes() != y.tobytes()
print(wrong, flush=True)
"""


def test_processes_on_the_same_cores(tmp_path: Path) -> None:
    """Three of them, each with a thread on every core."""
    network = RandomNetwork(8, processors=0, nodes=40)
    package, x, y = tmp_path / "net.nns", tmp_path / "x.npy", tmp_path / "y.npy"
    with compile_model(network.graph(), build_processors(TOGETHER), tune=False) as session:
        session.save(package)
        answers = session.run(None, {"x": network.input})
    np.save(x, network.input)
    np.save(y, np.concatenate([answer.ravel() for answer in answers]))
    command = [sys.executable, "-c", OTHER_PROCESS, *map(str, (package, x, y, RUNS))]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:  # all begin before the first is waited for
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert printed == ["0\n"] * 3


@pytest.mark.skipif(len(CORES) < 2, reason="two groups of cores need two cores")
def test_sessions_on_the_same_cores() -> None:
    """Of different networks, on one pool of threads, on pools of their own, and on queues that run at once."""
    one, other = CORES
    texts = [TOGETHER, TOGETHER, f"cpu:{one},cpu:{other}", f"cpu:{other},cpu:{one}", f"cpu:{other}"]
    networks = [RandomNetwork(20 + i, processors=text.count("cpu"), nodes=12) for i, text in enumerate(texts)]
    sessions = [
        compile_model(network.graph(), build_processors(text), tune=False)
        for network, text in zip(networks, texts, strict=True)
    ]
    wrong: list[int] = []

    def call(number: int, session: PlanSession, x: np.ndarray, alone: list[np.ndarray]) -> None:
        for _ in range(RUNS):
            answers = session.run(None, {"x": x})
            if any(a.tobytes() != b.tobytes() for a, b in zip(answers, alone, strict=True)):
                wrong.append(number)

    threads = [
        threading.Thread(target=call, args=(i, session, network.input, session.run(None, {"x": network.input})))
        for i, (session, network) in enumerate(zip(sessions, networks, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.close()
    assert not wrong
