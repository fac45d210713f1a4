"""A target whose processors are measured: `nnstretch tune --target`, `nnstretch stretch --target`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter
from nnstretch.compiler.targets.opened import OpenTarget, open_target_processors


@contextmanager
def opened_target(report: Reporter, options: CompileOptions, *, clusters: bool = False) -> Iterator[OpenTarget]:
    """The target of some options within the block, with progress while it is prepared.

    Args and errors are those of `open_target_processors`.
    """
    with ExitStack() as stack:
        with report.progress("Preparing") as advance:
            target = stack.enter_context(open_target_processors(options, clusters=clusters, progress=advance))
        yield target
