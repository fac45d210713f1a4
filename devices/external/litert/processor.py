"""LiteRT as a processor, with a delegate if one is named."""

from __future__ import annotations

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.external.litert.delegate import parse_delegate
from nnstretch.devices.external.litert.routine import LiteRtHandThrough, LiteRtRoutine, litert_release
from nnstretch.devices.external.processor import GUEST_DTYPES, ExternalProcessor


class TfliteProcessor(ExternalProcessor):
    """An interpreter for every call, with a thread per core; what a delegate takes is computed where that has it computed."""

    def __init__(self, spec: ProcessorSpec) -> None:
        """The processor that `spec` names.

        Raises:
            MissingExtraError: LiteRT, or what writes its files, is not installed.
            DeviceError: the delegate cannot be used.
        """
        delegate = parse_delegate(spec.delegate)
        routines = [LiteRtRoutine(delegate, dtype) for dtype in GUEST_DTYPES]
        super().__init__(spec, routines, LiteRtHandThrough(delegate), litert_release()[1], delegate.identity)
