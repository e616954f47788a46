#!/usr/bin/env bash
# Builds the environment of framework=pytorch in .envs/pytorch: PyTorch, mpi4py, Horovod, and with DALI=1 NVIDIA DALI. Run it
# again at will: it does nothing when the recipe has not changed. Settings: see common.sh.
#
# VARIANT=cuda has been compiled, and has not run on a GPU yet; with DALI=1 it has not been tried at all.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ -z "${DALI:-}" ]; then
  if compgen -G "$project/.envs/pytorch/lib/python3*/site-packages/nvidia/dali" >/dev/null; then DALI=1; else DALI=0; fi
fi
one_of DALI 0 1
extras=DALI=$DALI
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
if [ "$DALI" = 1 ]; then
  install nvidia-dali-cuda130
  "$target/bin/python" -c 'import nvidia.dali.fn' || fail "NVIDIA DALI cannot be loaded in $target; the reason stands above"
fi
finish torch horovod.torch
