"""Sessions for what a command line names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.console import Progress

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.scheduler.session import Session


def compile_session(
    model: str,
    shapes: dict[str, tuple[int, ...]],
    weights: Path | None,
    design: Path | None,
    processors: str,
    threads: int | None,
    *,
    tune: bool,
    progress: Progress,
) -> Session:
    """A session for MODEL; a package runs as it was compiled.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    from nnstretch.cli.networks import is_package_name, load_source
    from nnstretch.compiler import build_processors, compile_model
    from nnstretch.scheduler.session import Session

    if is_package_name(model):
        return Session.load(model)
    graph = load_source(model, shapes, weights, design)
    return compile_model(graph, build_processors(processors, threads), tune=tune, progress=progress)


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file; objects are refused.

    Raises:
        FileError: it cannot be read or is no .npy file.
    """
    import numpy as np

    from nnstretch.errors import FileError

    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise FileError(f"{path} is not a .npy file with numbers; write it with numpy.save") from error
    if not isinstance(loaded, np.ndarray):
        raise FileError(f"{path} holds several arrays; give one .npy file per input")
    return loaded
