#!/usr/bin/env bash
# Builds the environment of framework=pytorch in .envs/pytorch: PyTorch, mpi4py, Horovod. Run it again at will: it does nothing
# when the recipe has not changed. Settings: see common.sh.
#
# VARIANT=cuda has been compiled, and has not run on a GPU yet.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

begin pytorch 11
version=$(pinned torch)
if [ "$VARIANT" = cuda ]; then
  # '===': an index may have a build named +cpu besides, which '==' prefers.
  install "torch===$version" numpy pillow
elif ! install "torch==$version+cpu" numpy pillow; then
  # '+cpu' and never a bare version: that could be a build with gigabytes of CUDA.
  echo "pip's own indexes have no CPU build of torch $version; trying the PyTorch project's"
  install "torch==$version+cpu" numpy pillow --extra-index-url https://download.pytorch.org/whl/cpu
fi
install_mpi
install_horovod PYTORCH cxx17
finish torch horovod.torch
