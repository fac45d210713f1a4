"""`nnstretch bench --design` on processors of a profile: designs of the search and published ones, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from nnstretch.devices.simulated.profile import SHIPPED
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.networks.published_networks import SETTINGS
from tests.kits.networks.small_network import SMALL_NETWORK
from tests.kits.networks.small_residual import BRANCHED, RESIDUAL

PHONE = ("-p", "sim:phone/cpu,sim:phone/gpu")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Two networks, and a published branching of one, in the working directory."""
    (folder / "net.py").write_text(RESIDUAL + SMALL_NETWORK)
    (folder / "published.yaml").write_text(BRANCHED.text())


def profile(path: Path, processor: str, kind: str) -> Sequence[str]:
    """Options for CPU and GPU of the phone without the rate of a kind of layer on one processor."""
    fields = json.loads((SHIPPED / "phone.json").read_text())
    del fields["processors"][processor]["compute"][kind]
    path.write_text(json.dumps(fields))
    return ("-p", f"sim:{path.name}/cpu,sim:{path.name}/gpu")


def test_a_design_of_the_search_is_scored_by_simulation(cli: Cli, folder: Path) -> None:
    search = ("--alpha", "100", "--beta", "100", "--top", "1", "--even-if-slower", "-o", "designs", "--json")
    (design,) = answer_of(cli("stretch", "net.py:residual", *PHONE, *search))["designs"]
    bench = ("bench", "net.py:residual", "--design", design["file"], *PHONE)
    found = answer_of(cli(*bench, "-o", "page.html", "-o", "kept.json", "--json"))
    assert found["simulated"]["profile"] == "phone"
    assert found["branched_ms"] == pytest.approx(design["predicted_ms"], rel=0.05)
    assert set(found["original_ms"]) == set(found["control_ms"]) == {"sim:phone/cpu", "sim:phone/gpu"}
    assert found["perfect_split_ms"] == pytest.approx(1 / sum(1 / ms for ms in found["control_ms"].values()), rel=1e-3)
    alternatives = [*found["original_ms"].values(), *found["control_ms"].values()]
    alternatives += [found["original_split_ms"], found["control_split_ms"]]
    best = min(alternatives) / found["branched_ms"]
    assert found["speedup_best_alternative"] == pytest.approx(best, rel=1e-3)
    assert (
        found["max_rel_error"] is found["original_all_cores_ms"] is found["onnxruntime_ms"] is found["machine"] is None
    )
    page = (folder / "page.html").read_text()
    assert "Latencies are simulated, from the profile phone." in page
    assert answer_of(cli(*bench, "--json"))["branched_ms"] == found["branched_ms"]
    status, out, _ = cli("report", "kept.json", "-o", "again.html")
    assert (status, out) == (0, "")
    assert "Latencies are simulated, from the profile phone." in (folder / "again.html").read_text()
    status, out, said = cli(*bench)
    assert status == 0
    assert "latencies are simulated, from the profile phone; nothing was run" in " ".join(out.split())
    assert "--rounds" not in said
    _, again, said = cli(*bench, "--rounds", "3")
    assert again == out
    assert "--rounds 3 changes nothing: a simulated run takes the same time in every round" in " ".join(said.split())


def test_published_files_are_scored_by_the_same_command(cli: Cli) -> None:
    found = answer_of(cli("bench", "net.py:residual", "--design", "published.yaml", *PHONE, "--json"))
    made = answer_of(cli("stretch", "net.py:residual", "--published", "published.yaml", *PHONE, "-o", "d", "--json"))
    (design,) = made["designs"]
    macs = {row["network"]: row["macs"] for row in found["rows"]}
    assert (macs["branched"], macs["original"]) == (design["macs"], made["original_macs"])
    assert macs["control"] == pytest.approx(design["macs"], rel=0.02)
    written = answer_of(cli("bench", "net.py:residual", "--design", design["file"], *PHONE, "--json"))
    assert {name: written[name] for name in ("branched_ms", "control_ms", "design")} == {
        name: found[name] for name in ("branched_ms", "control_ms", "design")
    }


def test_what_cannot_be_simulated_is_refused_in_one_line(cli: Cli, folder: Path) -> None:
    bench = ("bench", "net.py:residual", "--design", "published.yaml")
    refuses(cli(*bench, "-p", "sim:fone/cpu,sim:fone/gpu"), "no shipped profile 'fone'", "phone")
    refuses(cli(*bench, "-p", "sim:gone.json/cpu,sim:gone.json/gpu"), "cannot read profile gone.json")
    refuses(cli(*bench, "-p", "sim:phone/cpu,sim:phone/npu"), "no processor 'npu'", "cpu, gpu, dsp")
    refuses(cli(*bench, "-p", "sim:phone/cpu,cpu:0"), "not all of one profile")
    refuses(cli(*bench, "-p", "sim:phone/cpu"), "needs two or more")
    without = profile(folder / "other.json", "gpu", "conv")
    refuses(cli(*bench, *without), "sim:other.json/gpu cannot compute", "no rate for 'conv'", "`compute`")
    refuses(cli(*bench, "-p", "sim:phone/cpu,sim:other.json/gpu"), "not all of one profile")


def test_designs_for_other_networks_and_processors_are_refused(cli: Cli, folder: Path) -> None:
    made = cli("stretch", "net.py:residual", "--published", "published.yaml", *PHONE, "-o", "d", "--json")
    design = answer_of(made)["designs"][0]["file"]
    refuses(cli("bench", "net.py:small", "--design", design, *PHONE), "the design")
    (folder / "bottlenecks.yaml").write_text(SETTINGS["R-50 C+G"].text())
    refuses(cli("bench", "net.py:residual", "--design", "bottlenecks.yaml", *PHONE), "the file's family")
    refuses(cli("bench", "net.py:residual", "--design", "gone.yaml", *PHONE), "gone.yaml")
    (folder / "damaged.yaml").write_text("ANYNET: [")
    refuses(cli("bench", "net.py:residual", "--design", "damaged.yaml", *PHONE), "damaged.yaml")
