#!/usr/bin/env bash
# Builds the environment of framework=mxnet in .envs/mxnet: MXNet, mpi4py, Horovod. Run it again at will: it does nothing when
# the recipe has not changed. Settings: see common.sh.
#
# VARIANT=cuda has not been tried: it needs a GPU. MXNet ends at CUDA 11.7, which knows no GPU newer than Ampere (A100); it takes
# that CUDA, cuDNN 8, NCCL and the GPU's driver from the machine (modules), already to be built.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

begin mxnet 8 11
if [ "$VARIANT" = cuda ]; then
  install mxnet-cu117 numpy pillow
else
  install mxnet numpy pillow
fi
install_mpi
install_horovod MXNET
finish mxnet horovod.mxnet
