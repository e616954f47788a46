#!/usr/bin/env bash
# Builds the environment of framework=tensorflow and framework=keras in .envs/tensorflow: TensorFlow 2.15 (the last one with
# Keras 2, which Horovod's optimisers need), mpi4py, Horovod. Does nothing if the environment is up to date. Settings: see
# common.sh.
#
# VARIANT=cuda (CUDA 12.2, libraries from PyPI) is untested.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

begin tensorflow 9 11
if [ "$VARIANT" = cuda ]; then
  install 'tensorflow[and-cuda]' numpy pillow
else
  install tensorflow-cpu numpy pillow
fi
install_mpi
install_horovod TENSORFLOW
export TF_CPP_MIN_LOG_LEVEL=2
finish tensorflow horovod.tensorflow horovod.keras horovod.tensorflow.keras
