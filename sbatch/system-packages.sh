#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that environments, tests and demonstrations need besides Python. Prints what it
# installs; does nothing if everything is there.
#
#   sbatch/system-packages.sh [SET ...]
#     slurm            (the default) what sbatch/slurm-cluster.sh needs, and an MPI
#     compiler         g++ and make, and the header files of the interpreter PYTHON (python3), to compile Horovod
#     browser          Chromium, for the tests of the HTML report
#     latex            LaTeX, for the tests of the tables and the proposal
#     fashion-mnist    the Fashion-MNIST images, as Debian packages them
#
#   SYSTEM=0 in the environment: install nothing.
# If it may not install (SYSTEM=0, not root, not Debian/Ubuntu), it lists what is missing and succeeds: those tests are
# skipped, and sbatch/env reports what it lacks. A failed installation is an error.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

POLICY=/usr/sbin/policy-rc.d
POLICY_MARK="# written by system-packages.sh for the time of its installation"

main() {
  local set missing=() left_out=() why="" compiler=()
  if [ "${SYSTEM:-1}" = 0 ]; then
    why="SYSTEM=0"
  elif ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    why="this is not Debian or Ubuntu"
  elif [ "$(id -u)" != 0 ]; then
    why="not root"
  fi
  # Another one that is at work may be installing the same, and apt-get does not wait for the lists that it fetches.
  [ -n "$why" ] || { exec 9>/run/lock/harness-packages; flock 9; }
  for set in "${@:-slurm}"; do
    case $set in
      slurm) need "the tests marked 'cluster'." slurmctld slurmd slurm-client slurmdbd munge mariadb-server-core \
        mariadb-client-core libpmix2 openmpi-bin iproute2 util-linux procps ;;
      compiler)
        # A site may provide them in another way.
        command -v g++ >/dev/null || compiler+=(g++)
        command -v make >/dev/null || compiler+=(make)
        has_headers || compiler+=(python3-dev)
        need "Horovod, in the environments of sbatch/env." "${compiler[@]}"
        ;;
      browser) need "the tests that open the report in a browser." chromium fonts-dejavu-core ;;
      latex) need "the tests that set what is for LaTeX." texlive-latex-base texlive-latex-recommended ;;
      fashion-mnist) need "the tests that read the Fashion-MNIST images." dataset-fashion-mnist ;;
      *) die "unknown set '$set'; the sets are: slurm compiler browser latex fashion-mnist" ;;
    esac
  done
  if [ -z "$why" ]; then
    [ ${#missing[@]} = 0 ] || install
    link_pmix
  elif [ ${#missing[@]} -gt 0 ]; then
    say "$why: not installing ${missing[*]}; left out without them: ${left_out[*]}"
  elif [ "$why" = SYSTEM=0 ]; then
    say "SYSTEM=0: not installing anything; nothing is missing"
  fi
}

# need WHAT PACKAGE ...: records missing packages and WHAT needs them. A package may be provided by another one: Ubuntu
# 24.04 and Debian 13 rename libpmix2 to libpmix2t64.
need() {
  local package installed before=${#missing[@]}
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null | sed -n 's/^installed //p' |
    sed 's/([^)]*)//g' | tr -s ', ' '\n') || true
  for package in "${@:2}"; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
  done
  [ ${#missing[@]} = "$before" ] || left_out+=("$1")
}

has_headers() {
  local folder
  folder=$("${PYTHON:-python3}" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null) || true
  [ -e "$folder/Python.h" ]
}

install() {
  say "installing (apt-get, without recommended packages): ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  trap allow_services EXIT
  trap 'exit 1' INT TERM
  forbid_services
  apt-get -q -o DPkg::Lock::Timeout=120 update ||
    die "apt-get update failed (above): check the network and /etc/apt/sources.list, or set SYSTEM=0 to go on without"
  apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install ${missing[*]} (above); set SYSTEM=0 to go on without"
}

# The packages would start munge, slurmctld and others as services of this machine; the test cluster starts its own.
# Debian's way to prevent that is a policy-rc.d that returns 101, "forbidden". An existing one is kept, unless a killed run
# of this script left it.
forbid_services() {
  [ ! -e "$POLICY" ] || [ -n "$(policy_is_ours)" ] || return 0
  printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
  chmod 755 "$POLICY"
}
allow_services() { [ -z "$(policy_is_ours)" ] || rm -f "$POLICY"; }
policy_is_ours() { grep -lxsF "$POLICY_MARK" "$POLICY" || true; }

# Debian's Slurm loads libpmix.so, which only libpmix-dev provides; `srun --mpi=pmix` needs it.
link_pmix() {
  local library link
  for library in /usr/lib/*/pmix2/lib/libpmix.so.2; do # one folder per architecture
    link=${library%.2}
    [ -e "$library" ] || continue
    [ -e "$link" ] || { say "linking $link to libpmix.so.2, for srun --mpi=pmix"; ln -sfn libpmix.so.2 "$link"; }
  done
}

say() { echo "system-packages: $*"; }
die() { say "$*" >&2; exit 1; }

main "$@"
