# Shell functions that set the project up; sourced by the other scripts, which set `root` to the repository first.
#
#   prepare_environment EXTRAS [COMMAND…]
#                                makes .venv and installs the project with these extras (commas between them);
#                                COMMAND runs beside the installation of torch and the extras
#   build_engine                 compiles the engine with low priority
#   prepare_opencl               makes sure that an OpenCL driver works, installing one where that is allowed;
#                                sets `opencl_works` to 1 or 0
#   prepare_other_drivers        installs OpenCL drivers that only tests use: Intel's into .venv, others if this user is root
#   prepare_emulator             installs an emulator of ARM processors where that is allowed
#   prepare_processor_models     installs llvm-mca with models of ARM cores where that is allowed
#   prepare_ssh_server           installs OpenSSH's client where that is allowed, and unpacks its server into .venv for tests
#   prepare_database             installs PostgreSQL for tests where that is allowed; no server is started
#   prepare_browser              installs Chromium, in which tests look at reports, where that is allowed
#
# What may be set from outside:
#   NNSTRETCH_PYTHON           the Python to make .venv with, where the one found would be the wrong one
#   NNSTRETCH_PIP_TORCH_ARGS   more options for the `pip install` of torch, such as an index with CPU builds: without
#                              one, pip takes what its own index offers, which may be a CUDA build of several GB

venv="$root/.venv"
venv_python="$venv/bin/python"
setup_log="$root/.venv-setup.log"
opencl_works=0
unchecked=()

say() { printf '%s\n' "$*"; }

# note_unchecked TEXT…: say what the tests cannot check here, and keep it in `unchecked` for a summary.
note_unchecked() {
    unchecked+=("not checked: $*")
    say "${unchecked[-1]}"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# Show seconds going by until the main shell stops this or ends; it runs beside a step, on terminals only.
tick() {
    local title=$1 start=$SECONDS
    while kill -0 $$ 2>/dev/null; do
        printf '\r%s … %d s' "$title" $((SECONDS - start))
        sleep 1
    done
}

# explain_failure TITLE STATUS: one line that says what to do, after the end of the log where it shows no known cause.
explain_failure() {
    local advice shown
    shown=$(tail -n 40 "$setup_log")
    case $shown in
        *'No space left on device'*) advice='the disk is full; free some space and run this again' ;;
        *NewConnectionError* | *NameResolutionError* | *'Max retries exceeded'* | *'Temporary failure resolving'* | \
            *'Network is unreachable'* | *ConnectTimeout* | *'Connection refused'*)
            advice='the network or the package index does not answer; check the connection, or name an index with'
            advice+=' PIP_INDEX_URL, and run this again'
            ;;
        *'pip older than 21.3'*) advice="pip is too old; run $venv_python -m pip install --upgrade pip, and this again" ;;
        *'Permission denied'* | *'Read-only file system'*) advice='a folder cannot be written; make it writable and run this again' ;;
        *)
            tail -n 20 "$setup_log" >&2
            advice="it ended with status $2"
            ;;
    esac
    printf 'error: "%s" failed: %s; its output is in %s\n' "$1" "$advice" "$setup_log" >&2
}

# step TITLE COMMAND…: run the command with one line on the screen and its output in the log.
step() {
    local title=$1 start=$SECONDS ticker='' status=0
    shift
    if [ -t 1 ]; then
        tick "$title" &
        ticker=$!
    else
        printf '%s … ' "$title"
    fi
    printf '\n$ %s\n' "$*" >>"$setup_log"
    "$@" >>"$setup_log" 2>&1 </dev/null || status=$?
    if [ -n "$ticker" ]; then
        kill "$ticker" 2>/dev/null
        wait "$ticker" 2>/dev/null || true
        printf '\r%s … ' "$title"
    fi
    if [ "$status" -ne 0 ]; then
        say "failed"
        explain_failure "$title" "$status"
        return 2
    fi
    say "done ($((SECONDS - start)) s)"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_install_system_packages() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null
}

install_system_packages() {
    as_root apt-get update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 \
            install -y --no-install-recommends "$@"
}

# Whether a command is a Python that the project runs on. A name in PATH proves nothing: version managers leave
# names there that only print an error.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Print a Python >= 3.11: the system's own one if it is new enough, and one that can make environments before one
# that cannot yet.
find_python() {
    local candidate chosen=''
    for candidate in ${NNSTRETCH_PYTHON:-python3 python3.13 python3.12 python3.11}; do
        is_new_enough "$candidate" || continue
        if has_venv "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        chosen=${chosen:-$candidate}
    done
    [ -n "$chosen" ] || return 1
    printf '%s\n' "$chosen"
}

make_venv() {
    local python version
    python=$(find_python) || fail "no Python 3.11 or newer was found${NNSTRETCH_PYTHON:+ as $NNSTRETCH_PYTHON};" \
        "install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name one with NNSTRETCH_PYTHON"
    if ! has_venv "$python"; then
        version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        can_install_system_packages ||
            fail "$python cannot make virtual environments; install $version-venv and run this again"
        step "Installing $version-venv" install_system_packages "$version-venv"
    fi
    step "Making .venv with $("$python" --version)" "$python" -m venv --clear "$venv"
}

venv_is_sound() {
    [ -x "$venv_python" ] && is_new_enough "$venv_python" && "$venv_python" -m pip --version >/dev/null 2>&1
}

# What the installed set depends on. The folder is part of it: an environment that was copied or moved still points
# at the old one.
environment_digest() {
    { printf '%s\n' "$root"; cat "$root/pyproject.toml" "$root/setup.py" "$root/constraints.txt"; } |
        "$venv_python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

# add_extras INSTALLED WANTED: print the two lists (commas between) as one, without what is there already.
add_extras() {
    local extra list=$1
    for extra in ${2//,/ }; do
        case ",$list," in
            *,all,* | *",$extra,"*) ;;
            *) list="${list:+$list,}$extra" ;;
        esac
    done
    printf '%s\n' "$list"
}

has_nvidia_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

install_torch() {
    local requirement
    requirement=$(grep -m 1 '^torch==' "$root/constraints.txt")
    if [ -z "${NNSTRETCH_PIP_TORCH_ARGS:-}" ] && ! has_nvidia_gpu &&
        ! "$venv_python" -m pip show --quiet torch 2>/dev/null; then
        say "No NVIDIA GPU was found: where pip's index has a CUDA build of torch only, NNSTRETCH_PIP_TORCH_ARGS can" \
            "name an index with CPU builds, which are smaller."
    fi
    # The options are words to be split.
    # shellcheck disable=SC2086
    step "Installing ${requirement/==/ }" "$venv_python" -m pip install --no-input \
        -c "$root/constraints.txt" ${NNSTRETCH_PIP_TORCH_ARGS:-} "$requirement"
}

# install_project TITLE REQUIREMENT
install_project() {
    step "Installing $1" "$venv_python" -m pip install --no-input -c "$root/constraints.txt" -e "$2"
}

# What fails here fails again, with a message, where the engine is used.
build_engine() {
    nice -n 10 "$venv_python" -c 'from nnstretch.devices.engine.build.engine_library import build_engine; build_engine()' \
        >/dev/null 2>&1 </dev/null
}

prepare_environment() {
    local extras stamp="$venv/nnstretch-stamp" digest='' old_digest='' old_extras=''
    if venv_is_sound; then
        digest=$(environment_digest)
        if [ -f "$stamp" ]; then
            { read -r old_digest && read -r old_extras; } <"$stamp" || true
        fi
    else
        : >"$setup_log"
        make_venv
        digest=$(environment_digest)
    fi
    extras=$(add_extras "$old_extras" "$1")
    [ "$digest" = "$old_digest" ] && [ "$extras" = "$old_extras" ] && return
    rm -f "$stamp"
    install_project 'nnstretch without extras' "$root"
    if [ $# -gt 1 ]; then
        "${@:2}" &
    fi
    install_torch
    install_project "nnstretch[$extras]" "$root[$extras]"
    printf '%s\n' "$digest" "$extras" >"$stamp"
}

probe_opencl() { "$venv_python" "$root/scripts/probe_opencl.py"; }

prepare_opencl() {
    local report
    if report=$(probe_opencl); then
        opencl_works=1
    elif can_install_system_packages; then
        step "Installing an OpenCL driver (pocl-opencl-icd)" install_system_packages pocl-opencl-icd || true
        if report=$(probe_opencl); then
            opencl_works=1
        fi
    fi
    [ -z "$report" ] || say "$report"
    if [ "$opencl_works" -eq 0 ]; then
        say "No OpenCL driver works here, so groups of CPU cores are the only processors. To have one, install your" \
            "GPU's driver or PoCL (Debian, Ubuntu: apt-get install pocl-opencl-icd) and run this again."
    fi
}

# Tests name the folders of these drivers themselves: none of them may become the machine's opencl:0.
prepare_other_drivers() {
    prepare_intel_driver
    prepare_system_drivers
}

# Intel's runtime for CPUs, which also runs on those of AMD: packages of Python's index (Intel's licence, 270 MB) with
# nothing but libraries, of which 430 MB are kept. Installed under a prefix of their own, they lie in one folder, where
# they find each other.
prepare_intel_driver() {
    local folder="$venv/intel-opencl" packages wanted status=0
    packages=(intel-opencl-rt intel-cmplr-lib-rt tbb)
    wanted=$(for package in "${packages[@]}"; do grep -m 1 "^$package==" "$root/constraints.txt" || true; done)
    if [ "$(cat "$folder/versions" 2>/dev/null)" != "$wanted" ] && [ "$(uname -m)" = x86_64 ]; then
        rm -rf "$folder"
        step "Installing Intel's OpenCL driver for tests (intel-opencl-rt, under Intel's licence)" \
            install_intel_driver "$folder" "${packages[@]}" || status=$?
        [ "$status" -ne 0 ] || printf '%s\n' "$wanted" >"$folder/versions"
    fi
    [ -f "$folder/versions" ] || note_unchecked "kernels on Intel's OpenCL driver: it is for x86-64, and its packages" \
        "(${packages[*]}) could not be installed into $folder"
}

# install_intel_driver FOLDER PACKAGE…
install_intel_driver() {
    local folder=$1
    "$venv_python" -m pip install --no-input --no-deps --ignore-installed --no-compile --prefix "$folder" \
        -c "$root/constraints.txt" "${@:2}" || { rm -rf "$folder"; return 1; }
    # Other names of the same files, and parts that OpenCL does not load.
    rm -rf "$folder"/lib/{icx-lto.so,libcommon_clang.so,libintelocl.so.*,libOpenCL.so*,libtbbbind*,python3*}
}

prepare_system_drivers() {
    local package file missing=() vendors=/etc/OpenCL/vendors before
    [ "$(id -u)" -eq 0 ] && can_install_system_packages || return 0
    for package in oclgrind mesa-opencl-icd; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    before=$(ls "$vendors" 2>/dev/null || true)
    step "Installing OpenCL drivers for tests (${missing[*]})" install_system_packages "${missing[@]}" || true
    for file in oclgrind.icd mesa.icd rusticl.icd; do
        grep -qxF "$file" <<<"$before" || rm -f "$vendors/$file"
    done
}

prepare_emulator() {
    if ! command -v qemu-aarch64-static >/dev/null && can_install_system_packages; then
        step "Installing an emulator (qemu-user-static)" install_system_packages qemu-user-static || true
    fi
}

# Whether there is an llvm-mca that scripts/engine/arm_throughput.py takes: version 17 or later.
has_processor_models() {
    local version
    for version in {17..40}; do
        ! command -v "llvm-mca-$version" >/dev/null || return 0
    done
    version=$(llvm-mca --version 2>/dev/null | sed -n 's/.*LLVM version \([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

prepare_processor_models() {
    local version
    has_processor_models && return
    if can_install_system_packages; then
        apt-cache show llvm-22 >/dev/null 2>&1 || as_root apt-get update >>"$setup_log" 2>&1 || true
        for version in 22 19 18 17; do
            apt-cache show "llvm-$version" >/dev/null 2>&1 || continue
            step "Installing llvm-mca (llvm-$version)" install_system_packages "llvm-$version" || true
            has_processor_models && return
        done
    fi
    note_unchecked "the throughput of ARM kernels: llvm-mca 17 or later is missing (Debian, Ubuntu: apt-get install llvm-22, or llvm-19)"
}

# Unpacked, not installed: an installed server is started by the system and listens to the network.
prepare_ssh_server() {
    local folder="$venv/openssh-server"
    if ! command -v ssh >/dev/null && can_install_system_packages; then
        step "Installing OpenSSH's client (openssh-client)" install_system_packages openssh-client || true
    fi
    if [ ! -x "$folder/usr/sbin/sshd" ] && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
        step "Unpacking OpenSSH's server for tests" unpack_packages "$folder" openssh-server libwrap0 libnss-wrapper || true
    fi
    command -v ssh >/dev/null && [ -x "$folder/usr/sbin/sshd" ] && return
    [ "$(id -u)" -eq 0 ] || ! PATH=$PATH:/usr/sbin:/sbin command -v sshd >/dev/null || return 0
    note_unchecked "targets over ssh: OpenSSH's client is missing, or its server could not be unpacked into $folder" \
        "(Debian, Ubuntu: apt-get install openssh-client; apt-get download openssh-server libwrap0 libnss-wrapper)"
}

# Tests start a server of their own: Debian's package is kept from starting one.
prepare_database() {
    local folder=/etc/postgresql-common/createcluster.d
    if ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && can_install_system_packages; then
        as_root mkdir -p "$folder" || return 0
        echo 'create_main_cluster = false' | as_root tee "$folder/nnstretch.conf" >/dev/null || return 0
        step "Installing a database for tests (postgresql)" install_system_packages postgresql || true
    fi
}

has_browser() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

# Ubuntu's packages of this name only fetch a snap, which cannot read the pages of tests.
prepare_browser() {
    has_browser && return
    if can_install_system_packages && ! grep -qx 'ID=ubuntu' /etc/os-release 2>/dev/null; then
        step "Installing a browser for tests (chromium)" install_system_packages chromium || true
        has_browser && return
    fi
    note_unchecked "reports in a browser: Chromium is missing (Debian: apt-get install chromium)"
}

# unpack_packages FOLDER PACKAGE…: the files of Debian packages in a folder, which appears if all of them are there.
unpack_packages() {
    local folder=$1 packages status=0
    shift
    packages=$(mktemp -d)
    (
        cd "$packages" &&
            { apt-get download "$@" || { as_root apt-get update && apt-get download "$@"; }; } &&
            find . -name '*.deb' -exec dpkg-deb -x {} files \; &&
            rm -rf "$folder" && mv files "$folder"
    ) || status=$?
    rm -rf "$packages"
    return "$status"
}
