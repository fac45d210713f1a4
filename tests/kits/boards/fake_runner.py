"""A runner that computes nothing: a shell script with the command line and answers of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CPU: dict[str, Any] = {"online": True, "allowed": True, "max_khz": 2_000_000, "siblings": None, "node": None}
PROBE: dict[str, Any] = {
    "machine": "aarch64",
    "system": "Linux",
    "memory_bytes": 1 << 30,
    "cpus": [{"number": number, **CPU} for number in range(2)],
    "features": ["asimd"],
    "isa_levels": ["aarch64"],
    "thermal": [],
    "power": [],
    "opencl": [],
    "opencl_error": None,
}

_SCRIPT = r"""#!/bin/sh
probe='PROBE'
echo "$@" >>"${0%/*}/arguments"
models= status=0 outputs= p50=P50 answer='\000\000\200\077'
[ "$1" != --slow ] || { shift; p50=9.0 answer='\000\000\000\100'; }
[ "$1" != --probe ] || { echo "$probe"; exit 0; }
for word in "$@"; do
  [ "$before" != --outputs ] || outputs=$word
  if [ "$before" = --cache ]; then
    mkdir -p "$POCL_CACHE_DIR"
    echo built | tee -a "$word/kernel.bin" >>"$POCL_CACHE_DIR/kernel"
  fi
  before=$word
  case $word in *.nnm) ;; *) continue ;; esac
  echo "running $word" >&2
  entry="\"file\": \"$word\", \"name\": \"m\""
  case $(head -c 4 "$word") in
    hang) echo $$ >"ALIVE"; mkfifo "${0%/*}/never"; read -r line <"${0%/*}/never" ;;
    fail) status=1; entry="$entry, \"error\": \"it failed\"" ;;
    dead) kill -9 $$ ;;
    none) echo "error: nothing can be done" >&2; exit 2 ;;
    *) entry="$entry, \"p50_ms\": $p50, \"outputs\": [{\"name\": \"y\", \"type\": \"float32\", \"shape\": [1]}]" ;;
  esac
  [ -z "$outputs" ] || printf "$answer" >"$outputs/0-0.bin"
  models="$models${models:+, }{$entry}"
done
echo "{\"models\": [$models], \"stopped\": null, \"device\": $probe}"
exit $status
"""


def write_fake_runner(folder: Path, *, p50: float = 1.0, machine: str = "aarch64") -> Path:
    """Writes the runner. A model file that begins with `hang`, `fail`, `dead` or `none` makes it do so.

    With a first argument `--slow`, its answers and times are others.
    """
    file = folder / f"runner-{p50}"
    probe = json.dumps({**PROBE, "machine": machine})
    file.write_text(_SCRIPT.replace("PROBE", probe).replace("P50", str(p50)).replace("ALIVE", str(folder / "alive")))
    file.chmod(0o755)
    return file
