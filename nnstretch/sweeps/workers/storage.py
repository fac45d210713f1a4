"""Storages of studies: a journal file, or a database by URL."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nnstretch.errors import FileError, MissingExtraError, UsageError
from nnstretch.support.locks import locked
from nnstretch.support.settings import NO_ROOM

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileBackend

_OUTAGES_OF_PROXIES = frozenset({"ABORTED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"})
"""Names of gRPC's status codes."""
_ATTEMPTS = 3  # at a database whose tables another process may be making
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")


class OutageError(FileError):
    """A storage does not answer any more."""


def is_url(text: str) -> bool:
    """Whether a storage is a database or server rather than a journal file."""
    return "://" in text


def shown(text: str) -> str:
    """A storage as messages show it, without its password."""
    return _PASSWORD.sub("***", text)


_PACKAGES = {"psycopg": "'nnstretch[sweep]'", "MySQLdb": "mysqlclient"}
"""Drivers of databases whose packages have other names -> what to install."""


def open_storage(text: str, *, workers: int = 1) -> BaseStorage:
    """The storage that `text` names; it is created if there is none.

    Args:
        text: a file for a journal, a URL of a database as SQLAlchemy writes it, or `grpc://HOST:PORT` of Optuna's proxy.
        workers: processes that will write to it.

    Raises:
        FileError: it cannot be reached, read or written, or is of another version.
        MissingExtraError: the library for this kind of database is not installed.
        UsageError: it cannot have several writers, or is not understood.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not is_url(text):
        return _journal(Path(text))
    if text.startswith("grpc://"):
        return _proxy(text)
    if text.startswith("sqlite") and workers > 1:
        raise UsageError(
            f"the storage {text}: SQLite is not for several writers; give a journal file, or a URL of PostgreSQL or MySQL"
        )
    return _database(text)


def _journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage

    try:
        if path.exists():
            _check_records(path)
        return JournalStorage(_journal_backend(path))
    except OSError as error:
        raise FileError(
            f"cannot open the journal {path}: {error.strerror}; choose another file with `storage`"
        ) from error
    except (ValueError, KeyError, AssertionError, AttributeError, TypeError) as error:
        raise FileError(
            f"{path} is no journal of a study, or is damaged; choose another file with `storage`"
        ) from error


def _check_records(path: Path) -> None:
    """Looks at the first and the last whole record of a journal: Optuna takes an unreadable last one for a write under way.

    Raises:
        ValueError, KeyError, TypeError: one is no record.
    """
    if not (path.is_file() or path.is_dir()):  # of a device, what is read may never end
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        records = [line for line in (file.readline(), _last_line(file)) if line.endswith(b"\n")]
    for record in records:
        json.loads(record)["op_code"]


def _last_line(file: IO[bytes]) -> bytes:
    """The last whole line of a file, or an empty one."""
    size = file.seek(0, os.SEEK_END)
    length = 4096
    while True:
        file.seek(max(0, size - length))
        whole = file.read(length)[:size].rpartition(b"\n")[0]
        if b"\n" in whole or length >= size:
            return whole.rpartition(b"\n")[2] + b"\n" if whole else b""
        length *= 2


def _journal_backend(path: Path) -> JournalFileBackend:
    """A journal that survives killed writers.

    The lock is the kernel's (flock), which releases it when its holder ends: no lock is ever stale. A killed writer or a
    full disk may leave the begin of a record at the end of the file. It is cut off before the next record, which would be
    unreadable.
    """
    from optuna.storages.journal import JournalFileBackend

    class RepairedJournal(JournalFileBackend):
        """Appends under a lock of the kernel, behind the last whole record."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            records = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
            try:
                with path.with_name(f"{path.name}.lock").open("ab") as lock, locked(lock):
                    remove_torn_record(path)
                    with path.open("ab") as file:
                        file.write(records.encode())
                        file.flush()
                        if any(
                            "state" in log for log in logs
                        ):  # a power failure may cost heartbeats, not finished trials
                            os.fsync(file.fileno())
            except OSError as error:
                advice = "free some space and resume" if error.errno in NO_ROOM else "mend that and resume"
                raise FileError(f"cannot write the journal {path}: {error.strerror}; {advice}") from error

    return RepairedJournal(str(path))


def remove_torn_record(path: Path) -> None:
    """Cuts a journal off after its last whole line. Its lock must be held."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        end, block = size, 4096
        while end > 0:
            begin = max(0, end - block)
            file.seek(begin)
            place = file.read(end - begin).rfind(b"\n")
            if place >= 0:
                end = begin + place + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def _database(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

    engine = {"pool_pre_ping": True} | ({} if url.startswith("sqlite") else {"pool_recycle": 300})
    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=engine)
        except (IntegrityError, ProgrammingError) as error:  # another process makes the same tables
            if attempt + 1 == _ATTEMPTS:
                raise FileError(f"cannot use the storage {shown(url)}: {_reason(error)}") from error
            time.sleep(1.0)
        except ImportError as error:
            name = error.name or getattr(error.__context__, "name", None) or "its driver"
            advice = f"pip install {_PACKAGES.get(name, name)}"
            raise MissingExtraError(
                f"the storage {shown(url)} needs {name}, which is not installed; {advice}"
            ) from error
        except ArgumentError as error:
            raise UsageError(f"the storage {shown(url)} is not understood: {_reason(error)}") from error
        except SQLAlchemyError as error:
            raise FileError(
                f"cannot reach the storage {shown(url)}: {_reason(error)}; check the server and the URL"
            ) from error
        except RuntimeError as error:  # Optuna's check of the tables' version
            raise FileError(
                f"the storage {shown(url)} is of another version of Optuna; run `optuna storage upgrade --storage URL` with "
                "this one, or choose another `storage`"
            ) from error
        except ValueError as error:
            raise UsageError(f"the storage {shown(url)} is not understood: {_reason(error)}") from error
    raise AssertionError("unreachable")


def _reason(error: Exception) -> str:
    """The first line of an error of a database or driver."""
    original = getattr(error, "orig", None) or error
    lines = [line.strip() for line in str(original).splitlines() if line.strip()]
    return shown(lines[0].rstrip(".") if lines else type(original).__name__)


def _proxy(url: str) -> BaseStorage:
    from optuna.storages import GrpcStorageProxy

    host, _, port = url.removeprefix("grpc://").rstrip("/").partition(":")
    if not host or not port.isdigit():
        raise UsageError(f"the storage {url} is not understood; write grpc://HOST:PORT")
    try:
        proxy: BaseStorage = GrpcStorageProxy(host=host, port=int(port))
    except ImportError as error:
        raise MissingExtraError(
            f"the storage {url} needs grpcio, which is not installed; pip install 'nnstretch[grpc]'"
        ) from error
    try:
        proxy.get_all_studies()
    except Exception as error:
        if type(error).__module__.startswith("grpc"):
            raise FileError(f"cannot reach the storage {url}; check the server and the URL") from error
        raise
    return proxy


def is_outage(error: BaseException) -> bool:
    """Whether a storage failed, rather than what was asked of it: another attempt may succeed.

    Behind a proxy, the failure of its database is an error of status UNKNOWN.
    """
    if type(error).__module__.startswith("grpc") and callable(code := getattr(error, "code", None)):
        return code().name in _OUTAGES_OF_PROXIES
    with suppress(ImportError):
        from sqlalchemy.exc import DBAPIError

        if isinstance(error, DBAPIError) or isinstance(error.__cause__, DBAPIError):
            return True
    return isinstance(error, OSError) and error.errno in {errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
