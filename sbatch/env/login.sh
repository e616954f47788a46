#!/usr/bin/env bash
# Builds the login node's environment in .venv: harness, analysis, and the requirements of tests and linters.
# Contains no deep-learning framework. Does nothing if the environment is up to date.
#
#   PYTHON=/path/to/python3.12 sbatch/env/login.sh
#   EXTRAS=test,docs                 optional dependencies of pyproject.toml; default: all that tests and linters need;
#                                    keep: none, or all if the environment has them
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
target=$project/.venv

use_python "the harness" 11
extras=${EXTRAS-test,docs,tensorboard,mlflow}
if [ "$extras" = keep ]; then
  extras=$(cat "$target/extras" 2>/dev/null || true)
fi
recipe=$(recipe_of "$extras" "$here/login.sh" "$here/login.constraints.txt" "$project/pyproject.toml")
if up_to_date "$target" "$recipe"; then exit 0; fi

echo "building the login node's environment in $target"
make_venv "$target"
# Editable, so that changes to this checkout take effect at once.
"$target/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c "$here/login.constraints.txt" --editable "$project${extras:+[$extras]}"
echo "$extras" >"$target/extras"
echo "$recipe" >"$target/recipe"
