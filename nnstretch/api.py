"""The front door: `nnstretch.compile` and `nnstretch.stretch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UsageError
from nnstretch.scheduler.session import Session

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

    from nnstretch.branching.stretch import StretchResult

Progress = Callable[[int, int, str], None]
"""Told (done, total, what) while something long is going on."""


def compile(
    model: str | Path | ir.Model | torch.nn.Module,
    example_input: Any = None,
    processors: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    tune: bool = True,
    *,
    shapes: dict[str, tuple[int, ...]] | None = None,
    engines: Sequence[str] = (),
    tolerance: float = 1e-4,
    progress: Progress | None = None,
) -> Session:
    """Makes a model runnable on processors.

    Args:
        model: an ONNX file, a package (.nns, whose plan is used as it is), a zoo name, `module.py:factory`, an onnx_ir model or
            a torch module (which needs `example_input`).
        example_input: a tensor, or a tuple of tensors, of the shapes to compile for (torch modules).
        processors: as in `cpu:0-3,opencl:0@4` (`nnstretch.devices.spec`).
        dtype: "float32".
        threads: at most so many cores of the first CPU.
        tune: measure routines (reusing what was measured before) and choose the fastest; else choose by estimates.
        shapes: input name -> shape, for models with dynamic shapes.
        engines: other engines, "ort" (ONNX Runtime) and "litert" (LiteRT), that compute layers, or runs of layers, on the first
            CPU where tuning measures them to be faster; what is compiled needs them to run then.
        tolerance: error that a routine may have, relative to its output's range, where tuning measures routines. From 1e-3 on
            OpenCL devices may store data as float16.
        progress: told how far measuring has come.

    Returns:
        A session with ONNX Runtime's call signature: `session.run(None, {"x": x})`.

    Raises:
        NNStretchError: what was found, what was wanted, and what to do.
    """
    from nnstretch.compiler import build_processors, compile_model, load_any

    if dtype != "float32":
        raise UsageError(f"dtype {dtype!r} is not supported; use float32")
    if isinstance(model, str | Path) and str(model).endswith(".nns"):
        return Session.load(Path(model))
    loaded = load_any(model, example_input, shapes)
    return compile_model(
        loaded, build_processors(processors, threads, engines, tolerance), tune=tune, progress=progress
    )


def stretch(
    module: torch.nn.Module,
    example_input: torch.Tensor,
    processors: str = "cpu,opencl",
    *,
    alpha: float = 0.3,
    beta: float = 0.8,
    learned: bool = False,
    multiple: int | None = None,
    designs: int = 1,
    progress: Progress | None = None,
    **limits: float,
) -> Sequence[StretchResult]:
    """Finds branchings of a trained module for processors, best first.

    Args:
        module: any module that torch.fx can trace and whose graph is a chain of blocks; left as it is.
        example_input: one input of the shape to run at, N,C,H,W.
        processors: one branch is made for each, in this order.
        alpha: a meeting point may cost this share of the segment before it.
        beta: a branch may take this share of the original segment on the fastest processor.
        learned: latencies of layers that were never measured are predicted from those that were (needs xgboost).
        multiple: scaled layers have multiples of so many channels; the block of the processors' layout if None.
        designs: how many to return at most.
        progress: told how far measuring has come.
        limits: `min_depth`, `min_width` and `min_macs` of `nnstretch.branching.SearchLimits`.

    Returns:
        Results whose `module` is a torch module with inherited weights and whose `design` is data.
    """
    from nnstretch.branching.options import SearchLimits
    from nnstretch.branching.stretch import stretch as search
    from nnstretch.compiler import build_processors, predictor

    usable = build_processors(processors)

    def report(what: str, done: int, total: int) -> None:
        if progress:
            progress(done, total, what)

    return search(
        module,
        example_input,
        predictor(usable, learned=learned),
        len(usable.named),
        SearchLimits(alpha, beta, **limits),
        multiple=usable.host.blocked.block if multiple is None else multiple,
        designs=designs,
        progress=report,
    )
