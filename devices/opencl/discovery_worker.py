"""Lists the devices of all OpenCL drivers: `python -m nnstretch.devices.opencl.discovery_worker PARENT`.

PARENT is the number of the process that starts it, with which it ends, also while a driver hangs.
The worker writes the frame {"devices": their number} to its standard output. A driver may end the process before that.
"""

from __future__ import annotations

import resource
import sys

from nnstretch.devices.opencl.drivers import list_devices
from nnstretch.devices.opencl.properties import describe
from nnstretch.support.child_process import die_with_parent, frames_to_parent
from nnstretch.support.frames import write_frame


def main() -> int:
    """Lists all devices with what their drivers say of them."""
    die_with_parent(int(sys.argv[1]))
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # a crash is expected and leaves no file
    answers = frames_to_parent()
    devices = list_devices()
    for index, device in enumerate(devices):
        describe(index, device)
    write_frame(answers, {"devices": len(devices)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
