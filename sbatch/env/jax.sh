#!/usr/bin/env bash
# Builds the environment of framework=jax in .envs/jax: JAX, mpi4py. Run it again at will: it does nothing when the recipe has not
# changed. Settings: see common.sh.
#
# VARIANT=cuda (CUDA 12, its libraries from PyPI) has not been tried: it needs a GPU.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

HOROVOD=0 # has nothing for JAX
begin jax 11
if [ "$VARIANT" = cuda ]; then
  install 'jax[cuda12]' numpy pillow
else
  install jax numpy pillow
fi
install_mpi
finish jax
