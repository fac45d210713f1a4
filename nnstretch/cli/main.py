"""`nnstretch`: the entry of the command line. It loads the rest, which takes a while, where an interrupt is expected."""

from __future__ import annotations

import sys

from nnstretch.cli.statuses import INTERRUPTED

TYPE_CHECKING = False  # that of `typing`, whose import is saved
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    0: success; 1: success, but the answer is no (`run --check`) or the reader closed the pipe; 2: an error that the caller
    can fix, in one line on the standard error; 130: interrupted; 128 and the number of the signal that stopped work which can
    resume. Any other exception is a bug and shows its traceback. A driver whose crash ends the process is named.

    Args:
        arguments: name and arguments of the command; None: those of the process.
    """
    interrupts: list[int] = []
    try:
        from nnstretch.support.interrupts import noticed_interrupts

        with noticed_interrupts() as interrupts:
            from nnstretch.cli.application import run_command
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except Exception:
        if not interrupts:
            raise
        return _interrupted()


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
