#!/usr/bin/env bash
# Builds the login node's environment in .venv: the harness, the analysis, and what the tests and linters need.
# It holds no deep-learning framework. Run it again at will: it does nothing when the recipe has not changed.
#
#   PYTHON=/path/to/python3.12 sbatch/env/login.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
target=$project/.venv

recipe=$(recipe_of "$here/login.sh" "$here/login.constraints.txt" "$project/pyproject.toml")
up_to_date "$target" "$recipe" && exit 0

check_python
echo "building the login node's environment in $target"
"$python" -m venv --clear "$target"
# Editable: the program is this checkout, as it is edited.
"$target/bin/python" -m pip install --quiet --disable-pip-version-check \
  -c "$here/login.constraints.txt" --editable "$project[test]"
echo "$recipe" >"$target/recipe"
