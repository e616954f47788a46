#!/usr/bin/env bash
# Builds the environment of tests/workloads in .envs/workloads: other people's libraries for training, on the CPU build of
# PyTorch. Does nothing if the environment is up to date.
#
#   PYTHON=/path/to/python3.12 sbatch/env/workloads.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
name=workloads target=$envs/workloads

use_python "the environment of tests/workloads" 11
recipe=$(recipe_of "" "$here/workloads.sh" "$here/workloads.constraints.txt")
if up_to_date "$target" "$recipe"; then exit 0; fi

echo "building the environment of tests/workloads in $target"
make_venv "$target"
torch="torch==$(pinned torch)+cpu"
install "$torch" || install "$torch" --extra-index-url https://download.pytorch.org/whl/cpu
install lightning transformers accelerate deepspeed setuptools pandas plotly pydot
install --no-deps HolisticTraceAnalysis # which would bring JupyterLab
"$target/bin/python" -c 'import accelerate, hta.trace_analysis, lightning, transformers'
echo "$recipe" >"$target/recipe"
