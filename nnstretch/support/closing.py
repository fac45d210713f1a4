"""What holds memory, files or processes until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Closed at the end of a `with` statement, whatever happens in it; closing twice does nothing more."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def closed_on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if the block fails, also by an interrupt: in it something is prepared that nobody else knows yet."""
    with ExitStack() as stack:
        stack.callback(close)
        yield
        stack.pop_all()
