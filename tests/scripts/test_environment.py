"""Tests for `scripts/_environment.sh`: how a failed step of the set-up is reported, and what tests cannot check without it."""

import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

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


def prepared(tmp_path: Path, function: str, programs: dict[str, str]) -> str:
    """What a function says, and the notes it leaves for the summary, where only these programs and basic ones are installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "grep", "mktemp", "rm", "sed", "sh", "tail", "cat"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, script in {"id": "echo 0", **programs}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    script = f'set -euo pipefail; root=$1; source "$2"; {function}; printf "summary: %s\\n" "${{unchecked[@]-}}"'
    command = ["bash", "-c", script, "bash", str(tmp_path), str(ENVIRONMENT)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={"PATH": str(folder), "LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BROKEN_APT = {"apt-get": "echo no network >&2; exit 100", "apt-cache": "exit 0", "sudo": 'exec "$@"'}


def test_an_ssh_server_that_cannot_be_unpacked_is_told_in_the_summary(tmp_path: Path) -> None:
    programs = {**BROKEN_APT, "dpkg-deb": "exit 1", "ssh": "exit 0"}
    said = prepared(tmp_path, "prepare_ssh_server", programs)
    assert "Unpacking OpenSSH's server for tests … failed" in said
    assert "summary: not checked: targets over ssh" in said
    assert "apt-get download openssh-server" in said
    unpacked = tmp_path / ".venv" / "openssh-server" / "usr" / "sbin" / "sshd"
    unpacked.parent.mkdir(parents=True)
    unpacked.touch(0o755)
    shutil.rmtree(tmp_path / "bin")
    assert prepared(tmp_path, "prepare_ssh_server", programs) == "summary: \n"


INTEL = ("intel-opencl-rt==1", "intel-cmplr-lib-rt==2", "tbb==3")


def write_python(tmp_path: Path, script: str) -> None:
    """Puts a program in the place of the environment's Python."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def test_intels_driver_is_installed_once_for_every_version(tmp_path: Path) -> None:
    """The packages' files go where pip has to put them."""
    constraints = tmp_path / "constraints.txt"
    programs = {"uname": "echo x86_64"}
    constraints.write_text("\n".join(INTEL))
    folder = tmp_path / ".venv" / "intel-opencl"
    library = folder / "lib" / "libintelocl.so"
    write_python(
        tmp_path, f'echo "$@" >>{tmp_path}/calls; /bin/mkdir -p {library.parent}; : >{library}; : >{library}.1'
    )
    said = prepared(tmp_path, "prepare_intel_driver", programs)
    assert "Installing Intel's OpenCL driver for tests (intel-opencl-rt, under Intel's licence) … done" in said
    assert said.endswith("summary: \n")
    assert [path.name for path in sorted(library.parent.iterdir())] == [library.name]
    shutil.rmtree(tmp_path / "bin")
    assert prepared(tmp_path, "prepare_intel_driver", programs) == "summary: \n"
    constraints.write_text("\n".join((*INTEL[:2], "tbb==4")))
    shutil.rmtree(tmp_path / "bin")
    assert "done" in prepared(tmp_path, "prepare_intel_driver", programs)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert f"--prefix {folder} -c {constraints} intel-opencl-rt intel-cmplr-lib-rt tbb" in calls[0]


@pytest.mark.parametrize(("machine", "is_tried"), [("x86_64", True), ("aarch64", False)])
def test_intels_driver_that_cannot_be_had_is_in_the_summary(tmp_path: Path, machine: str, is_tried: bool) -> None:
    (tmp_path / "constraints.txt").write_text("\n".join(INTEL))
    write_python(tmp_path, f"/bin/mkdir -p {tmp_path}/.venv/intel-opencl; echo no network >&2; exit 1")
    said = prepared(tmp_path, "prepare_intel_driver", {"uname": f"echo {machine}"})
    assert ("… failed" in said) == is_tried
    assert (
        "summary: not checked: kernels on Intel's OpenCL driver: it is for x86-64, and its packages (intel-opencl-rt"
        in said
    )
    assert not (tmp_path / ".venv" / "intel-opencl").exists()


@pytest.mark.parametrize(
    ("programs", "is_checked"),
    [
        ({"llvm-mca": "echo 'Debian LLVM version 14.0.6'", **BROKEN_APT}, False),
        ({"llvm-mca": "echo 'Debian LLVM version 19.1.7'"}, True),
        ({"llvm-mca-22": "exit 0"}, True),
        ({}, False),
    ],
)
def test_an_llvm_mca_that_is_missing_or_too_old_is_told_in_the_summary(
    tmp_path: Path, programs: dict[str, str], is_checked: bool
) -> None:
    said = prepared(tmp_path, "prepare_processor_models", programs)
    assert ("Installing llvm-mca (llvm-22) … failed" in said) == ("apt-get" in programs)
    assert said.endswith("summary: \n") == is_checked
    assert ("summary: not checked: the throughput of ARM kernels: llvm-mca 17 or later" in said) != is_checked


def test_an_llvm_mca_that_can_be_installed_is(tmp_path: Path) -> None:
    install = f'case "$*" in *install*llvm-22*) printf "#!/bin/sh\\n" >{tmp_path}/bin/llvm-mca-19; '
    apt = {
        **BROKEN_APT,
        "apt-get": f"{install}/bin/chmod +x {tmp_path}/bin/llvm-mca-19 ;; esac",
        "env": 'shift; exec "$@"',
    }
    assert "summary: \n" in prepared(tmp_path, "prepare_processor_models", apt)


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_browser_is_taken_or_installed_or_told_in_the_summary(tmp_path: Path, name: str) -> None:
    assert prepared(tmp_path, "prepare_browser", {name: "exit 0"}) == "summary: \n"
    shutil.rmtree(tmp_path / "bin")
    said = prepared(tmp_path, "prepare_browser", BROKEN_APT)
    assert "summary: not checked: reports in a browser: Chromium is missing" in said
    shutil.rmtree(tmp_path / "bin")
    install = f'case "$*" in *install*chromium*) printf "#!/bin/sh\\n" >{tmp_path}/bin/{name}; '
    apt = {"apt-get": f"{install}/bin/chmod +x {tmp_path}/bin/{name} ;; esac", "env": 'shift; exec "$@"'}
    said = prepared(tmp_path, "prepare_browser", apt)
    is_ubuntu = "ID=ubuntu" in Path("/etc/os-release").read_text().splitlines()
    assert said.endswith("summary: \n") != is_ubuntu


def test_a_python_that_is_too_old_is_told_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    (folder / "python3").write_text('#!/bin/sh\ncase "$*" in *"(3, 11)"*) exit 1 ;; esac\n')  # as 3.10 answers
    (folder / "python3").chmod(0o755)
    command = ["bash", "-c", f'set -euo pipefail; root={tmp_path}; source "{ENVIRONMENT}"; make_venv']
    environment = {"PATH": str(folder), "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no Python 3.11 or newer was found; install one")
    assert not (tmp_path / ".venv").exists()


def test_pinned_packages_run_on_every_python_that_the_project_runs_on() -> None:
    """With one that refuses Debian 12's 3.11.2, pip tries other combinations for an hour before it gives up."""
    stated = re.search(r'requires-python = ">=([\d.]+)"', (ENVIRONMENT.parents[1] / "pyproject.toml").read_text())
    assert stated
    oldest = f"{stated[1]}.0"
    pins = (ENVIRONMENT.parents[1] / "constraints.txt").read_text()
    names = [canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE)]
    wanted = {canonicalize_name(one.name): one.metadata["Requires-Python"] or "" for one in distributions()}
    assert {"numpy", "torch", "soupsieve"} <= wanted.keys() & set(names)
    refusing = {name: wanted[name] for name in names if not SpecifierSet(wanted.get(name, "")).contains(oldest)}
    assert not refusing


def test_without_root_and_without_opencl_the_next_step_is_said(tmp_path: Path) -> None:
    programs = {"id": "echo 1000", "sudo": "exit 1", "apt-get": "echo called >&2; exit 1"}
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    said = prepared(tmp_path, "prepare_opencl", programs)
    assert "No OpenCL driver works here" in said
    assert "apt-get install pocl-opencl-icd" in said
    assert "Installing" not in said
