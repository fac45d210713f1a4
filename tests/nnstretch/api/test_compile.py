"""The public API: its names, what type checkers see of it, and what it refuses before any work."""

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import onnx_ir as ir
import pytest

import nnstretch as nns
from nnstretch.api.options import declared_options
from nnstretch.cli.application import make_app
from nnstretch.cli.commands import COMMANDS
from nnstretch.cli.main import main
from tests.kits.boards.cores import OWN_CORE

CALLS = ((nns.compile, nns.CompileOptions), (nns.stretch, nns.StretchOptions))


@pytest.mark.parametrize(("call", "options"), CALLS)
def test_calls_take_and_document_every_option(call: Any, options: type) -> None:
    parameters = inspect.signature(call).parameters
    for field in fields(options):
        assert parameters[field.name].default == field.default
        for text in (call.__doc__, options.__doc__):
            assert re.search(rf"^ +{field.name}: \S", text or "", re.MULTILINE), field.name


def test_every_flag_is_declared_once() -> None:
    for _, options in CALLS:
        flags = [flag for _, _, option in declared_options(options).values() for flag in option.flags]
        assert len(flags) == len(set(flags))


def test_public_names_are_there_and_listed() -> None:
    for name in nns.__all__:
        assert getattr(nns, name) is not None
        assert name in dir(nns)
    assert {name for name in dir(nns) if not name.startswith("__")} == set(nns.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        nns.nothing  # noqa: B018
    errors = [value for value in (getattr(nns, n) for n in nns.__all__) if inspect.isclass(value)]
    assert all(issubclass(one, nns.NNStretchError) for one in errors if issubclass(one, Exception))


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, nnstretch; nnstretch.CompileOptions; nnstretch.StretchOptions\n"
        "print([m for m in ('numpy', 'torch', 'onnx', 'onnx_ir', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_models_and_devices_are_listed() -> None:
    assert {"resnet18", "resnet50"} <= set(nns.list_models("*resnet*")) < set(nns.list_models())
    network = nns.create_model("squeezenet1_1", num_classes=7, small_images=True)
    assert not network.training
    with pytest.raises(nns.ModelError, match="did you mean"):
        nns.create_model("resnet5")
    steps: list[str] = []
    found = nns.list_devices(progress=lambda *step: steps.append(step[2]))
    assert str(found[0]).startswith(f"{found[0].name}: {found[0].device}, {found[0].cores} core")
    assert found[0].kind == "cpu"
    assert steps[0] == "CPU"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64' is not supported; use float32"),
        ({"streams": 2, "plans": ["cpu:0"]}, "streams are for throughput, plans and policy for one run at a time"),
        ({"streams": 2, "policy": "fixed"}, "streams are for throughput, plans and policy for one run at a time"),
        ({"processors": "cpu:0", "plans": ["cpu:0"]}, "processors and plans both say what to run on; give one of them"),
        ({"plan": "p.json", "threads": 1}, "a plan fixes routines, processors and cores; leave threads out"),
        ({"plan": "p.json", "policy": "fixed"}, "leave policy out"),
        ({"plans": ["cpu:0", ""]}, "plans 'cpu:0;' has an empty plan"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nns.UsageError, match=message):
        nns.compile("resnet18", **options)
    with pytest.raises(nns.UsageError, match=message):
        nns.CompileOptions(**options)


def test_options_are_given_one_by_one_or_together() -> None:
    with pytest.raises(nns.UsageError, match="options and threads are given"):
        nns.compile("resnet18", options=nns.CompileOptions(), threads=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="treads"):
        nns.compile("resnet18", treads=1)  # type: ignore[call-overload]


def test_limits_are_changed_one_by_one() -> None:
    limits = nns.StretchOptions(limits=nns.SearchLimits(alpha=0.1), beta=0.7).search_limits()
    assert limits == nns.SearchLimits(alpha=0.1, beta=0.7)
    with pytest.raises(nns.DesignError, match="alpha is 0"):
        nns.StretchOptions(alpha=0).search_limits()
    shown = {name: option.shown for name, (_, _, option) in declared_options(nns.StretchOptions).items()}
    for name in ("alpha", "beta", "min_macs", "max_segment"):
        assert shown[name] == str(getattr(nns.SearchLimits(), name))


def test_commands_offer_the_options_that_name_them() -> None:
    import typer

    group: Any = typer.main.get_command(make_app())
    commands = {name: one for name, one in group.commands.items() if not hasattr(one, "commands")}
    commands |= {
        f"{name}_{inner}": one
        for name, outer in group.commands.items()
        for inner, one in getattr(outer, "commands", {}).items()
    }
    assert set(group.commands) == set(COMMANDS)
    for command, declared in commands.items():
        parameters = declared.params
        helps = {
            flag: (getattr(one, "help", None) or "").replace("\\[", "[") for one in parameters for flag in one.opts
        }
        own = inspect.signature(inspect.unwrap(declared.callback)).parameters.get("options")
        for _, options in CALLS:
            has_options = own is not None and own.annotation == options.__name__
            for _, _, option in declared_options(options).values():
                assert bool(option.flags) == bool(option.commands)
                for flag in option.flags:
                    offered = helps.get(flag.split("/")[0], "").startswith(option.help)
                    assert offered == (has_options and option.is_of(command)), (command, flag)


@pytest.mark.parametrize(
    ("given", "flags", "names"),
    [
        ({"processors": "cpu:0"}, ["-p", "cpu:0"], "processors"),
        ({"threads": 1, "tolerance": 1e-3}, ["-t", "1", "--tolerance", "1e-3"], "threads and tolerance"),
        ({"plans": ["cpu:0"], "engines": ["ort"]}, ["--plans", "cpu:0", "--engines", "ort"], "engines and plans"),
    ],
)
def test_packages_refuse_what_was_fixed_when_they_were_made(
    given: dict[str, Any], flags: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"net.nns is a package, made with its own {names}; leave these options out"
    with pytest.raises(nns.UsageError, match=message):
        nns.compile("net.nns", **given)
    assert main(["run", "net.nns", *flags]) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(nns.FileError):
        nns.compile("net.nns", streams=2, tune=False)


def test_a_session_says_what_it_computes_and_where() -> None:
    graph = ir.from_onnx_text(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }'
    )
    with nns.compile(graph, tune=False, processors=f"cpu:{OWN_CORE}") as session:
        assert repr(session) == f"<PlanSession (x: 2×3) -> (y: 2×3) on cpu:{OWN_CORE}>"
