"""MODEL with all that a command line says about it, and the graph or session that it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import FileError, UsageError
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
    from nnstretch.scheduler.runtime.base_session import Session
    from nnstretch.scheduler.runtime.session import PlanSession
    from nnstretch.scheduler.runtime.streams.session import StreamSession


@dataclass(frozen=True)
class Source:
    """A model as the user named it.

    Attributes:
        model: an ONNX file, a package, a zoo name or `module.py:factory`.
        shapes: of inputs with dynamic dimensions, by name.
        weights, design: of a network that torch builds.
        batch: images per run; None: as the model has it.
    """

    model: str
    shapes: Mapping[str, tuple[int, ...]]
    weights: Path | None = None
    design: Path | None = None
    batch: int | None = None

    @property
    def is_package(self) -> bool:
        """Whether the model is meant as a package."""
        from nnstretch.package.format import is_package

        path = Path(self.model)
        return path.suffix == ".nns" or (path.is_file() and is_package(path))

    def to_json(self) -> dict[str, Any]:
        """What a package remembers of where it came from."""
        return {
            "model": self.model,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "weights": str(self.weights) if self.weights else None,
            "design": str(self.design) if self.design else None,
            "batch": self.batch,
        }

    def load(self) -> ir.Model:
        """The graph, not fused.

        Raises:
            NNStretchError: it is a package, is not found, or cannot be read or exported.
        """
        if self.is_package:
            raise UsageError(f"{self.model} is a package; give the model that it was made from")
        if self.weights is None and self.design is None:
            from nnstretch.compiler.loading import load_any

            return load_any(self.model, None, dict(self.shapes), self.batch)
        if self.shapes:
            raise UsageError("--shape does not go with --weights or --design, which say for which images they are")
        from nnstretch.cli.networks import Options, build_network

        return build_network(self.model, Options(), self.weights, self.design).with_batch(self.batch).export()

    def compile(
        self,
        processors: str | None,
        threads: int | None,
        *,
        tune: bool,
        engines: Sequence[str] = (),
        progress: Progress,
    ) -> PlanSession:
        """A session; a package runs as it was compiled.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.compiler.compile import compile_model
        from nnstretch.compiler.processors import build_processors
        from nnstretch.scheduler.runtime.session import PlanSession

        if self.is_package:
            self.check_package(processors, threads)
            return PlanSession.load(self.model)
        usable = build_processors(processors or "cpu", threads, engines)
        return compile_model(self.load(), usable, tune=tune, progress=progress)

    def compile_streams(
        self, streams: int, processors: str | None, threads: int | None, *, tune: bool, progress: Progress
    ) -> StreamSession:
        """A session that has several inputs on their way; a package's plan runs as it was compiled.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.compiler.processors import build_processors
        from nnstretch.compiler.streams import arrangements, load_streams
        from nnstretch.scheduler.runtime.streams.session import StreamSession

        if self.is_package:
            self.check_package(processors, threads)
            return load_streams(self.model, streams)
        usable = build_processors(processors or "cpu", threads)
        return StreamSession.fastest(arrangements(self.load(), usable, streams, tune=tune, progress=progress))

    def compile_plans(
        self,
        plans: Sequence[str],
        threads: int | None,
        policy: str | None,
        *,
        tune: bool,
        engines: Sequence[str] = (),
        progress: Progress,
    ) -> AdaptiveSession:
        """A session with plans for several lists of processors.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.compiler.several_plans import compile_plans

        return compile_plans(
            self.load(),
            plans,
            policy=policy or "adaptive",
            threads=threads,
            engines=engines,
            tune=tune,
            progress=progress,
        )

    def open(
        self, processors: str | None, threads: int | None, policy: str | None, *, tune: bool, progress: Progress
    ) -> Session:
        """A session to run; one that changes between plans if a policy is named or a package has several plans.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        from nnstretch.package import read_package
        from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

        if not self.is_package:
            if policy is None:
                return self.compile(processors, threads, tune=tune, progress=progress)
            return self.compile_plans([processors or "cpu"], threads, policy, tune=tune, progress=progress)
        self.check_package(processors, threads)
        if policy is None and len(read_package(Path(self.model)).plans) == 1:
            return self.compile(None, None, tune=tune, progress=progress)
        return AdaptiveSession.load(self.model, policy or "adaptive")

    def check_package(self, processors: str | None, threads: int | None) -> None:
        """Whether nothing is wanted that was fixed when the package was made.

        Raises:
            UsageError: something is.
        """
        if self.weights or self.design or self.shapes or self.batch or processors or threads:
            raise UsageError(
                f"{self.model} is a package: processors, threads, weights, design, shapes and batch were fixed when it was "
                "made; leave these options out, or compile the model again"
            )


def make_source(
    model: str,
    shapes: Sequence[str] | None,
    weights: Path | None = None,
    design: Path | None = None,
    batch: int | None = None,
) -> Source:
    """A source from options as they are written.

    Raises:
        UsageError: a shape that is not understood.
    """
    from nnstretch.frontends.input_shapes import parse_shapes

    return Source(model, parse_shapes(shapes or []), weights, design, batch)


def source_of_package(path: Path) -> Source:
    """What a package was made from, if it is still at hand.

    Raises:
        UsageError: it is not.
        FileError, PackageError: the package cannot be read.
    """
    from nnstretch import zoo
    from nnstretch.package import read_package

    about = read_package(path).metadata.get("source")
    if not isinstance(about, dict) or not isinstance(about.get("model"), str):
        raise UsageError(f"{path} does not say what it was made from, so there is nothing to check against")
    files = [about[key] for key in ("weights", "design") if about.get(key)]
    if about["model"] not in zoo.names():
        files.append(about["model"].partition(".py:")[0] + (".py" if ".py:" in about["model"] else ""))
    for file in files:
        if not Path(file).is_file():
            raise UsageError(f"{path} was made from {file}, which is not there to check against; run it where that is")
    shapes = {str(name): tuple(map(int, shape)) for name, shape in about.get("shapes", {}).items()}
    weights, design = (Path(about[key]) if about.get(key) else None for key in ("weights", "design"))
    return Source(about["model"], shapes, weights, design, about.get("batch"))


def read_array(path: Path) -> np.ndarray:
    """The array of a .npy file; objects are refused.

    Raises:
        FileError: it cannot be read or is no .npy file.
    """
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise FileError(f"{path} is not a .npy file with numbers; write it with numpy.save") from error
    if not isinstance(loaded, np.ndarray):
        raise FileError(f"{path} holds several arrays; give one .npy file per input")
    return loaded
