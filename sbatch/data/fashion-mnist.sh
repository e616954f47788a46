#!/usr/bin/env bash
# Extracts Fashion-MNIST from Debian's package dataset-fashion-mnist into a folder, without installing it.
# Needs no root. A complete folder is left unchanged. Elsewhere than on Debian and Ubuntu, `harness data` downloads it.
#
#   sbatch/data/fashion-mnist.sh [TARGET]      TARGET: default data/fashion-mnist under the project
set -euo pipefail

package=dataset-fashion-mnist
installed=/usr/share/datasets/fashion-mnist
files=(train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz)

case "${1-}" in
    -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
esac

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${1:-$project/data/fashion-mnist}

complete() { # FOLDER: whether all files exist and are complete
    local file
    for file in "${files[@]}"; do
        if ! gzip --test "$1/$file" 2>/dev/null; then return 1; fi
    done
}

if complete "$installed"; then
    echo "Fashion-MNIST is installed on this machine in $installed, where the harness finds it."
    exit 0
fi
if complete "$target"; then
    echo "Fashion-MNIST is complete in $target."
    exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    if [ -z "${1-}" ] && [ -x "$project/.venv/bin/python" ]; then
        cd "$project"
        exec .venv/bin/python -m harness.data fashion_mnist --root data
    fi
    echo "This machine has no apt-get and dpkg-deb; put ${files[*]}" \
        "from https://github.com/zalandoresearch/fashion-mnist (folder data/fashion) into $target." >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

apt_options=(-qq -o "APT::Sandbox::User=$(id -un)") # do not switch to user _apt, which may not write here
if ! apt-cache show "$package" >/dev/null 2>&1; then
    # Separate package lists need no root and leave the machine's lists unchanged.
    echo "The package lists of this machine do not have $package; fetching lists into a temporary folder."
    mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
    apt_options+=(-o "Dir::State::lists=$scratch/lists" -o "Dir::Cache=$scratch/cache")
    apt-get "${apt_options[@]}" update || true # a failure shows in the download below, which says what to do
fi

# apt-get download writes to the current folder.
if ! (cd "$scratch" && apt-get "${apt_options[@]}" download "$package"); then
    echo "apt-get could not download $package; on a machine without network, run this script on one that has it and" \
        "copy $target over, or put the files from https://github.com/zalandoresearch/fashion-mnist there." >&2
    exit 1
fi
dpkg-deb -x "$scratch/$package"_*.deb "$scratch/unpacked"

if ! complete "$scratch/unpacked$installed"; then
    echo "The package $package does not hold ${files[*]}; take them from" \
        "https://github.com/zalandoresearch/fashion-mnist (folder data/fashion) into $target." >&2
    exit 1
fi
mkdir -p "$target"
for file in "${files[@]}"; do
    mv -f "$scratch/unpacked$installed/$file" "$target/"
done
for file in README.md.gz copyright; do
    document=$scratch/unpacked/usr/share/doc/$package/$file
    if [[ -f $document ]]; then mv -f "$document" "$target/"; fi
done
echo "Fashion-MNIST is in $target."
