# What the environment builders share. Sourced by them; sets `project` and `python`.
# shellcheck shell=bash disable=SC2034
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}

fail() {
  echo "error: $*" >&2
  exit 1
}

check_python() {
  command -v "$python" >/dev/null || fail "no $python on the PATH; set PYTHON to an interpreter of version 3.11 or newer"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" -V) is too old; set PYTHON to an interpreter of version 3.11 or newer"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian/Ubuntu: apt-get install python3-venv"
}

# A key of everything that an environment is made from: its files, the interpreter, and where it lies.
recipe_of() {
  { cat "$@" && "$python" -V && echo "$project ${VARIANT:-}"; } | sha256sum | cut -c1-16
}

up_to_date() {
  [ "$(cat "$1/recipe" 2>/dev/null)" = "$2" ] && echo "up to date: $1"
}
