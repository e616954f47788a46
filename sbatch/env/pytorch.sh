#!/usr/bin/env bash
# Builds the environment of framework=pytorch in .envs/pytorch. Run it again at will: it does nothing when the recipe
# (this file, its constraints, the interpreter) has not changed.
#
#   sbatch/env/pytorch.sh            CUDA build where nvidia-smi lists a GPU, else the CPU build
#   VARIANT=cpu|cuda sbatch/env/pytorch.sh
#   PYTHON=/path/to/python3.12 sbatch/env/pytorch.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
target=$project/.envs/pytorch
version=2.13.0

if [ -z "${VARIANT:-}" ]; then
  if nvidia-smi -L >/dev/null 2>&1; then VARIANT=cuda; else VARIANT=cpu; fi
fi
case $VARIANT in cpu | cuda) ;; *) fail "VARIANT=$VARIANT: take cpu or cuda" ;; esac

recipe=$(recipe_of "$here/pytorch.sh" "$here/pytorch.constraints.txt")
up_to_date "$target" "$recipe" && exit 0

check_python
echo "building environment pytorch ($VARIANT, torch $version) in $target"
"$python" -m venv --clear "$target"
install() {
  "$target/bin/python" -m pip install --quiet --disable-pip-version-check -c "$here/pytorch.constraints.txt" "$@"
}
if [ "$VARIANT" = cuda ]; then
  install "torch==$version" numpy pillow
elif ! install "torch==$version+cpu" numpy pillow; then
  # '+cpu' and never a bare version: that could be a build with gigabytes of CUDA.
  echo "pip's own indexes have no CPU build of torch $version; trying the PyTorch project's"
  install "torch==$version+cpu" numpy pillow --extra-index-url https://download.pytorch.org/whl/cpu
fi
"$target/bin/python" -c 'import torch, numpy, PIL; print("torch", torch.__version__)'
echo "$recipe" >"$target/recipe"
