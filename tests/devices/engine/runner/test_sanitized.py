"""The runner built with the compiler's sanitizers, on branched models with two queues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa
from tests.kits.boards.machines import phone
from tests.kits.boards.runner import bench, write_model
from tests.kits.c_libraries import runnable_sources, thread_sanitized_sources
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.typed_networks import all_types

SUPPRESSIONS = Path(__file__).parents[1] / "thread_sanitizer.supp"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_no_sanitizer_reports_anything(sanitize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sanitize == "thread":
        monkeypatch.setattr(standalone, "engine_sources", lambda target, _: thread_sanitized_sources(target))
    else:
        monkeypatch.setattr(standalone, "engine_sources", runnable_sources)
    runner = standalone.build_runner(BuildTarget(local_isa()), sanitize)
    environment = {"TSAN_OPTIONS": f"halt_on_error=1 suppressions={SUPPRESSIONS}"}
    models = [write_model(RandomNetwork(seed, 2), tmp_path / f"{seed}.nnm", ((0,), (1,))) for seed in range(3)]
    models.append(write_model(all_types(), tmp_path / "typed.nnm"))
    (tmp_path / "damaged.nnm").write_bytes(models[0].read_bytes()[:-1])
    root = phone(tmp_path / "phone")
    common: tuple[str | Path, ...] = ("--root", root, "--timeline", "--outputs", tmp_path / "out", "--warmup", "0.01")
    models += [tmp_path / "damaged.nnm", tmp_path / "none"]
    answer = bench(runner, *common, "--runs", "30", *models, status=1, environment=environment)
    assert ["error" in entry for entry in answer["models"]] == [False, False, False, False, True, True]
    answer = bench(runner, *common, "--minutes", "0.02", "--hottest", "80", models[0], environment=environment)
    assert answer["models"][0]["sustained"]
    (tmp_path / "list").write_text("".join(f"{model}\n" for model in models[:3]))
    answer = bench(runner, "--list", tmp_path / "list", "--runs", "2", "--warmup", "0", environment=environment)
    assert len(answer["models"]) == 3
    bench(runner, "--probe", environment=environment)
    bench(runner, "--probe", "--root", root, environment=environment)
