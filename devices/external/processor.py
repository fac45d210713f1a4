"""External engines as processors: a program of others on cores of its own, or on the device of its delegate.

Such an engine has a synchronous interface: a call returns when the answer is there. In a plan it has a call queue, whose thread
makes these calls, so that other queues go on meanwhile. Everything between two waits is one call: one model with an interpreter
or session of its own (`nnstretch.scheduler.lowering.calls`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, Routine, reorder_layer, reorder_layouts
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.external.backend import CALLS
from nnstretch.devices.external.engine import ExternalDtype, ExternalEngine, ExternalRoutine, ModelRoutine
from nnstretch.errors import DeviceError, ModelError
from nnstretch.graph.layer import Layer, TensorType

EXTERNAL_DTYPES: Sequence[ExternalDtype] = ("float32", "int8")
"""Element types that external engines as processors compute in."""


class HandThrough(ModelRoutine):
    """A call that hands a plain tensor through and computes nothing: what a call costs beside its layers."""

    def supports(self, layer: Layer) -> bool:
        """A plain copy of what external engines compute in."""
        return (
            layer.op == REORDER and set(reorder_layouts(layer)) == {PLAIN} and layer.type_of(0).dtype in EXTERNAL_DTYPES
        )

    @abstractmethod
    def model(self, layer: Layer) -> bytes:
        """A model in the external engine's format that does to what it reads and writes what its models of layers do."""


class ExternalProcessor(Processor):
    """An external engine on cores of its own.

    Attributes:
        device: the external engine with its release, for people.
    """

    dtypes = tuple(EXTERNAL_DTYPES)
    backend = CALLS

    def __init__(
        self,
        spec: ProcessorSpec,
        engine: ExternalEngine,
        routines: Sequence[ExternalRoutine],
        through: HandThrough,
        settings: str = "",
    ) -> None:
        """Tries the external engine with a model that computes nothing.

        Args:
            spec: with its cores; the external engine gets a thread for each.
            engine: the external engine.
            routines: for layers that compute in each of `EXTERNAL_DTYPES`.
            through: measures what a call costs.
            settings: what else must be equal for a measured latency to hold.

        Raises:
            MissingExtraError: the external engine is not installed.
            DeviceError: it does not work here, or a delegate cannot be used.
        """
        self.spec = spec
        self.blocked = Layout(local_isa().block)
        self._routines, self._through = tuple(routines), through
        self.device = f"{engine.title} {engine.release()}"
        self._settings = settings
        self._try(engine)

    def _try(self, engine: ExternalEngine) -> None:
        kind = TensorType((1, 1, 1, 1))
        content = self._through.model(reorder_layer(kind, PLAIN, PLAIN))
        try:
            engine.open_model(content, self.spec.cores, [kind], [kind], self.spec.argument)
        except ModelError as error:
            raise DeviceError(f"processor {self.name} does not work: {error}; use another one") from error

    @property
    def fingerprint(self) -> str:
        """The external engine, the CPU model and the number of cores."""
        return f"{self.device}|{self._settings}|{cpu_model()}|{len(self.spec.cores)} cores"

    @property
    def routines(self) -> Sequence[Routine]:
        """One for every element type."""
        return self._routines

    def reorder(self) -> Routine:
        """Hands plain tensors through; there is no other change of layout."""
        return self._through
