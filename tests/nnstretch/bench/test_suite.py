"""Benchmarks of many models: measurements, resumed results, output and failures."""

import json
import math
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from rich.console import Console
from torch import nn

from nnstretch.bench.comparison import suite as series_module
from nnstretch.bench.comparison.compare import ComparisonOptions
from nnstretch.bench.comparison.subject import check_exists
from nnstretch.bench.comparison.suite import (
    Result,
    Series,
    highest_peak,
    models_of_suite,
    outcome,
    parse_threads,
    read_results,
    run_series,
    summaries,
)
from nnstretch.bench.engines import EngineEntry
from nnstretch.bench.timing import TimingOptions, geometric_mean
from nnstretch.cli.main import main
from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.torch_module import export
from nnstretch.report.documents.bench import bench_document
from nnstretch.report.documents.writers import html, picture
from nnstretch.report.tables.bench import comparison_table, failures, layer_table, start_table

CORES = tuple(sorted(os.sched_getaffinity(0)))
MACHINE = {"cpu": "A CPU & co <x86>", "cores": 2, "peak_gflops_per_core": 100.0}
SVG = "{http://www.w3.org/2000/svg}"


def silent(done: int, total: int, what: str) -> None:
    pass


@contextmanager
def quiet(title: str) -> Iterator[Callable[[int, int, str], None]]:
    yield silent


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("series") / "net.onnx"
    save(export(nn.Conv2d(1, 4, 3), torch.zeros(1, 1, 8, 8)), path)
    return str(path)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEntry:
    """An engine that says how often it has been made ready, and computes nonsense."""
    (tmp_path / "counting_engine.py").write_text(
        textwrap.dedent(
            """
            from pathlib import Path
            import numpy as np
            here = Path(__file__).parent
            class Counting:
                def __init__(self, job): self.job = job
                def run(self): pass
                def outputs(self): return {"y": np.zeros(3)}
                def facts(self): return {"version": self.job.file and Path(self.job.file).read_text()}
            def prepare(job, folder, report):
                with (here / "prepared").open("a") as log: log.write("once ")
                (folder / "made").write_text("1.2")
                return folder / "made"
            def load(job, feeds, report):
                with (here / "loaded").open("a") as log: log.write(f"{len(job.cores)} ")
                return Counting(job)
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return EngineEntry("counting", "counting", "counting_engine", prepares="once")


def make_series(models: list[str], engine: EngineEntry, threads: tuple[int, ...] = (1,), **settings: Any) -> Series:
    options = ComparisonOptions((), TimingOptions(rounds=1, turn=0.0), runs=1, **settings)
    return Series(models, (engine,), threads, CORES, options)


def result(name: str, threads: int = 1, ratio: float | None = 1.25, **more: Any) -> Result:
    ours = {"p50_ms": 8.0, "p90_ms": 9.0, "min_ms": 7.5, "spread": 0.01, "created_ms": 4.0, "ready_ms": 12.0}
    ours |= {"peak_mb": 20.0, "peak_rss_mb": 50.0}
    theirs = {"p50_ms": 8.0 * (ratio or 1.0), "p90_ms": 12.0, "min_ms": 9.0, "spread": 0.02, "max_rel_error": 1e-6}
    layer = {"op": "Conv", "routine": "cpu:float32/direct", "parameters": {"pixels": 14}, "processor": "cpu:0"}
    rows = [
        {"name": "stem<0>", "ms": 6.0, "share": 0.75, "macs": 10**8, "gflops": 33.0, **layer},
        {"name": "pool", "ms": 2.0, "share": 0.25, "macs": 0, "gflops": 0.0, **layer, "op": "MaxPool"},
    ]
    return {
        "model": name,
        "threads": threads,
        "dtype": "float32",
        "macs": 10**8,
        "engines": {"nnstretch": ours, "onnxruntime": theirs, "ncnn": {"error": "it <fell>"}},
        "best_peer": "onnxruntime",
        "speedup": ratio,
        "peak_gflops_per_core": 100.0,
        "peak_share": 0.25,
        "max_rel_error": 1e-6,
        "fallback_layers": [],
        "layers": rows,
        **more,
    }


def page_of(answer: Mapping[str, Any]) -> str:
    return html(bench_document(answer))


def pictured(answer: Mapping[str, Any]) -> str:
    return picture(bench_document(answer))


def answer(*results: Result) -> dict[str, Any]:
    return {"machine": MACHINE, "summary": summaries(results), "results": list(results)}


# -- what is asked -------------------------------------------------------------------------------------------------


def test_threads_as_they_are_written() -> None:
    assert parse_threads("1,2,1") == (1, 2)
    assert parse_threads(" 4") == (4,)
    for text in ("0", "1,-2", "two", "", "1,,2"):
        with pytest.raises(UsageError, match="--threads"):
            parse_threads(text)


def test_more_threads_than_cores(engine: EngineEntry) -> None:
    with pytest.raises(UsageError, match="share a core"):
        make_series(["m.onnx"], engine, (1, len(CORES) + 1))


def test_suites() -> None:
    assert {"resnet50", "vgg16"} <= set(models_of_suite("neocpu"))
    assert "mobilenetv2" in models_of_suite("mobile")
    assert set(models_of_suite("all")) == {*models_of_suite("neocpu"), *models_of_suite("mobile")}
    with pytest.raises(UsageError, match="neocpu, mobile, all"):
        models_of_suite("neocpuu")


def test_models_that_are_not_there() -> None:
    check_exists("resnet18")
    for missing in ("missing.onnx", "folder/net", "missing.py:make", "missing.nns"):
        with pytest.raises(FileError, match=r"missing|folder"):
            check_exists(missing)
    with pytest.raises(ModelError, match="resnet18"):
        check_exists("resnet-18")


# -- what is measured ----------------------------------------------------------------------------------------------


def test_files_are_made_once_and_starts_thrice(model: str, engine: EngineEntry, tmp_path: Path) -> None:
    threads = (1, 2) if len(CORES) > 1 else (1,)
    found = list(run_series(make_series([model], engine, threads, starts=3), [], quiet))
    assert [one["threads"] for one in found] == list(threads)
    assert (tmp_path / "prepared").read_text() == "once "
    assert (tmp_path / "loaded").read_text().split() == [str(n) for n in threads for _ in range(3)]
    # It computes something else than ONNX Runtime, so it is no engine to be compared with.
    assert "ONNX Runtime" in found[0]["engines"]["counting"]["error"]
    assert found[0]["speedup"] is None


def test_an_engine_is_asleep_between_its_turns(model: str, engine: EngineEntry) -> None:
    from nnstretch.bench.comparison.client import EngineProcess
    from nnstretch.bench.engines import Job

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    with EngineProcess(engine, Job(model, model, CORES[:1]), {}, silent) as process:
        pid = process._worker._process.pid
        assert state(pid) == "T"
        assert process.time(0.0, 2).shape == (2,)
        assert state(pid) == "T"
    assert not Path(f"/proc/{pid}").exists()


def test_a_model_that_cannot_be_read_does_not_cost_the_others(model: str, engine: EngineEntry, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_text("hello")
    found = list(run_series(make_series([str(broken), model], engine), [], quiet))
    assert "not an ONNX file" in found[0]["error"]
    assert found[0]["engines"] == {}
    assert "error" not in found[1]
    with pytest.raises(ModelError):
        list(run_series(make_series([str(broken)], engine), [], quiet))
    with pytest.raises(FileError, match=r"missing\.onnx"):
        next(run_series(make_series([model, "missing.onnx"], engine), [], quiet))


def test_what_was_measured_before_is_kept(model: str, engine: EngineEntry, tmp_path: Path) -> None:
    before = result(model)
    before["engines"]["counting"] = {"p50_ms": 1.0}
    (found,) = run_series(make_series([model], engine), [before], quiet)
    assert found is before
    assert not (tmp_path / "loaded").exists()
    del before["engines"]["counting"]  # another engine is wanted than was there
    (found,) = run_series(make_series([model], engine), [before], quiet)
    assert found is not before


def test_what_was_measured_with_other_inputs_is_not_kept(model: str, engine: EngineEntry) -> None:
    before = result(model, inputs={"input": [1, 1, 8, 8]})
    before["engines"]["counting"] = {"p50_ms": 1.0}
    series = make_series([model], engine)
    for other in (replace(series, batch=1), replace(series, image_size=8)):
        (found,) = run_series(other, [before], quiet)
        assert found is not before
    with pytest.raises(ModelError, match="9"):  # the model, which is fixed, is asked for the shape
        list(run_series(replace(series, shapes={"input": (1, 1, 9, 9)}), [before], quiet))
    (found,) = run_series(replace(series, shapes={"input": (1, 1, 8, 8)}), [before], quiet)
    assert found is before


def test_networks_for_images_of_another_size(
    capsys: pytest.CaptureFixture[str], engine: EngineEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.bench.comparison.compare.parse_engines", lambda *_: (engine,))
    main(["bench", "squeezenet1_1", "mobilenetv2", "--image-size", "32", "--rounds", "1", "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["inputs"] for one in results] == [{"x": [1, 3, 32, 32]}] * 2


def test_results_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert read_results(path) == []
    path.write_text(json.dumps(answer(result("a"))))
    assert read_results(path)[0]["model"] == "a"
    for text in ("hello", "[]", '{"results": 3}', '{"results": [3]}', "{}"):
        path.write_text(text)
        with pytest.raises(FileError, match="--resume"):
            read_results(path)


# -- what is made of it --------------------------------------------------------------------------------------------


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_summaries_per_number_of_threads() -> None:
    found = summaries([result("a", 1, 2.0), result("b", 1, 0.5), result("c", 1, None), result("a", 2, 3.0)])
    assert [(s["threads"], s["models"], s["not_slower"]) for s in found] == [(1, 2, 1), (2, 1, 1)]
    assert found[0]["geometric_mean"] == pytest.approx(1.0)
    assert (found[0]["least"], found[0]["least_model"]) == (0.5, "b")
    assert summaries([result("c", 1, None)])[0]["geometric_mean"] is None
    assert highest_peak([result("a"), result("b", peak_gflops_per_core=120.0)]) == 120.0
    assert highest_peak([]) is None


def test_one_line_on_a_result() -> None:
    assert outcome(result("m/net.onnx")) == "net.onnx, 1 thread: 8.00 ms, 1.25× onnxruntime"
    assert "no such" in outcome(result("net", 2, None, error="no such thing", engines={}))


def shown(*tables: Any) -> str:
    console = Console(width=200, record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115 - closed with the process
    for table in tables:
        console.print(table)
    return console.export_text()


def test_tables_say_what_was_measured() -> None:
    whole = answer(result("a", 2), result("b", 2, None, engines={}, macs=None, peak_share=None, max_rel_error=None))
    (summary,) = whole["summary"]
    text = shown(comparison_table(whole["results"], ["nnstretch", "onnxruntime", "ncnn"], MACHINE, summary))
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["a"]]
    assert line.split() == ["a", "100", "M", "8.00", "10.00", "–", "1.25", "25%", "2%", "1e-06"]
    assert "geometric mean of 1 model" in text
    assert "on 2 cores" in text
    assert "above 100% of peak" not in text
    fast = [{**whole["results"][0], "peak_share": 1.02}]
    text = shown(comparison_table(fast, ["nnstretch"], MACHINE, summary))
    assert "102%" in text
    assert "above 100% of peak: MACs are counted as the model has" in text
    text = shown(start_table(whole["results"], ["nnstretch", "onnxruntime"]))
    assert "4 / 12 ms" in text
    assert "20 (50) MB" in text
    whole["results"][0]["engines"]["onnxruntime"] |= {"created_ms": 12.5, "ready_ms": 14.0}
    whole["results"][0]["engines"]["onnxruntime"] |= {"peak_mb": 25.0, "peak_rss_mb": 45.0}
    text = " ".join(shown(start_table(whole["results"], ["nnstretch"])).split())
    assert "in 1 of 1; less memory in 1 beyond imports, 0 in all" in text
    text = shown(layer_table(whole["results"][0]))
    assert "pixels=14" in text
    assert "75.0%" in text
    assert "16%" in text  # 33 GFLOP/s of 2 x 100
    assert failures(whole["results"]) == ["a, 2 threads: ncnn failed: it <fell>"]


def test_pictures_show_every_model_and_layer() -> None:
    whole = answer(result("a", 1, 1.5), result("a", 2, 0.8), result("b & c", 1, 1.2))
    root = parsed(pictured(whole))
    texts = [str(element.text) for element in root.iter(f"{SVG}text")]
    assert {"a", "b & c", "1.50× onnxruntime", "0.80× onnxruntime"} <= set(texts)
    bars = [e for e in root.iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]
    ratios = [bar for bar in bars if "ms, onnxruntime" in str(bar.findtext(f"{SVG}title"))]
    widths = [float(bar.attrib["width"]) for bar in ratios]
    assert widths[0] / widths[1] == pytest.approx(1.5 / 0.8, rel=0.01)
    assert [bar.attrib["class"] == "accent" for bar in ratios] == [False, True, False]  # a loss is red
    towers = [bar for bar in bars if "of the run" in str(bar.findtext(f"{SVG}title"))]
    assert len(towers) == 3 * 2
    assert float(towers[0].attrib["width"]) > 2.9 * float(towers[1].attrib["width"])


def test_pictures_of_nothing() -> None:
    failed = result("a", 1, None, engines={}, peak_gflops_per_core=None, error="gone", layers=[])
    parsed(pictured(answer(failed)))
    assert "gone" in page_of(answer(failed))
    assert math.isfinite(len(page_of(answer())))


def test_page_is_self_contained_and_escaped() -> None:
    page = page_of(answer(result("a<b>"), result("c", 2)))
    assert "a&lt;b&gt;" in page
    assert "it &lt;fell&gt;" in page
    assert "a<b>" not in page
    assert "A CPU &amp; co &lt;x86&gt;" in page
    for outside in ("http:", "https:", "<script", "@import", "url("):
        assert outside not in page.replace("http://www.w3.org/2000/svg", "")


def test_page_says_in_which_types_and_batch_networks_were_computed() -> None:
    head = "Medians of interleaved rounds in {}; every engine"
    assert head.format("float32, the batch that each model has") in page_of(answer(result("a")))
    assert head.format("int8, batch 4") in page_of(answer(result("a", dtype="int8", batch=4)))
    both = answer(result("a", dtype="int8"), result("b"), result("c", 2, dtype="int8"))
    assert head.format("float32 and int8, the batch that each model has") in page_of(both)
    assert head.format("int8, the batch that each model has") in page_of(both)


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    """What the command measures: results that a test lists, then Ctrl-C."""
    found: list[Result] = []

    def run(series: Series, known: list[Result], progress: Any) -> Iterator[Result]:
        yield from known
        yield from found
        raise KeyboardInterrupt

    monkeypatch.setattr(series_module, "run_series", run)
    return found


def test_an_interrupted_run_shows_and_keeps_what_it_has(
    measured: list[Result], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    measured.append(result("resnet18"))
    files = [tmp_path / f"r{suffix}" for suffix in (".json", ".svg", ".html")]
    command = ["bench", "resnet18", "resnet34", *(word for path in files for word in ("-o", str(path)))]
    assert main(command) == 130
    out, err = capfd.readouterr()
    assert "1.25× the best engine" in " ".join(out.split())
    assert "interrupted; measured routines are kept" in err
    assert "resnet18, 1 thread: 8.00 ms, 1.25× onnxruntime (1 of 2)" in err
    assert [one["model"] for one in json.loads(files[0].read_text())["results"]] == ["resnet18"]
    parsed(files[1].read_text())
    assert "resnet18" in files[2].read_text()
    measured[:] = [result("resnet34")]
    assert main(["bench", "resnet18", "resnet34", "--json", "--resume", "-o", str(files[0])]) == 130
    kept = json.loads(capfd.readouterr()[0])
    assert [one["model"] for one in kept["results"]] == ["resnet18", "resnet34"]
    assert kept["summary"][0]["models"] == 2


def test_an_interrupted_run_that_has_nothing(measured: list[Result], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "resnet18"]) == 130
    assert capfd.readouterr()[0] == ""


@pytest.mark.parametrize(("failing", "status"), [(0, 0), (1, 1), (2, 1)])
def test_a_run_that_lacks_a_latency_of_ours_fails(failing: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [result("resnet18"), result("resnet34")]
    for one in found[:failing]:
        one["engines"]["nnstretch"] = {"error": "gone"}
        one["speedup"] = None
    monkeypatch.setattr(series_module, "run_series", lambda *_: iter(found))
    assert main(["bench", "resnet18", "resnet34"]) == status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to measure"),
        (["--suite", "huge"], "neocpu, mobile, all"),
        (["resnet18", "--threads", "none"], "--threads 'none'"),
        (["resnet18", "--resume"], ".json"),
        (["resnet18", "-o", "picture.bmp"], ".svg"),
        (["--suite", "mobile", "--shape", "x=1,3,8,8"], "--suite"),
        (["--suite", "mobile", "--design", "d.json"], "one network"),
        (["net.onnx", "--image-size", "64"], "cannot read net.onnx"),
    ],
)
def test_what_can_be_wrong(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from nnstretch.bench.comparison import compare as comparison

    monkeypatch.setattr(comparison, "find_spec", dict[str, None]().get)
    assert main(["bench", "resnet18", "--against", "ort,ncnn"]) == 2
    assert "nnstretch[bench]" in capfd.readouterr()[1]
