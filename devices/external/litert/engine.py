"""LiteRT as an engine and as a processor with a delegate."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.external.engine import ExternalEngine, ExternalModel, ExternalRoutine
from nnstretch.devices.external.litert.delegate import XNNPACK, parse_delegate
from nnstretch.devices.external.litert.model import LiteRtModel
from nnstretch.devices.external.litert.routine import LiteRtIdentity, LiteRtRoutine, litert_release
from nnstretch.devices.external.processor import EXTERNAL_DTYPES, ExternalProcessor
from nnstretch.graph.layer import TensorType


class LiteRt(ExternalEngine):
    """LiteRT; the argument of its processors and models is a delegate, empty for XNNPACK."""

    name = "litert"
    title = "LiteRT"

    def release(self) -> str:
        return litert_release()[1]

    def canonical_argument(self, argument: str) -> str:
        """The delegate with an absolute path; empty for XNNPACK."""
        delegate = str(parse_delegate(argument or XNNPACK))
        return "" if delegate == XNNPACK else delegate

    def routine(self) -> ExternalRoutine:
        return LiteRtRoutine()

    def processor(self, spec: ProcessorSpec) -> LiteRtProcessor:
        return LiteRtProcessor(spec)

    def load(
        self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType], argument: str
    ) -> ExternalModel:
        return LiteRtModel(content, threads, reads, writes, parse_delegate(argument or XNNPACK))


ENGINE = LiteRt()


class LiteRtProcessor(ExternalProcessor):
    """One interpreter per call and one thread per core; a delegate may compute layers on another device."""

    def __init__(self, spec: ProcessorSpec) -> None:
        """Creates the processor that `spec` names.

        Raises:
            MissingExtraError: LiteRT, or the package that writes its files, is not installed.
            DeviceError: the delegate cannot be used.
        """
        delegate = parse_delegate(spec.argument or XNNPACK)
        routines = [LiteRtRoutine(delegate, dtype) for dtype in EXTERNAL_DTYPES]
        super().__init__(spec, ENGINE, routines, LiteRtIdentity(delegate), delegate.identity)
