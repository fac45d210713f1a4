"""Which document a path stands for."""

from __future__ import annotations

from pathlib import Path

from nnstretch.errors import FileError, UsageError
from nnstretch.package.format import is_package
from nnstretch.report.documents.answers import load_json, read_answer
from nnstretch.report.documents.document import Document
from nnstretch.report.documents.plan import read_package_file, read_plan_file
from nnstretch.report.documents.study.document import read_study
from nnstretch.report.documents.study.journal import is_journal
from nnstretch.report.documents.training_run import is_training_run, read_training_run

JOB_ANSWER = "answer.json"
"""Name of the file in the folder of a job that has its answer."""


def read_document(source: str, study: str | None = None) -> Document:
    """The document of a package, plan, run folder, answer of a command, folder of a job, or study.

    Args:
        source: a path, or the URL of a storage of studies.
        study: name of the study, where a storage has several.

    Raises:
        NNStretchError: there is no such file, or it is none of these.
    """
    path = Path(source)
    if "://" in source:
        return read_study(source, study)
    if not path.exists():
        raise FileError(f"there is no {source}; name a package, a plan, a run folder, an answer (.json) or a study")
    if is_training_run(path):
        return read_training_run(path)
    if (path / "index.html").is_file():
        raise UsageError(f"{source} has a page already: open {path / 'index.html'} in a browser")
    if (path / JOB_ANSWER).is_file():
        path /= JOB_ANSWER
    if path.is_dir():
        raise UsageError(
            f"{source} is a folder, but not that of a training (it has no log.jsonl) nor of a finished job (it has no "
            f"{JOB_ANSWER})"
        )
    if is_package(path):
        return read_package_file(path)
    if is_journal(path):
        return read_study(source, study)
    answer = load_json(path)
    return read_plan_file(path) if "subgraphs" in answer else read_answer(path, answer)
