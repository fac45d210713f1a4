"""Networks kept in packages, from which plans can be made again: the prepared weights of a package fit one plan only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import Processors
from nnstretch.errors import PackageError, UsageError
from nnstretch.frontends.onnx_file import LARGEST_WEIGHTS, weight_bytes
from nnstretch.frontends.resolve import load_any
from nnstretch.package import Package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.support.json_text import DAMAGED

_KEY = "kept_model"


@dataclass(frozen=True)
class KeptModel:
    """A network as ONNX, and what its plan was made for, as metadata of a package."""

    content: bytes
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, graph: ir.Model, processors: Processors) -> KeptModel:
        """An unoptimised graph that is compiled for processors.

        Raises:
            UsageError: its weights are larger than an ONNX file without external data can be.
        """
        if weight_bytes(graph) > LARGEST_WEIGHTS:
            raise UsageError("a package keeps networks of up to 2 GiB of weights; leave keep_model (--keep-model) out")
        options = processors.options
        about = {
            # As the user wrote them: `cpu` is all cores of the machine that shares out the layers again.
            "processors": options.processors,
            "threads": options.threads,
            "dtype": options.dtype,
            "engines": list(options.engines),
            "tolerance": options.tolerance,
        }
        return cls(ir.to_proto(graph).SerializeToString(), {_KEY: about})

    def kept_by(self, compiled: Compiled) -> Compiled:
        """A plan whose package keeps the network."""
        return replace(compiled, kept_model=self.content, metadata={**compiled.metadata, **self.metadata})


def kept_model(package: Package, path: Path, options: CompileOptions) -> tuple[ir.Model, CompileOptions]:
    """The network of a package, not optimised, and the options that its plan was made with.

    Args:
        package: keeps its network.
        path: its file, for the message.
        options: have all other options.

    Raises:
        PackageError: what it keeps is damaged.
    """
    try:
        about = package.metadata[_KEY]
        own = replace(
            options,
            processors=str(about["processors"]),
            threads=about.get("threads"),
            dtype=about["dtype"],
            engines=tuple(map(str, about["engines"])),
            tolerance=about["tolerance"],
        )
    except (*DAMAGED, UsageError) as error:
        raise PackageError(
            f"{path} does not say what its model was compiled for ({error}); compile it again"
        ) from error
    return load_any(bytes(package.model)), own
