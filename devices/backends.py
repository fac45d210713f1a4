"""All backends by the names that plans store."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.external.calls import CALLS
from nnstretch.devices.opencl.backend import OPENCL

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (HOST, OPENCL, CALLS)}
"""A new kind of queue is one line here, beside its own folder."""
