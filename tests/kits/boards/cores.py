"""The core of each test process: parallel workers use different cores."""

from __future__ import annotations

import os

from nnstretch.devices.base.spec import usable_cores

_NUMBER = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")

OWN_CORE = usable_cores()[int(_NUMBER) % len(usable_cores())]
"""A usable core; workers of a parallel run have different ones as far as there are enough."""
