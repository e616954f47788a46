#!/usr/bin/env bash
# Builds the environment of framework=mxnet in .envs/mxnet: MXNet, mpi4py, Horovod. Does nothing if the environment is up to
# date. Settings: see common.sh.
#
# MXNet's last CUDA version is 11.7, which supports no GPU newer than Ampere (A100). Its CUDA libraries, cuDNN 8 and NCCL come
# from PyPI; only the driver is the node's.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# MXNet cannot be imported without the GPU driver's library, which login nodes lack. A stub without GPUs replaces it during the
# build; without a compiler, the import at the end fails and says so.
stand_in_for_the_driver() {
  local folder
  if ldconfig -p | grep -q 'libcuda\.so\.1'; then return; fi
  folder=$(mktemp -d)
  trap "rm -rf '$folder'" EXIT
  nm -D --undefined-only "$(site_packages)/mxnet/libmxnet.so" |
    sed -n 's/^ *U \(cu[A-Z][A-Za-z0-9]*\)$/int \1(void) { return 999; }/p' | "$(compiler)" -shared -x c - -o "$folder/libcuda.so.1"
  export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

begin mxnet 8 11
if [ "$VARIANT" = cuda ]; then
  mapfile -t libraries < <(sed -n 's/^\(nvidia-.*-cu11\)==.*/\1/p' "$(constraints)")
  install mxnet-cu117 numpy pillow "${libraries[@]}"
  # MXNet looks for libraries only in its own folder.
  for library in "$(site_packages)"/nvidia/*/lib/*.so.*; do
    ln -sf "../${library#*/site-packages/}" "$(site_packages)/mxnet/"
  done
  stand_in_for_the_driver
else
  install mxnet numpy pillow
fi
install_mpi
install_horovod MXNET
finish mxnet horovod.mxnet
