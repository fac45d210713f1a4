"""Lists the packages: every sub-package of the four folders that `[tool.setuptools.package-dir]` maps."""

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

try:
    import tomllib
except ModuleNotFoundError:
    sys.exit(f"error: nnstretch needs Python 3.11 or later; this is {sys.version.partition(' ')[0]}")
if "develop" in sys.argv:  # what pip before 21.3 calls for -e
    sys.exit("error: pip older than 21.3 cannot install this in place; run `python -m pip install --upgrade pip` first")

ROOT = Path(__file__).parent
FOLDERS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


class SourceDistribution(sdist):
    """A source distribution without tests: setuptools lists `tests/test*.py`, without what they need."""

    def make_distribution(self) -> None:
        """Pack the listed files but those of the tests."""
        self.filelist.prune("tests")
        super().make_distribution()


setup(
    cmdclass={"sdist": SourceDistribution},
    packages=[
        name
        for package, folder in FOLDERS.items()
        for name in [package, *(f"{package}.{sub}" for sub in find_packages(str(ROOT / folder)))]
    ],
)
