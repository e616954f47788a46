#!/usr/bin/env bash
# Builds the environment of framework=pytorch in .envs/pytorch. Run it again at will: it does nothing when the recipe
# (this file and its constraints) has not changed.
#
#   sbatch/env/pytorch.sh            CUDA build where nvidia-smi lists a GPU, else the CPU build
#   VARIANT=cpu|cuda sbatch/env/pytorch.sh
#   PYTHON=/path/to/python3.12 sbatch/env/pytorch.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname "$(dirname "$here")")
target=$project/.envs/pytorch
python=${PYTHON:-python3}
version=2.13.0
fail() { echo "error: $*" >&2; exit 1; }

if [ -z "${VARIANT:-}" ]; then
  if nvidia-smi -L >/dev/null 2>&1; then VARIANT=cuda; else VARIANT=cpu; fi
fi
case $VARIANT in cpu | cuda) ;; *) fail "VARIANT=$VARIANT: take cpu or cuda" ;; esac

command -v "$python" >/dev/null || fail "no $python on the PATH; set PYTHON to an interpreter of version 3.11 or newer"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$python cannot make virtual environments; on Debian/Ubuntu: apt-get install python3-venv"

recipe=$(cat "$here/pytorch.sh" "$here/pytorch.constraints.txt" <(echo "$VARIANT") <("$python" -V) | sha256sum | cut -c1-16)
if [ "$(cat "$target/recipe" 2>/dev/null)" = "$recipe" ]; then
  echo "environment pytorch ($VARIANT) is up to date: $target"
  exit 0
fi

echo "building environment pytorch ($VARIANT, torch $version) in $target"
"$python" -m venv --clear "$target"
install() { "$target/bin/python" -m pip install --quiet --disable-pip-version-check -c "$here/pytorch.constraints.txt" "$@"; }
if [ "$VARIANT" = cuda ]; then
  install "torch==$version" numpy pillow
else
  # '+cpu' and never a bare version: that could be a build with gigabytes of CUDA. First from the indexes that pip is
  # set up with, then from the PyTorch project's own.
  install "torch==$version+cpu" numpy pillow 2>/dev/null ||
    install "torch==$version+cpu" numpy pillow --extra-index-url https://download.pytorch.org/whl/cpu
fi
"$target/bin/python" -c 'import torch, numpy, PIL; print("torch", torch.__version__)'
echo "$recipe" >"$target/recipe"
