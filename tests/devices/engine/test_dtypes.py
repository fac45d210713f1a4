"""The engine and Python agree on element types."""

import ctypes
from pathlib import Path

from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from nnstretch.graph.dtypes import ELEMENT_TYPES
from tests.kits.c_libraries import c_library

HEADER = ENGINE_FOLDER / "runtime" / "dtypes.h"


def test_the_engine_has_the_same_table() -> None:
    library = ctypes.CDLL(str(c_library(Path(__file__).with_name("dtypes.c"), includes=[HEADER])))
    library.dtype_size.argtypes = library.dtype_name.argtypes = [ctypes.c_int64]
    library.dtype_size.restype, library.dtype_name.restype = ctypes.c_int64, ctypes.c_char_p
    found = {
        code: (name.decode(), library.dtype_size(code))
        for code in range(256)
        if (name := library.dtype_name(code)) is not None
    }
    assert found == {t.code: (t.name, t.bytes) for t in ELEMENT_TYPES.values() if t.code}
