"""Building the engine: the cache, its keys, other compilers and instruction sets, and failures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build import engine_library, toolchains
from nnstretch.devices.engine.build.instruction_sets import ISAS, local_isa
from nnstretch.errors import BuildError, FileError
from nnstretch.support import stderr_lines
from nnstretch.support.settings import cache_dir

SMALL = '#include "nns_engine.h"\nint32_t nns_abi(void) { return VALUE; }\n'
Sources = Callable[[dict[str, str]], None]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Gives the builder small sources and an empty cache."""
    here = tmp_path / "engine"
    shutil.copytree(toolchains.ENGINE_FOLDER / "include", here / "include")
    for name in ("runtime", "kernels"):
        (here / name).mkdir()
    (here / "kernels" / "manifest.h").touch()
    for module in (engine_library, toolchains):
        monkeypatch.setattr(module, "ENGINE_FOLDER", here)
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "cache"))
    # A compiler with a fast first link keeps these tests short.
    if shutil.which("gcc"):
        monkeypatch.setenv("NNSTRETCH_CC", "gcc")

    def write(texts: dict[str, str]) -> None:
        for name, text in texts.items():
            (here / name).write_text(text)

    return write


def objects() -> set[str]:
    return {path.name for path in (cache_dir() / "engine" / "objects").iterdir()}


def test_unchanged_sources_are_not_built_again(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    library = engine_library.build_engine()
    monkeypatch.setattr(engine_library, "_compile", lambda *_: pytest.fail("compiled again"))
    assert engine_library.build_engine() == library


def test_the_largest_sources_are_compiled_first(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_library, "default_cores", lambda: (0,))
    compiled: list[str] = []
    compile_it = engine_library._compile

    def recorded(command: list[str], what: str) -> None:
        compiled.append(what)
        compile_it(command, what)

    monkeypatch.setattr(engine_library, "_compile", recorded)
    comment = "/* a long one */\n"
    sources({"runtime/a.c": SMALL.replace("VALUE", "1"), "runtime/b.c": comment * 9, "kernels/c.c": comment * 99})
    engine_library.build_engine()
    assert compiled == ["c.c", "b.c", "a.c", "linking"]


def test_the_compiler_works_in_the_cache(sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder above its own, such as that of a project with `.venv`, zig compiles its C library again."""
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", "relative")
    monkeypatch.setattr(engine_library, "compiler_override", lambda: None)
    folders: list[Path] = []
    run = subprocess.run

    def recorded(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "-o" in command:
            folders.append(Path(options["cwd"]).resolve())
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    assert engine_library.build_engine().exists()
    assert folders == [tmp_path / "relative"] * 2


@pytest.mark.skipif(not shutil.which("gcc"), reason="a compiler other than the ziglang wheel's")
def test_warnings_of_other_compilers_do_not_stop_a_build(sources: Sources) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1") + "static int unused(int a) { return 0; }\n"})
    assert engine_library.build_engine().exists()


@pytest.mark.parametrize(("is_command", "is_terminal"), [(True, False), (True, True), (False, False)])
def test_a_first_build_is_announced_by_a_command_without_a_bar(
    sources: Sources,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_command: bool,
    is_terminal: bool,
) -> None:
    monkeypatch.setitem(stderr_lines._STATE, "wanted", is_command)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    folder = engine_library.build_engine().parent
    engine_library.build_engine()
    line = f"building the native engine for {local_isa().name}: once per version, about a minute, kept in {folder}\n"
    assert capsys.readouterr().err == (line if is_command and not is_terminal else "")


def test_only_what_changed_is_compiled_again(sources: Sources) -> None:
    sources(
        {"runtime/a.c": SMALL.replace("VALUE", "1"), "kernels/b.c": "int nns_b(void) { return 1; }\nint nns_b(void);\n"}
    )
    first, before = engine_library.build_engine(), objects()
    sources({"kernels/b.c": "int nns_b(void) { return 2; }\n"})
    assert engine_library.build_engine() != first
    assert len(objects() - before) == 1


def test_a_file_that_includes_another_one_is_compiled_again_with_it(sources: Sources) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    (toolchains.ENGINE_FOLDER / "kernels" / "some").mkdir()
    inner = "#ifdef AGAIN\nint nns_b = VALUE;\n#endif\nextern int nns_b;\n"
    outer = '#define AGAIN\n#include "some/b.c"\n'
    sources({"kernels/some/b.c": inner.replace("VALUE", "1"), "kernels/some/again.c": outer})
    first, before = engine_library.build_engine(), objects()
    sources({"kernels/some/b.c": inner.replace("VALUE", "2")})
    assert engine_library.build_engine() != first
    assert len(objects() - before) == 2


def test_headers_and_instruction_sets_make_other_libraries(sources: Sources) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    first = engine_library.build_engine()
    others = [isa for isa in ISAS if isa.name.startswith("x86") == local_isa().name.startswith("x86")]
    for isa in others:
        if isa != local_isa():
            assert engine_library.build_engine(isa) != first
    sources({"runtime/a.h": "#define UNUSED 1\n"})
    assert engine_library.build_engine() != first


def test_an_error_names_the_line_and_the_log(sources: Sources) -> None:
    sources({"runtime/a.c": "int broken(void) { return nowhere; }\n"})
    with pytest.raises(BuildError, match=r"at a\.c: .*nowhere.*whole log in") as caught:
        engine_library.build_engine()
    assert "\n" not in str(caught.value)
    assert "nowhere" in (cache_dir() / "engine" / "build.log").read_text()
    assert not list((cache_dir() / "engine").glob("*.so"))


def test_a_compiler_that_is_missing_or_fails(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    monkeypatch.setenv("NNSTRETCH_CC", "/nowhere/cc")
    with pytest.raises(BuildError, match="NNSTRETCH_CC"):
        engine_library.build_engine()


@pytest.mark.parametrize("file", ["taken", "taken/engine", "taken/engine/lock/file"])
def test_a_cache_that_cannot_be_written(
    sources: Sources, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is where a folder should be, or the other way round: there not even root may write."""
    sources({"runtime/a.c": SMALL.replace("VALUE", "1")})
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "taken"))
    with pytest.raises(FileError, match="set NNSTRETCH_CACHE_DIR to a writable one"):
        engine_library.build_engine()


def test_a_library_of_another_interface_is_refused(sources: Sources) -> None:
    from nnstretch.devices.engine.binding.library import _SIGNATURES

    rest = "".join(f"NNS_EXPORT void {name}(void) {{}}\n" for name in _SIGNATURES if name != "nns_abi")
    visible = '#define NNS_EXPORT __attribute__((visibility("default")))\n'
    sources({"runtime/a.c": f"{visible}NNS_EXPORT int nns_abi(void) {{ return 77; }}\n{rest}"})
    with pytest.raises(BuildError, match="interface 77"):
        Engine(engine_library.build_engine())


def test_builders_at_the_same_time_agree(sources: Sources) -> None:
    sources({"runtime/a.c": SMALL.replace("VALUE", "1"), "kernels/b.c": "extern int nns_b;\nint nns_b = 1;\n"})
    script = (
        "from pathlib import Path; import sys; from nnstretch.devices.engine.build import engine_library, toolchains; "
        "engine_library.ENGINE_FOLDER = toolchains.ENGINE_FOLDER = Path(sys.argv[1]); print(engine_library.build_engine())"
    )
    command = [sys.executable, "-c", script, str(toolchains.ENGINE_FOLDER)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(answers) == 1
    directory = cache_dir() / "engine"
    assert len(list(directory.glob("*.so"))) == 1
    assert not list(directory.glob(".build-*"))


def test_an_engine_for_one_cpu_has_the_variants_that_it_takes() -> None:
    """A process may be refused the registers of AMX, so the next best variant is there, too."""
    v4 = next(isa for isa in ISAS if isa.name == "x86-64-v4")
    listed = engine_library.listed_variants()
    rows, quantize, pool = (
        engine_library.families_of(path)
        for name in ("rows_int8.c", "quantize.c", "pool.c")
        for path in engine_library.c_files(f"kernels/**/{name}")
    )
    plain, vnni, amx, vbmi = (), ("avx512_vnni",), ("amx_int8", "amx_tile", "avx512_vnni"), ("avx512vbmi",)
    assert engine_library.compiled_with(rows, listed, v4) == [plain, vnni, amx]
    for cpu, wanted in ((plain, [plain]), (vnni, [vnni]), (amx, [vnni, amx])):
        assert engine_library.compiled_with(rows, listed, v4, (*v4.features, *cpu)) == wanted
    assert engine_library.compiled_with(quantize, listed, v4, (*v4.features, *vbmi)) == [
        plain,
        vbmi,
    ]  # not all of its families
    assert engine_library.compiled_with(pool, listed, v4, v4.features) == [plain]
    here, anywhere = (Engine(engine_library.build_engine(isa)).kernel_names() for isa in (None, local_isa()))
    assert set(here) == set(anywhere)


def test_local_isa_is_one_that_the_cpu_has() -> None:
    isa = local_isa()
    assert isa in ISAS
    assert isa.block in (4, 8, 16)
