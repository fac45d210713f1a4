"""External engines as processors, on cores of their own or on the device of a delegate.

Calls of an engine are synchronous. The thread of its call queue makes them, so that other queues continue. All layers
between two waits are one call: one model with its own interpreter or session (`nnstretch.scheduler.lowering.calls`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, reorder_layer, reorder_layouts
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.build.instruction_sets import Isa, local_isa
from nnstretch.devices.external.calls import CALLS
from nnstretch.devices.external.engine import ExternalDtype, ExternalEngine, ExternalRoutine, ModelRoutine
from nnstretch.errors import DeviceError, ModelError
from nnstretch.graph.layer import Layer, TensorType

EXTERNAL_DTYPES: Sequence[ExternalDtype] = ("float32", "int8")
"""Element types of external engines as processors."""


class IdentityRoutine(ModelRoutine):
    """An identity call on a plain tensor, which measures the overhead of a call."""

    def supports(self, layer: Layer) -> bool:
        """Whether `layer` copies a plain tensor of one of `EXTERNAL_DTYPES`."""
        return (
            layer.op == REORDER and set(reorder_layouts(layer)) == {PLAIN} and layer.type_of(0).dtype in EXTERNAL_DTYPES
        )

    @abstractmethod
    def model(self, layer: Layer) -> bytes:
        """A model that treats its input and output like the engine's models of layers."""


class ExternalProcessor(Processor):
    """An external engine on cores of its own.

    Attributes:
        device: display name of the engine with its release.
    """

    backend = CALLS

    def __init__(
        self,
        spec: ProcessorSpec,
        engine: ExternalEngine,
        routines: Sequence[ExternalRoutine],
        through: IdentityRoutine,
        settings: str = "",
        isa: Isa | None = None,
    ) -> None:
        """Tests the engine with an identity model, if it is the one of this machine.

        Args:
            spec: specification with cores; the engine gets one thread per core.
            engine: the external engine.
            routines: one for each of `EXTERNAL_DTYPES`.
            through: measures the overhead of a call.
            settings: other settings that affect latency, part of the fingerprint.
            isa: instruction set of another machine; None: the processor is one of this machine.

        Raises:
            MissingExtraError: the engine is not installed.
            DeviceError: the engine does not work on this machine, or a delegate cannot be used.
        """
        self.spec = spec
        self.blocked = Layout((isa or local_isa()).block)
        self.routines, self.reorder = tuple(routines), through
        self.device = f"{engine.title} {engine.release()}"
        self._settings = settings
        if isa is None:
            self._try(engine, through)

    def _try(self, engine: ExternalEngine, through: IdentityRoutine) -> None:
        kind = TensorType((1, 1, 1, 1))
        content = through.model(reorder_layer(kind, PLAIN, PLAIN))
        try:
            engine.open_model(content, self.spec.cores, [kind], [kind], self.spec.argument)
        except ModelError as error:
            raise DeviceError(f"processor {self.name} does not work: {error}; use another one") from error

    @property
    def fingerprint(self) -> str:
        """The external engine, the CPU model and the number of cores."""
        return f"{self.device}|{self._settings}|{cpu_model()}|{len(self.spec.cores)} cores"
