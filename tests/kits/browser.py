"""Pages in a real browser, without a window and without network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in _NAMES if (found := shutil.which(name))), None)
"""The program, if one is installed."""
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"needs a browser ({', '.join(_NAMES)})")

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def opened(
    page: Path, *, screenshot: Path | None = None, size: tuple[int, int] = (1100, 1800), dark: bool = False
) -> str:
    """The page's elements as text after its scripts have run.

    Args:
        page: a file.
        screenshot: PNG file for what is seen; None: nothing is drawn.
        size: of the window, in pixels.
        dark: whether the reader prefers dark colours.
    """
    assert BROWSER is not None
    profile = page.with_suffix(".profile")
    wanted = [f"--screenshot={screenshot}"] if screenshot is not None else []
    command = [
        *(
            BROWSER,
            *_OPTIONS,
            f"--user-data-dir={profile}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        ),
        *(f"--window-size={size[0]},{size[1]}", *wanted, "--dump-dom", page.as_uri()),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    finally:
        shutil.rmtree(profile, ignore_errors=True)
    return done.stdout
