"""Programs for Android: the NDK's command lines, what is said without an NDK, and a model that runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from nnstretch.cli.main import main
from nnstretch.devices.engine.build import standalone
from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.toolchains import make_toolchain
from nnstretch.devices.targets.adb import AdbTransport
from nnstretch.devices.targets.base import Transport
from nnstretch.errors import BuildError
from tests.kits.boards.android_ndk import VERSION, write_ndk
from tests.kits.command_line import refuses

GRAPH = """<ir_version: 8, opset_import: ["": 18]> m (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Relu(x) }"""
PAGES = "-Wl,-z,max-page-size=16384"


@pytest.fixture
def ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_ndk(tmp_path / "ndk")
    monkeypatch.setenv("ANDROID_NDK_HOME", str(folder))
    return folder


@pytest.mark.parametrize(
    ("target", "triple", "flag"),
    [
        ("aarch64-android", "aarch64-linux-android28", "-march=armv8-a"),
        ("x86-64-v2-android", "x86_64-linux-android28", "-march=x86-64-v2"),
        ("armv7-android", "armv7a-linux-androideabi28", "-mfpu=neon-vfpv4"),
        ("riscv64-android", "riscv64-linux-android35", "-march=rv64gc"),
    ],
)
def test_the_compiler_of_the_ndk_gets_its_own_options(ndk: Path, target: str, triple: str, flag: str) -> None:
    toolchain = make_toolchain(parse_target(target))
    assert str(parse_target(target)) == target
    assert toolchain.command == (str(ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang"), f"--target={triple}")
    assert flag in toolchain.flags
    assert not [word for word in toolchain.flags if word.startswith("-mcpu") or word == "-Werror"]
    assert toolchain.link_flags == ("-ldl", "-lm", PAGES)
    assert toolchain.identity.startswith(VERSION)


def test_without_an_ndk_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(
        BuildError, match=r"install it .* and set ANDROID_NDK_HOME to its folder; without it, -linux-musl"
    ):
        make_toolchain(parse_target("aarch64-android"))
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(BuildError, match=rf"ANDROID_NDK_HOME names {tmp_path}, which has no toolchains/llvm/prebuilt"):
        make_toolchain(parse_target("aarch64-android"))


def test_the_command_without_an_ndk_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(GRAPH), "net.onnx")
    status = main(["compile", "net.onnx", "--standalone", "--target", "aarch64-android", "--no-tune", "-o", "made"])
    captured = capsys.readouterr()
    refuses((status, captured.out, captured.err), "ANDROID_NDK_HOME")
    assert not Path("made").exists()


@pytest.mark.parametrize("has_ndk", [False, True])
def test_phones_get_a_runner_that_opens_opencl_where_there_is_an_ndk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_ndk: bool
) -> None:
    if has_ndk:
        monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    else:
        monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    phone: Transport = AdbTransport.__new__(AdbTransport)
    assert phone.library_system() == ("android" if has_ndk else None)


def test_the_manifest_asks_for_the_library_of_opencl() -> None:
    manifest = ET.fromstring(standalone.ANDROID_MANIFEST)  # noqa: S314 - a text of the project
    name = "{http://schemas.android.com/apk/res/android}"
    asked = [element.attrib for element in manifest.iter("uses-native-library")]
    assert asked == [{f"{name}name": "libOpenCL.so", f"{name}required": "false"}]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_for_android_runs(ndk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the engine compiles and links by the NDK's command lines; the stand-in's C library is not Android's."""
    import onnx

    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(GRAPH), "net.onnx")
    options = ("--no-tune", "--threads", "1", "--runner", "-o", "made")
    assert main(["compile", "net.onnx", "--standalone", "--target", "aarch64-android", *options]) == 0
    made = {path.relative_to("made").as_posix() for path in Path("made").rglob("*") if path.is_file()}
    archive = {"aar/AndroidManifest.xml", "aar/include/nnstretch.h", "aar/jni/arm64-v8a/libnnstretch.so"}
    assert made == {"net.nnm", "net", "libnnstretch.so", "nnstretch.h", "example.c", "nns-bench", *archive}
    assert Path("made/aar/jni/arm64-v8a/libnnstretch.so").read_bytes() == Path("made/libnnstretch.so").read_bytes()
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 4, 8, 8)
    np.save("x.npy", x)
    command = [emulator, "made/net", "x.npy", "--output", "y.npy"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    np.testing.assert_array_equal(np.load("y.npy"), np.maximum(x, 0))
    bench = [emulator, "made/nns-bench", "--runs", "1", "--warmup", "0", "made/net.nnm"]
    done = subprocess.run(bench, check=True, capture_output=True, timeout=60)
    assert json.loads(done.stdout)["models"][0]["p50_ms"] > 0
