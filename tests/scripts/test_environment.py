"""Tests for `scripts/_environment.sh`: how a failed step of the set-up is reported."""

import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).resolve().parents[2] / "scripts" / "_environment.sh"
OUTPUT = "one line of output"


@pytest.mark.parametrize(
    ("cause", "advice", "shows_output"),
    [
        ("NewConnectionError('Failed to establish a new connection')", "the network or the package index", False),
        ("E: Temporary failure resolving 'deb.debian.org'", "the network or the package index", False),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full", False),
        ("ERROR: something else", "it ended with status 3", True),
    ],
)
def test_a_failed_step_says_what_to_do(tmp_path: Path, cause: str, advice: str, shows_output: bool) -> None:
    script = (
        'set -euo pipefail; root=$1; source "$2"; step "Installing things" sh -c "echo \\"$3\\"; echo \\"$4\\"; exit 3"'
    )
    command = ["bash", "-c", script, "bash", str(tmp_path), str(ENVIRONMENT), OUTPUT, cause]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    *output, last = done.stderr.splitlines()
    assert done.returncode == 2
    assert last.startswith(f'error: "Installing things" failed: {advice}'), done.stderr
    assert last.endswith(f"its output is in {tmp_path}/.venv-setup.log")
    assert bool(output) == shows_output
    assert cause in (tmp_path / ".venv-setup.log").read_text()
