"""Which core a process of tests takes for itself: two that run side by side do not wait for each other's core."""

from __future__ import annotations

import os

from nnstretch.devices.base.spec import usable_cores

_NUMBER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")

OWN_CORE = usable_cores()[int(_NUMBER) % len(usable_cores())]
"""One of the cores that may be used: another one for every worker of a parallel run, as far as there are enough."""
