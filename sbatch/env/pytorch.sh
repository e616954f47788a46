#!/usr/bin/env bash
# Builds the environment of framework=pytorch in .envs/pytorch: PyTorch, mpi4py, Horovod, and with DALI=1 NVIDIA DALI. Does
# nothing if the environment is up to date. Settings: see common.sh.
#
# CUDA=cu130 is PyPI's build. CUDA=cu126, needed for a V100, is in the PyTorch project's index; if that cannot be reached,
# PyPI has torch 2.10.0 (CUDA 12.8), its last version with kernels for a V100.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ -z "${DALI:-}" ]; then
  if compgen -G "$envs/pytorch/lib/python3*/site-packages/nvidia/dali" >/dev/null; then DALI=1; else DALI=0; fi
fi
one_of DALI 0 1
extras=DALI=$DALI
begin pytorch 11
version=$(pinned torch)
index=https://download.pytorch.org/whl
if [ "$CUDA" = cu130 ]; then
  # '===': '==' would prefer a build named +cpu, which an index may have too.
  install "torch===$version" numpy pillow
else
  # '+cpu' or '+cu126': a bare version would be PyPI's build, with CUDA 13.
  build=${CUDA/-/cpu}
  if ! install "torch==$version+$build" numpy pillow; then
    echo "pip's own indexes have no $build build of torch $version; trying the PyTorch project's"
    if ! install "torch==$version+$build" numpy pillow --extra-index-url "$index/$build"; then
      [ "$build" = cu126 ] || fail "$index/$build cannot be reached, or has no torch $version; the reason stands above"
      pins=$here/pytorch.cu126-pypi.constraints.txt
      echo "the PyTorch project's index cannot be reached, or has no such build (the reason stands above): taking torch" \
        "$(pinned torch) of PyPI instead, a CUDA 12.8 build, which has kernels for V100 too"
      install "torch===$(pinned torch)" numpy pillow
    fi
  fi
fi
install_mpi
install_horovod PYTORCH cxx17
if [ "$DALI" = 1 ]; then
  if [ "$CUDA" = cu126 ]; then install nvidia-dali-cuda120; else install nvidia-dali-cuda130; fi
  "$target/bin/python" -c 'import nvidia.dali.fn' || fail "NVIDIA DALI cannot be loaded in $target; the reason stands above"
fi
"$target/bin/python" - "$capabilities" <<'EOF' || fail "the environment in $target is not for these GPUs; the reason stands above"
import sys
import torch
kernels = [name[3:] for name in torch._C._cuda_getArchFlags().split()] if torch.version.cuda else []
for gpu in sys.argv[1].replace("-", "").split(",") if sys.argv[1] != "-" else []:
    major, minor = gpu.split(".")
    if not any(name[:-1] == major and name[-1] <= minor for name in kernels if name.isdigit()):
        sys.exit(f"torch {torch.__version__} has kernels for {' '.join(kernels)}, and none for compute capability {gpu}")
EOF
finish torch horovod.torch
