#!/usr/bin/env bash
# Builds the login node's environment in .venv: harness, analysis, and the requirements of tests and linters.
# Contains no deep-learning framework. Does nothing if the environment is up to date.
#
#   PYTHON=/path/to/python3.12 sbatch/env/login.sh
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
target=$project/.venv

use_python "the harness" 11
recipe=$(recipe_of "" "$here/login.sh" "$here/login.constraints.txt" "$project/pyproject.toml")
if up_to_date "$target" "$recipe"; then exit 0; fi

echo "building the login node's environment in $target"
make_venv "$target"
# Editable, so that changes to this checkout take effect at once.
"$target/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c "$here/login.constraints.txt" --editable "${project}[test,docs,tensorboard,mlflow]"
echo "$recipe" >"$target/recipe"
