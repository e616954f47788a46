#!/usr/bin/env bash
# Demonstrates fault tolerance on a real, temporary Slurm cluster on this machine (root, Debian/Ubuntu): 3 virtual nodes
# with 4 declared GPUs each, a sweep over 1, 2, 4, 8 and 12 of them with gloo, a power failure of a node, the resumed study
# and its report. The cluster is always removed afterwards; results/demo-cluster stays.
#
# The nodes share the cores of this machine, so all results are flagged as oversubscribed: no scaling results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=.venv/bin/python
STUDY=results/demo-cluster
CLUSTER_DIR=$(mktemp -d "${TMPDIR:-/tmp}/harness-demo-XXXXXX")
export CLUSTER_DIR CLUSTER_PORT=${CLUSTER_PORT:-16900} CLUSTER_NODES=3 CLUSTER_GPUS=4

say() { printf '\n--- %s\n' "$*"; }
node() { sbatch/slurm-cluster.sh "$@"; }

tear_down() {
  trap - EXIT INT TERM
  [ -z "${watching:-}" ] || kill "$watching" 2>/dev/null || true
  node down
  rm -rf "$CLUSTER_DIR"
}
trap tear_down EXIT
trap 'exit 130' INT TERM

say "a Slurm cluster of 3 nodes with 4 declared GPUs each"
rmdir "$CLUSTER_DIR" # `up` creates it
up=$(node up)
eval "$up"
sinfo
[ ! -e "$STUDY" ] || say "$STUDY is there already: what it has is not run again"

say "the sweep: submitted, and not waited for"
sweep=(-m harness -m gpus=1,2,4,8,12 cluster=slurm +experiment=demo_cluster)
"$PYTHON" "${sweep[@]}" wait=false

say "when the 12-GPU run, on all three nodes, has trained for a while, the power of node n3 is cut"
steps() { cat "$STUDY"/runs/*-12gpu-*/attempt-1/events.rank0.jsonl 2>/dev/null | grep -c '"ev":"steps"' || true; }
gone() { ! squeue --me --noheader | grep -q .; }
for ((i = 0; i < 1200; i++)); do
  [ "$(steps)" -lt 4 ] || break
  ! gone || break
  sleep 0.5
done
if gone; then
  echo "nothing is running any more: all of it was done before, so no node is killed"
else
  node node-kill n3
  "$PYTHON" -m harness.status "$STUDY"
  say "n3 comes back; Slurm and the run find out by themselves"
  node node-back n3
fi

say "the same command again: it finds what is queued or running, runs what is missing, and waits"
"$PYTHON" "${sweep[@]}"
"$PYTHON" -m harness.status "$STUDY"

say "the report"
"$PYTHON" -m analysis "$STUDY"
