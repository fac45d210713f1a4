"""What libraries print by themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def dropped_stderr() -> Iterator[None]:
    """Drops what native code of this process writes to the standard error in a block, for libraries that log without a switch.

    Other threads' lines are dropped, too, so blocks are short.
    """
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
