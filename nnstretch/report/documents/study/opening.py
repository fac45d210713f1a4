"""Finds a study in a storage."""

from __future__ import annotations

from pathlib import Path

from nnstretch.errors import FileError, NNStretchError, UsageError, first_line
from nnstretch.report.documents.study.journal import read_journal
from nnstretch.report.documents.study.records import StudyRecord, record_of
from nnstretch.sweeps.workers.storage import is_url, open_storage, shown

_SQLITE = "sqlite:///"


def open_study(storage: str, name: str | None) -> StudyRecord:
    """The study of a storage.

    Args:
        storage: a journal file, or a URL of a database or of Optuna's proxy.
        name: of the study; None if the storage has one only.

    Raises:
        FileError: the storage cannot be read.
        UsageError: there is no such study, or several and no name.
        MissingExtraError: a library for this storage is not installed.
    """
    return _of_url(storage, name) if is_url(storage) else _of_journal(storage, name)


def _of_journal(storage: str, name: str | None) -> StudyRecord:
    studies = {study.name: study for study in read_journal(Path(storage))}
    return studies[_chosen(storage, list(studies), name)]


def _of_url(storage: str, name: str | None) -> StudyRecord:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if storage.startswith(_SQLITE) and not Path(storage.removeprefix(_SQLITE).partition("?")[0]).exists():
        raise FileError(f"there is no database {storage}; check its path")  # SQLite would make an empty one
    try:
        opened = open_storage(storage)
        chosen = _chosen(storage, [found.study_name for found in opened.get_all_studies()], name)
        return record_of(optuna.load_study(study_name=chosen, storage=opened))
    except NNStretchError:
        raise
    except Exception as error:  # whatever a database's driver raises
        raise FileError(f"cannot read the studies of {shown(storage)}: {first_line(error)}") from error


def _chosen(storage: str, names: list[str], name: str | None) -> str:
    if name is None and len(names) > 1:
        raise UsageError(f"{shown(storage)} has several studies ({', '.join(names)}); name one with --study")
    wanted = names[0] if name is None and names else name
    if wanted is None or wanted not in names:
        raise UsageError(f"{shown(storage)} has no study {wanted or ''} (it has: {', '.join(names) or 'none'})")
    return wanted
