"""Reports of Optuna's studies: what is read, what is shown, and how large it may become."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from nnstretch.errors import FileError, UsageError
from nnstretch.report.documents.document import Document, Section, Table
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.study.importance import importances
from nnstretch.report.documents.study.journal import read_journal
from nnstretch.report.documents.study.records import record_of
from nnstretch.report.documents.writers import html, write
from nnstretch.sweeps.study import ABOUT, DESIGN
from nnstretch.sweeps.workers.storage import open_storage
from tests.kits.command_line import Cli
from tests.kits.made_up_study import journal_study, large_study, small_study


def section(document: Document, title: str) -> Section:
    (found,) = (one for one in document.sections if one.title == title)
    return found


def table(document: Document, title: str) -> Table:
    found = section(document, title).table
    assert found is not None
    return found


def test_fronts_trials_and_figures(tmp_path: Path) -> None:
    small_study(tmp_path / "s.log", 2)
    document = read_document(str(tmp_path / "s.log"))
    assert document.figures["complete trials"] == 11
    assert document.figures["pruned trials"] == 1
    trials = table(document, "Trials")
    rows = [dict(zip(trials.titles, row, strict=True)) for row in trials.rows]
    feasible = [row for row in rows if row["feasible"] == "yes"]
    assert {row["feasible"] == "yes" for row in rows} == {True, False}
    objectives = [(float(str(row["objective 0"])), -float(str(row["objective 1"]))) for row in feasible]
    best = {
        row["trial"]
        for row, mine in zip(feasible, objectives, strict=True)
        if not any(other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in objectives)
    }
    assert {rows[number]["trial"] for number in trials.marked} == best
    files = write(document, tmp_path / "s.csv")
    with next(file for file in files if "trials" in file.name).open() as lines:
        assert len(list(csv.reader(lines))) == 12


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_sections_by_number_of_objectives(objectives: int, tmp_path: Path) -> None:
    small_study(tmp_path / "s.log", objectives, 30)
    titles = [section.title for section in read_document(str(tmp_path / "s.log")).sections]
    assert len([title for title in titles if " against " in title]) == (0, 1, 3, 3)[objectives - 1]
    assert ("Best so far" in titles) == (objectives == 1)
    assert ("Hypervolume" in titles) == (objectives > 1)
    assert titles[-2:] == ["Importance of parameters", "Parameters and values together"]


def test_trials_without_finite_or_feasible_values(tmp_path: Path) -> None:
    study = journal_study(tmp_path / "s.log", 2)
    study.add_trial(optuna.trial.create_trial(values=[float("inf"), 1.0]))
    document = read_document(str(tmp_path / "s.log"))
    assert "1 more have an infinite value" in document.lead
    assert not document.sections
    study.add_trial(optuna.trial.create_trial(values=[1.0, 2.0], constraints={"alpha": 1.0}))
    document = read_document(str(tmp_path / "s.log"))
    assert document.figures["best objective 0"] is None
    assert [section.title for section in document.sections] == ["objective 0 against objective 1", "Trials"]
    assert html(document)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_design_that_several_trials_tried_counts_once(tmp_path: Path, is_ours: bool) -> None:
    made = journal_study(tmp_path / "s.log", 2)
    if is_ours:
        made.set_user_attr(ABOUT, {"model": "net.py:small"})
    latency_first = [(1.0, 70.0), (1.0, 70.0), (2.0, 80.0), (1.5, 75.0), (3.0, 75.0)]
    designs, dtypes = "aabbc", ("float32", "float32", "float32", "int8", "float32")
    for dtype in dtypes:
        made.enqueue_trial({"dtype": dtype})

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        trial.suggest_categorical("dtype", ["float32", "int8"])
        trial.set_user_attr(DESIGN, designs[trial.number])
        return latency_first[trial.number]

    made.optimize(objective, n_trials=len(designs))
    figures = read_document(str(tmp_path / "s.log")).figures
    assert figures.get("designs on the front") == (3 if is_ours else None)
    assert figures.get("trials on the front") == (None if is_ours else 4)


def test_attributes_of_others_have_the_names_of_ours(tmp_path: Path) -> None:
    study = journal_study(tmp_path / "s.log", 1)
    for name in ("environment", "nnstretch", "environment.a"):
        study.set_user_attr(name, "lab")
    names = ("values.predicted", "lease", "environment", "error", "given up", "design")
    study.add_trial(optuna.trial.create_trial(values=[1.0], user_attrs=dict.fromkeys(names, 3)))
    study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
    document = read_document(str(tmp_path / "s.log"))
    assert document.facts["environment"] == document.facts["nnstretch"] == document.facts["environment.a"] == "lab"
    assert [section.title for section in document.sections] == ["Trials", "Best so far", "Failed trials"]
    assert table(document, "Failed trials").rows == [("no reason is noted", 1)]


def test_no_study_and_several(tmp_path: Path) -> None:
    path = str(tmp_path / "s.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))
    optuna.create_study(study_name="a", storage=storage)
    assert read_document(path).sections == []
    optuna.create_study(study_name="b", storage=storage)
    with pytest.raises(UsageError, match=r"several studies \(a, b\)"):
        read_document(path)
    assert read_document(path, "b").title == "Study b"
    with pytest.raises(UsageError, match="no study c"):
        read_document(path, "c")
    optuna.delete_study(study_name="a", storage=storage)
    assert read_document(path).title == "Study b"


def test_a_journal_is_read_as_optuna_reads_it(tmp_path: Path) -> None:
    study = small_study(tmp_path / "s.log", 2)
    study.set_user_attr("about", {"model": "m"})
    study.enqueue_trial({"depth": 3})
    asked = study.ask()
    asked.suggest_int("depth", 1, 8)
    study.add_trial(optuna.trial.create_trial(values=[1.0, 2.0], params={}, distributions={}))
    study.tell(asked, state=TrialState.FAIL)
    study._storage.set_trial_user_attr(study.ask()._trial_id, "note", [1])
    (mine,) = read_journal(tmp_path / "s.log")
    theirs = record_of(optuna.load_study(study_name="designs", storage=study._storage))
    for one in (mine, theirs):
        for trial in one.trials:
            trial.values = tuple(trial.values)
    assert mine == theirs


def test_databases_are_read_and_never_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with pytest.raises(FileError, match="there is no database"):
        read_document(url)
    assert not list(tmp_path.iterdir())
    made = small_study(tmp_path / "s.log", 2)
    optuna.copy_study(from_study_name="designs", from_storage=made._storage, to_storage=url)
    mine, theirs = read_document(str(tmp_path / "s.log")), read_document(url)
    assert mine.figures == theirs.figures
    assert table(mine, "Trials") == table(theirs, "Trials")
    assert table(mine, "Importance of parameters") == table(theirs, "Importance of parameters")
    with pytest.raises(UsageError, match=r"^the storage foo://x is not understood"):
        read_document("foo://x")


def test_damaged_journals_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    small_study(path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"wor')  # a write under way
    assert read_document(str(path)).figures["complete trials"] == 2
    path.write_bytes(whole + b'{"op_code":4,"wor\n' + whole)
    with pytest.raises(FileError, match=rf"damaged in line {len(whole.splitlines()) + 1}"):
        read_document(str(path))
    for record in ({"op_code": 99}, {"op_code": 5, "trial_id": 99}, {"op_code": 4}):
        path.write_bytes(whole + json.dumps(record).encode() + b"\n")
        with pytest.raises(FileError, match="not understood"):
            read_document(str(path))


def test_importances_are_those_of_optuna(tmp_path: Path) -> None:
    study = small_study(tmp_path / "s.log", 2, 60)
    (record,) = read_journal(tmp_path / "s.log")
    trials = [trial for trial in record.trials if trial.is_complete]
    found = importances(trials, {"first": [trial.values[0] for trial in trials]})["first"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = PedAnovaImportanceEvaluator()
        expected = get_param_importances(study, evaluator=evaluator, target=lambda trial: trial.values[0])
    assert set(found) == {"depth", "merge", "width"}
    assert found == pytest.approx(expected)
    assert importances(trials[:1], {"first": [1.0]}) == {}
    assert importances(trials[:5], {"first": [1.0] * 5}) == {}


@pytest.mark.slow
def test_a_page_of_five_thousand_trials_is_small(tmp_path: Path) -> None:
    large_study(tmp_path / "s.log", 5000, 53)
    document = read_document(str(tmp_path / "s.log"))
    page = html(document)
    assert len(page.encode()) < 5e6
    assert len(table(document, "Trials").rows) == 5000
    data = page.partition('<script type="application/json">')[2].partition("</script>")[0]
    columns = json.loads(data)["columns"]
    assert len(columns) > 56
    assert {len(column) for column in columns} == {5000}
    assert columns[1][0] == pytest.approx(table(document, "Trials").rows[0][1], rel=1e-4)
    parallel = section(document, "Parameters and values together").panel
    assert parallel is not None
    assert len([part for part in parallel[1] if "<polyline" in part]) <= 400
    (workers,) = (one.panel for one in document.sections if one.title == "Workers")
    assert workers is not None
    assert sum(map(len, workers[1])) < 1e6


NETWORK = """
import torch
from torch import nn

def tiny():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval(), torch.randn(1, 1, 16, 16)
"""


def test_a_sweep_of_designs(folder: Path, cli: Cli) -> None:
    Path("net.py").write_text(NETWORK)
    limits = ("--alpha", "1e4", "--beta", "1e4", "--min-macs", "0.01", "--max-segment", "1")
    wanted = (
        "--objectives",
        "latency,accuracy",
        "--data",
        "digits",
        "--reduction",
        "2",
        "-n",
        "6",
        "--warm-start",
        "2",
    )
    status, _, error = cli(
        "sweep", "designs", "net.py:tiny", "-p", "sim:phone/cpu,sim:phone/gpu", *limits, *wanted, "--seed", "2"
    )
    assert status == 0, error
    before = read_document("sweep.journal")
    study = optuna.load_study(study_name=None, storage=open_storage("sweep.journal"))
    trials = study.get_trials(deepcopy=False)
    lost = study.ask()
    attrs = {
        "lease": {"worker": "other/boot/pid:5:6", "beat": 2},
        "given up": "lost",
        "values.predicted": {"latency": 1.0},
    }
    for name, value in attrs.items():
        lost.set_user_attr(name, value)
    study.tell(lost, state=TrialState.FAIL)
    document = read_document("sweep.journal")

    assert document.figures == before.figures  # what was given up is in no figure
    assert "failed trials" not in document.figures
    assert "1 others do not count" in document.lead
    assert document.figures["best latency (ms)"] == min(trial.values[0] for trial in trials if trial.values)
    assert section(document, "latency (ms) against accuracy (%)").panel is not None
    assert table(document, "Trials").titles[:3] == ["trial", "latency (ms)", "accuracy (%)"]
    rungs = table(document, "Fidelities")
    assert rungs.titles == ["fidelity", "trials", "promoted", "pruned", "beyond a limit"]
    complete = sum(trial.state.name == "COMPLETE" for trial in trials)
    assert 0 < complete < 6
    assert [list(row) for row in rungs.rows] == [
        ["predicted", 6, complete, 6 - complete, 0],
        ["distilled", complete, 0, 0, 0],
    ]
    promoted = table(document, "Promotions")
    assert promoted.titles[-3:] == ["latency, predicted", "latency, distilled", "accuracy, distilled"]
    by_number = {trial.number: trial for trial in trials}
    assert len(promoted.rows) == complete
    for row in promoted.rows:
        assert [row[-2], row[-1]] == by_number[int(str(row[1]))].values
    assert section(document, "Importance of parameters").panel is not None
    assert section(document, "Parameters and values together").panel is not None
    rows = {str(row[0]): row[1:6] for row in table(document, "Workers").rows}
    assert rows.pop("other 5") == (1, 0, 0, 0, 1)
    assert list(rows.values()) == [(6, complete, 6 - complete, 0, 0)]
    assert document.facts["nnstretch"]
    assert document.facts["objectives"] == "latency, accuracy"
    assert document.facts["data"] == "digits"
    assert any(name.startswith("environment ") and name.endswith("6 trials") for name in document.facts)
    page = html(document)
    assert np.all([f"<h2>{title}</h2>" in page for title in ("Fidelities", "Promotions", "Workers")])
