"""Imports run one way, graph, errors, support <- devices <- scheduler <- cli; torch is on the model side."""

import ast
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping
from enum import Enum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "nnstretch": ROOT / "nnstretch",
    "nnstretch.devices": ROOT / "devices",
    "nnstretch.scheduler": ROOT / "scheduler",
    "nnstretch.training": ROOT / "training",
}
BASE = ("nnstretch.errors", "nnstretch.graph", "nnstretch.passes", "nnstretch.support")
TORCH = ("timm", "torch", "torch_pruning", "torchvision")
MODEL_SIDE = ("nnstretch.branching", "nnstretch.cli", "nnstretch.training")
# Package -> what no module in it may import, at whatever level of the code.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(BASE, (*TORCH, *MODEL_SIDE, "nnstretch.devices", "nnstretch.scheduler")),
    "nnstretch.devices": (*TORCH, *MODEL_SIDE, "nnstretch.scheduler"),
    "nnstretch.scheduler": (*TORCH, *MODEL_SIDE),
    "nnstretch.branching": ("nnstretch.cli", "nnstretch.devices", "nnstretch.scheduler"),
    "nnstretch.training": ("nnstretch.cli", "nnstretch.devices", "nnstretch.scheduler"),
}
# What a user may not have installed: it must be imported where it is used, not where a module is loaded.
OPTIONAL = (
    *TORCH,
    "adbutils",
    "ai_edge_litert",
    "ncnn",
    "openvino",
    "optuna",
    "sklearn",
    "tflite_runtime",
    "xgboost",
)
WITHOUT_OPTIONAL = (*BASE, "nnstretch.devices", "nnstretch.scheduler", "nnstretch.cli")


# Imports in functions that may close a cycle, as (importing, imported), and why.
LAZY_CYCLES: dict[tuple[str, str], str] = {}


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def module_files(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return module name -> file for every Python file in the folders."""
    files = {}
    for package, folder in folders.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            files[".".join((package, *parts)).removesuffix(".__init__")] = file
    return files


def is_type_checking(node: ast.AST) -> bool:
    """Tell whether a node is `if TYPE_CHECKING:` (of `typing` or bare)."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


class When(Enum):
    """Which imports count: those that run while a module is loaded, those in functions too, or those for types too."""

    LOADING = 0
    RUNNING = 1
    CHECKING = 2


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def statements(tree: ast.AST, when: When) -> Iterator[ast.AST]:
    """Walk the nodes whose imports count."""
    for node in ast.iter_child_nodes(tree):
        if when is When.LOADING and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if when is not When.CHECKING and isinstance(node, ast.If) and is_type_checking(node):
            yield from (inner for branch in node.orelse for inner in (branch, *ast.walk(branch)))
            continue
        yield node
        yield from statements(node, when)


def imports(module: str, file: Path, known: Mapping[str, Path], when: When) -> set[str]:
    """Return the modules that a module imports; `from package import name` may mean a sub-module."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in statements(parsed(file), when):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            source = ".".join(filter(None, (above, node.module))) if node.level else node.module or ""
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= {name if name in known else source for name in names}
    return found


def forbidden_imports(files: Mapping[str, Path]) -> list[str]:
    """Return a line for every import that a package forbids, sorted."""
    return sorted(
        f"{module} imports {target}, which {package} may not"
        for module, file in files.items()
        for package, banned in FORBIDDEN.items()
        if is_inside(module, package)
        for target in imports(module, file, files, When.CHECKING)
        if any(is_inside(target, name) for name in banned)
    )


def loading_edges(module: str, targets: set[str], known: Mapping[str, Path]) -> set[str]:
    """Return the modules that loading a module loads: its targets and the packages around these."""
    around = {".".join(target.split(".")[:depth]) for target in targets for depth in range(1, target.count(".") + 2)}
    own = {".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 2)}
    return ((around - own) | (targets - {module})) & known.keys()


def import_cycle(
    files: Mapping[str, Path], when: When = When.LOADING, allowed: Container[tuple[str, str]] = ()
) -> list[str] | None:
    """Return a cycle among the imports that count, without allowed (importing, imported) pairs, or None."""
    edges = {
        module: {
            target
            for target in loading_edges(module, imports(module, file, files, when), files)
            if (module, target) not in allowed
        }
        for module, file in files.items()
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def write_modules(folder: Path, sources: Mapping[str, str]) -> dict[str, Path]:
    """Write sources (path -> text) as a package `nnstretch` and return its modules."""
    for path, text in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return module_files({"nnstretch": folder})


def test_every_folder_with_modules_is_a_package() -> None:
    bare = {
        file.parent.relative_to(ROOT)
        for file in module_files(FOLDERS).values()
        if not (file.parent / "__init__.py").exists()
    }
    assert not bare, "folders without __init__.py are left out of wheels"


def test_imports_run_one_way() -> None:
    assert forbidden_imports(module_files(FOLDERS)) == []


def test_no_import_cycle() -> None:
    cycle = import_cycle(module_files(FOLDERS))
    assert cycle is None, " -> ".join(cycle or [])


def test_no_import_cycle_through_imports_in_functions() -> None:
    cycle = import_cycle(module_files(FOLDERS), When.RUNNING, LAZY_CYCLES)
    assert cycle is None, " -> ".join(cycle or [])


def test_every_allowed_lazy_import_still_closes_a_cycle() -> None:
    for pair in LAZY_CYCLES:
        assert import_cycle(module_files(FOLDERS), When.RUNNING, LAZY_CYCLES.keys() - {pair}) is not None, pair


def test_optional_libraries_are_imported_where_they_are_used() -> None:
    modules = [
        module
        for module in module_files(FOLDERS)
        if module == "nnstretch" or any(is_inside(module, package) for package in WITHOUT_OPTIONAL)
    ]
    hide = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"
    load = f"import importlib; [importlib.import_module(name) for name in {modules!r} if '__main__' not in name]"
    command = [sys.executable, "-c", f"{hide}\n{load}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


def test_running_a_package_loads_no_model_library() -> None:
    """A session needs neither ONNX nor torch nor what builds engines for other machines: it must be ready at once."""
    heavy = ("onnx", "onnx_ir", "onnxscript", "onnxruntime", "torch", "sympy", "pyopencl", "typer")
    load = "import sys; from nnstretch.scheduler.runtime.session import PlanSession"
    code = f"{load}; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "source", "target"),
    [
        ("devices/cpu.py", "import torch.nn", "torch.nn"),
        ("devices/cpu.py", "from nnstretch.scheduler.plan.schema import Plan", "nnstretch.scheduler.plan.schema"),
        ("scheduler/deep/run.py", "def f():\n    from torch import nn", "torch"),
        ("scheduler/run.py", "from nnstretch import training", "nnstretch.training"),
        ("graph/ops.py", "from ..devices import cpu", "nnstretch.devices"),
        ("errors.py", "if True:\n    from .cli import main", "nnstretch.cli"),
        ("training/loop/trainer.py", "from nnstretch.devices.cpu import measure", "nnstretch.devices.cpu"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, path: str, source: str, target: str) -> None:
    files = write_modules(
        tmp_path,
        {f"{package}/__init__.py": "" for package in ("training", "devices", "cli")} | {"errors.py": "", path: source},
    )
    (line,) = forbidden_imports(files)
    assert f" imports {target}, " in line


def test_allowed_imports_are_not_reported(tmp_path: Path) -> None:
    sources = {
        "errors.py": "import os",
        "devices/__init__.py": "from nnstretch.errors import NNStretchError",
        "scheduler/__init__.py": "from nnstretch.devices import Processor\nimport torchless",
        "cli/main.py": "from nnstretch.scheduler import Plan\nimport torch",
        "training/__init__.py": "import torch",
    }
    files = write_modules(tmp_path, sources)
    assert forbidden_imports(files) == []
    assert import_cycle(files) is None


@pytest.mark.parametrize(
    "sources",
    [
        {"a.py": "from nnstretch import b", "b.py": "import nnstretch.a"},
        {"a.py": "class A:\n    from .b import B", "b.py": "from .c import C", "c.py": "from .a import A"},
        {"p/__init__.py": "from nnstretch.p.x import X", "p/x.py": "from nnstretch.p import Y"},
        {"p/__init__.py": "from nnstretch.q import Q", "p/x.py": "", "q.py": "from nnstretch.p.x import X"},
        {"a.py": "try:\n    from .b import B\nexcept ImportError:\n    raise", "b.py": "from .a import A"},
    ],
)
def test_a_cycle_is_found(tmp_path: Path, sources: dict[str, str]) -> None:
    assert import_cycle(write_modules(tmp_path, sources)) is not None


@pytest.mark.parametrize(
    "sources",
    [
        {"a.py": "from nnstretch import b", "b.py": "def f():\n    import nnstretch.a"},
        {"a.py": "import nnstretch.b", "b.py": "if TYPE_CHECKING:\n    from nnstretch.a import A"},
        {"p/__init__.py": "from nnstretch.p.x import X", "p/x.py": "from nnstretch.p import y", "p/y.py": ""},
    ],
)
def test_imports_that_run_later_make_no_cycle(tmp_path: Path, sources: dict[str, str]) -> None:
    assert import_cycle(write_modules(tmp_path, sources)) is None


def test_a_cycle_through_a_function_is_found_unless_it_is_allowed(tmp_path: Path) -> None:
    files = write_modules(tmp_path, {"a.py": "from nnstretch import b", "b.py": "def f():\n    import nnstretch.a"})
    assert import_cycle(files, When.RUNNING) is not None
    assert import_cycle(files, When.RUNNING, {("nnstretch.b", "nnstretch.a")}) is None
