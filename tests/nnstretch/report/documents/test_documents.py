"""`nnstretch report` of every kind of file, in every form."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial

import nnstretch as nns
from nnstretch.cli.main import main
from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.report.documents.document import Document, Section, Table, cell_text
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.writers import ENDINGS, html, write


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind."""
    folder = tmp_path_factory.mktemp("made")
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 8, 12, 12] x) => (float[1, 8, 1, 1] z) { y = Relu (x) z = GlobalAveragePool (y) }
    """)
    onnx.save(model, folder / "net.onnx")
    with nns.compile(folder / "net.onnx", tune=False) as session:
        session.save(folder / "net.nns")
    assert main(["tune", str(folder / "net.onnx"), "-o", str(folder / "plan.json")]) == 0
    study(folder / "study.log", ["latency (ms)", "accuracy (%)"])
    run = folder / "w.run"
    run.mkdir()
    (run / "recipe.yaml").write_text("lr: 0.1\nopt: sgd\n")
    log = [
        {"step": 10 * i, "epoch": 1, "loss": 2.0 / i, "lr": 0.1, "images_per_second": 100.0, "seconds": i}
        for i in (1, 2)
    ]
    log[1] |= {"top1": 75.5}
    (run / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    (run / "result.json").write_text(json.dumps({"history": [{"epoch": 1, "loss": 1.5, "validation_top1": 75.5}]}))
    return folder


def study(path: Path, names: list[str], trials: int = 12) -> None:
    """A study of made-up designs in a journal."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(path)))
    kinds = optuna.study.StudyDirection
    directions = [kinds.MINIMIZE, kinds.MAXIMIZE, kinds.MINIMIZE][: len(names)]
    sampler = optuna.samplers.RandomSampler(seed=0)
    made = optuna.create_study(study_name="designs", storage=storage, directions=directions, sampler=sampler)
    for key, name in enumerate(names):
        made.set_user_attr(f"objective {key}", name)

    def objective(trial: Trial) -> tuple[float, ...]:
        depth, merge = trial.suggest_int("depth", 1, 8), trial.suggest_categorical("merge", ["add", "concat"])
        trial.set_user_attr("fidelity", "measured")
        trial.set_constraint("depth", depth - 7)
        if trial.number == 3:
            raise optuna.TrialPruned
        return (depth + (merge == "add"), 70.0 + depth, 5.0 * depth)[: len(names)]

    made.optimize(objective, n_trials=trials)


SOURCES = ("net.nns", "plan.json", "study.log", "w.run")


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_in_every_form(made: Path, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / f"report{ending}" for ending in ENDINGS]
    assert main(["report", str(made / source), *(f"-o{path}" for path in outputs)]) == 0
    assert all(path.exists() or list(tmp_path.glob("report-*.csv")) for path in outputs)
    page = (tmp_path / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "report.md").read_text()
    assert all((tmp_path / name.partition(")")[0]).is_file() for name in text.split("](")[1:])
    capsys.readouterr()
    assert main(["report", str(made / source), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["title"].split()[-1] in text
    assert main(["report", str(made / source)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in answer["figures"])


def test_a_study(made: Path, tmp_path: Path) -> None:
    document = read_document(str(made / "study.log"))
    assert document.figures["complete trials"] == 11
    assert document.figures["pruned trials"] == 1
    (trials,) = (section.table for section in document.sections if section.filters)
    assert trials is not None
    rows = [dict(zip(trials.titles, row, strict=True)) for row in trials.rows]
    feasible = [row for row in rows if row["feasible"] == "yes"]
    assert {row["feasible"] == "yes" for row in rows} == {True, False}
    objectives = [(row["objective 0"], -float(str(row["objective 1"]))) for row in feasible]
    best = {
        row["trial"]
        for row, mine in zip(feasible, objectives, strict=True)
        if not any(other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in objectives)  # type: ignore[operator]
    }
    assert {rows[number]["trial"] for number in trials.marked} == best
    (file,) = write(document, tmp_path / "trials.csv")
    with file.open() as lines:
        assert len(list(csv.reader(lines))) == 12


@pytest.mark.parametrize("names", [["latency"], ["latency", "accuracy", "memory"]], ids=len)
def test_studies_of_one_and_three_objectives(names: list[str], tmp_path: Path) -> None:
    study(tmp_path / "s.log", names, 6)
    titles = [section.title for section in read_document(str(tmp_path / "s.log")).sections]
    assert len([title for title in titles if " against " in title]) == (3 if len(names) == 3 else 0)
    assert ("Best so far" in titles) == (len(names) == 1)


def test_studies_without_a_complete_trial_and_several(tmp_path: Path) -> None:
    path = str(tmp_path / "s.log")
    storage = JournalStorage(JournalFileBackend(path))
    optuna.create_study(study_name="a", storage=storage)
    assert read_document(path).sections == ()
    optuna.create_study(study_name="b", storage=storage)
    with pytest.raises(UsageError, match=r"several studies \(a, b\)"):
        read_document(path)
    assert read_document(path, "b").title == "Study b"
    with pytest.raises(UsageError, match="no study c"):
        read_document(path, "c")


def test_a_package_says_what_its_steps_are(made: Path) -> None:
    document = read_document(str(made / "net.nns"))
    steps = document.sections[-1].table
    assert steps is not None
    assert len(steps.rows) == document.figures["steps"]
    assert document.figures["MB of weights"] == 0


def test_a_training(made: Path) -> None:
    document = read_document(str(made / "w.run"))
    assert document.figures["best top-1 (%)"] == 75.5
    assert document.figures["last loss"] == 1.0
    assert document.facts["lr"] == "0.1"
    assert "finished" in document.lead


def test_several_files_are_compared(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "w.run", tmp_path / "w.run")
    log = tmp_path / "w.run" / "log.jsonl"
    log.write_text(log.read_text().replace("75.5", "77.01"))
    assert main(["report", str(made / "w.run"), str(tmp_path / "w.run"), "--json"]) == 0
    side_by_side = json.loads(capsys.readouterr().out)["tables"][0]
    rows = {row[0]: row[1:] for row in side_by_side["rows"]}
    assert rows["best top-1 (%)"] == [75.5, 77.01, pytest.approx(1.02)]
    assert side_by_side["columns"][1:3] == [str(made / "w.run"), str(tmp_path / "w.run")]


REFUSED: dict[str, Callable[[Path], object]] = {
    "there is no": lambda _: None,
    "folder, but not that of a training": lambda path: path.mkdir(),
    "cannot read": lambda path: path.write_text("{"),
    "no JSON object": lambda path: path.write_text("[1]"),
    "not a plan, and not the answer": lambda path: path.write_text('{"a": 1}'),
    "is incomplete": lambda path: path.write_text('{"tuning_s": 1}'),
    "tune the model again": lambda path: path.write_text('{"subgraphs": 1}'),
    "not a whole nnstretch package": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(200)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_other_files_are_refused_in_one_line(said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.nns" if "package" in said else tmp_path / "x.json"
    REFUSED[said](path)
    assert main(["report", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_damaged_runs_and_storages(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "w.run", tmp_path / "run")
    for content, said in (
        ("", "no log of a training yet"),
        ("{", "not the run folder"),
        ("3\n", "no log of a training"),
        ('{"loss": 1.0}\n', "no log of a training"),
    ):
        (tmp_path / "run" / "log.jsonl").write_text(content)
        with pytest.raises(FileError, match=said):
            read_document(str(tmp_path / "run"))
    with pytest.raises(NNStretchError, match="cannot read the studies of nowhere://host/base") as caught:
        read_document("nowhere://me:secret@host/base")
    assert "secret" not in str(caught.value)


def test_values_are_escaped() -> None:
    table = Table(["<b>", "n"], [["<script>", None]])
    document = Document("a <title>", "", {"<i>": "<u>"}, [Section("<s>", table=table)], {"<f>": "<g>"})
    page = html(document)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.000123456, "0.0001235"), (12345.6, "12,346"), (1234, "1,234")]
)
def test_numbers(value: float | None, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_filters_in_a_browser(made: Path, tmp_path: Path) -> None:
    document = read_document(str(made / "study.log"))
    (trials,) = (section.table for section in document.sections if section.filters)
    assert trials is not None
    column = list(trials.titles).index("depth")
    kept = [row for row in trials.rows if 3 <= float(str(row[column])) <= 5]
    assert 0 < len(kept) < len(trials.rows)
    typed = f"""<script>
    const input = document.querySelector('input[data-column="{column}"]');
    input.value = "3..5"; input.dispatchEvent(new Event("input", {{bubbles: true}}));
    const shown = (list) => [...list].filter((one) => one.checkVisibility()).length;
    const count = (selector) => shown(document.querySelectorAll(selector));
    document.title = count(".filters + div tbody tr") + " rows, " + count("circle[data-row]") + " dots";
    </script>"""
    page = tmp_path / "page.html"
    page.write_text(html(document).replace("</body>", f"{typed}</body>"))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [*browser, f"--screenshot={tmp_path / 'shot.png'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"<title>{len(kept)} rows, {len(kept)} dots</title>" in done.stdout
