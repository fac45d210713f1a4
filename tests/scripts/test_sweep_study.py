"""The script that examines sweeps, at toy size."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from nnstretch.sweeps.samplers import _auto_sampler
from scripts.studies.sweep_study import compared_fronts, hypervolumes, main
from tests.kits.networks.small_network import SMALL_NETWORK


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(SMALL_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optunahub", None)  # which would be downloaded
    _auto_sampler.cache_clear()
    return "net.py:small"


def test_every_part_answers_and_goes_on_where_it_was(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trials", "10", "--seeds", "2", "--designs", "2", "--measured", "2", "--alpha", "1e4", "--beta", "1e4"]
    command = ["--network", network, *sizes, "--no-tune", "--json"]
    assert main(["front", "samplers", *command, "-p", "sim:phone/cpu,sim:phone/gpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    front = answer["front"]
    assert front["trials"] == 10
    assert front["contained"] + front["dominated"] == len(front["analytic"]), (
        "the warm start is on the front or dominated"
    )
    assert front["missed"] == 0
    assert front["sweep_s"] > 0
    shares = answer["samplers"]["samplers"]
    assert {"random", "tpe cold", "tpe warm"} <= set(shares)
    for counts in shares.values():
        assert 0 <= counts["10"]["mean"] <= 1
        assert len(counts["10"]["seeds"]) == 2
    assert main(["samplers", *command]) == 0
    assert json.loads(capsys.readouterr().out)["samplers"] == answer["samplers"]
    assert main(["ranking", *command[:-1]]) == 0
    first = capsys.readouterr().out
    assert "of 2 measured designs among 2" in first
    assert main(["ranking", *command[:-1]]) == 0
    assert capsys.readouterr().out == first, "nothing is measured again"


def test_fronts_are_compared_within_a_thousandth() -> None:
    analytic = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
    front = [(1.0005, 10.0), (1.9, 20.0), (3.0, 29.0)]
    assert compared_fronts(analytic, front) == {"contained": 1, "dominated": 1, "missed": 1}


def test_hypervolumes_are_shares_with_intervals_over_the_seeds() -> None:
    good, bad = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[math.inf, math.inf], [0.5, 0.5]])
    found = hypervolumes({"good": [good, good], "bad": [bad, bad[::-1]]})
    assert found["good"]["2"]["mean"] == pytest.approx(1)
    assert found["good"]["2"]["low"] == pytest.approx(found["good"]["2"]["high"])
    assert hypervolumes({"good": [good]})["good"]["2"]["low"] is None
    assert found["bad"]["2"]["mean"] == pytest.approx(0.501**2 / 1.001**2)


def test_what_cannot_be_examined_is_one_line(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranking", "--network", network, "-p", "sim:phone/cpu,sim:phone/gpu"]) == 2
    assert "designs cannot run on sim:phone/cpu" in capsys.readouterr().err
    assert main(["front", "--network", network, "--trials", "0"]) == 2
    assert "0 trials" in capsys.readouterr().err
    Path("file").touch()
    assert main(["front", "--network", network, "-o", "file"]) == 2
    assert "cannot make directory file" in capsys.readouterr().err
