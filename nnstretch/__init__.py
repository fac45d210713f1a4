"""nnstretch: branched CNNs that run on several processors at the same time, each layer by its fastest implementation.

import nnstretch as nns
session = nns.compile("resnet50", processors="cpu")
(y,) = session.run(None, {"x": x})
"""

from typing import TYPE_CHECKING, Any

from nnstretch.errors import NNStretchError
from nnstretch.support.version import __version__

if TYPE_CHECKING:
    from nnstretch.api.compile import compile, stretch

__all__ = ["NNStretchError", "__version__", "compile", "stretch"]


def __getattr__(name: str) -> Any:
    """Loads the front door on first use, so that `import nnstretch.errors` stays light."""
    if name in ("compile", "stretch"):
        import nnstretch.api.compile

        return getattr(nnstretch.api.compile, name)
    raise AttributeError(f"module 'nnstretch' has no attribute {name!r}")
