#!/usr/bin/env bash
# Builds the environment of framework=jax in .envs/jax: JAX, mpi4py. Does nothing if the environment is up to date.
# Settings: see common.sh.
#
# VARIANT=cuda (CUDA 12, libraries from PyPI) is untested.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HOROVOD=0 # does not support JAX
begin jax 11
if [ "$VARIANT" = cuda ]; then
  install 'jax[cuda12]' numpy pillow
else
  install jax numpy pillow
fi
install_mpi
finish jax
