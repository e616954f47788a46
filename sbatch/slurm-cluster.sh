#!/usr/bin/env bash
# A real, temporary Slurm cluster of virtual nodes on this machine, for tests and demonstrations.
# Needs root and the packages of sbatch/system-packages.sh. Touches nothing outside its state folder.
#
#   eval "$(sbatch/slurm-cluster.sh up)"   start everything and point this shell at it; then: sinfo, sbatch, sacct, ...
#   sbatch/slurm-cluster.sh down           stop everything; logs and accounting stay in the state folder
#   sbatch/slurm-cluster.sh env            print the `export SLURM_CONF=...` of a running cluster
#   sbatch/slurm-cluster.sh status         list daemons and nodes; exit status 1 unless all are running
#   node-kill nX     power failure: slurmd and all tasks die at once; slurmctld notices after about 30 s
#   node-fail nX     power failure reported to slurmctld, so that the jobs end at once
#   node-start nX    power on; after slurmd-kill, restart slurmd next to the tasks that are still running
#   node-back nX     power on and wait until the node accepts jobs
#   slurmd-kill nX   kill only the daemon; tasks keep running
#   ctld-stop | ctld-start | dbd-stop | dbd-start      the controller, the accounting daemon
#
# Environment variables; `up` reads all of them, the other commands only CLUSTER_DIR:
#   CLUSTER_DIR         state folder, at most 60 characters      ${TMPDIR:-/tmp}/harness-slurm-$UID
#   CLUSTER_NODES       nodes n1, n2, ...                        3
#   CLUSTER_CPUS        CPUs of a node (declared, not real)      8
#   CLUSTER_MEM_MB      memory of a node in MB (declared)        64000
#   CLUSTER_GPUS        GPUs of a node (declared), 0 for none    4
#   CLUSTER_GPU_TYPE    their type                               v100
#   CLUSTER_PORT        first port: +0 slurmctld, +1 slurmdbd, +10+i slurmd of node i       16800
#   CLUSTER_EXTRA_CONF  additional lines for slurm.conf; the last of duplicate settings wins
#
# Partitions: `main` (the default; its jobs can be preempted and requeued) and `high` (preempts `main`).
# The nodes share this machine's file system and network, including ports. Each has its own host name, /etc/hosts, /proc,
# /dev/shm, IPC and PID namespace. Clusters with different folders and ports can run at the same time.
set -euo pipefail
shopt -s nullglob
umask 022
PATH=$PATH:/usr/sbin:/sbin
unset "${!SLURM_@}" "${!SBATCH_@}" # ignore the caller's own cluster

DIR=${CLUSTER_DIR:-${TMPDIR:-/tmp}/harness-slurm-$UID}
NODES=${CLUSTER_NODES:-3} CPUS=${CLUSTER_CPUS:-8} MEM_MB=${CLUSTER_MEM_MB:-64000}
GPUS=${CLUSTER_GPUS:-4} GPU_TYPE=${CLUSTER_GPU_TYPE:-v100} PORT=${CLUSTER_PORT:-16800}
ETC=$DIR/etc RUN=$DIR/run LOG=$DIR/log
MARK=$DIR/.slurm-cluster # identifies a state folder; locked while in use
export SLURM_CONF=$ETC/slurm.conf

main() {
  case ${1:-} in
    up) need_root; prepare_folder; lock; up ;;
    down) need_root; [ -e "$MARK" ] || { say "nothing to stop: there is no cluster in $DIR"; exit 0; }; lock; down ;;
    env) need_up; show_env ;;
    status) need_up; status ;;
    node-start | node-kill | node-fail | node-back | slurmd-kill) control; need_node "$@"; "${1//-/_}" "$2" ;;
    ctld-start) control; start_slurmctld ;;
    ctld-stop) control; stop slurmctld ;;
    dbd-start) control; start_slurmdbd ;;
    dbd-stop) control; stop slurmdbd ;;
    *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
  esac
}

up() {
  local i
  if [ -e "$RUN/up" ] && alive slurmctld; then
    say "already up in $DIR, with the settings it was started with"; show_env; return
  fi
  check_requirements
  down 2>/dev/null # clean up after a crashed `up`
  check_ports      # after the cleanup, which frees ports
  trap 'exit 1' INT TERM
  trap down EXIT # on any error from here on, stop everything
  rm -rf "$DIR/spool" "$DIR/tmp" "$LOG"
  mkdir -p "$LOG" "$DIR/state"
  write_configuration
  start_munged
  start_mariadbd
  start_slurmdbd
  [ -n "$(sacctmgr -n show cluster harness)" ] || sacctmgr -i add cluster harness >/dev/null
  # -c drops the jobs of an earlier `up` (and ends them in the accounting) but continues its job ids.
  start_slurmctld -c
  for ((i = 1; i <= NODES; i++)); do node_start "n$i"; done
  wait_for 60 nodes_idle || fail_with_log "slurmd-n1" "the $NODES nodes did not become idle within 60 s"
  touch "$RUN/up"
  trap - EXIT INT TERM
  say "$NODES nodes with $GPUS x $GPU_TYPE each are idle after $SECONDS s; state folder $DIR"
  show_env
}

show_env() { echo "export SLURM_CONF=$SLURM_CONF"; }

down() {
  local name
  rm -f "$RUN/up"
  for name in "$RUN"/node-*.pid; do name=${name##*/node-}; node_kill "${name%.pid}"; done
  for name in slurmctld slurmdbd mariadb-install-db mariadbd munged; do stop "$name"; done
}

status() {
  local name all=0
  for name in munged mariadbd slurmdbd slurmctld $(cluster_nodes | sed 's/^/slurmd-/'); do
    if alive "$name"; then echo "$name runs"; else echo "$name does not run"; all=1; fi
  done
  ! alive slurmctld || sinfo
  return $all
}

# --- requirements -------------------------------------------------------------------------------------------------------------
need_root() { [ "$(id -u)" = 0 ] || die "only root can do this, it takes daemons and namespaces: sudo $0 ..."; }
need_up() { [ -e "$RUN/up" ] || die "no cluster is up in $DIR: start one with '$0 up', or set CLUSTER_DIR to its folder"; }
need_node() { cluster_nodes | grep -qx "${2:-}" || die "$1 '${2:-}': no such node; this cluster has $(cluster_nodes | xargs)"; }
control() { need_root; need_up; lock; }
lock() { exec 9>"$MARK"; flock -w 180 9 || die "another $0 has been at work in $DIR for 180 s"; }

prepare_folder() {
  # Job step sockets, $DIR/spool/n250/n250_67000000.4294967291 for example, must not exceed 107 characters.
  [ ${#DIR} -le 60 ] || die "the state folder $DIR has ${#DIR} characters, at most 60 fit: set CLUSTER_DIR to a shorter path"
  [[ $DIR =~ ^/[A-Za-z0-9._/+-]+$ ]] || die "the state folder '$DIR' must be an absolute path of letters, digits and . _ + - /"
  mkdir -p "$DIR"
  [ -O "$DIR" ] || die "the state folder $DIR belongs to somebody else: set CLUSTER_DIR to another one"
  # `up` deletes folders in it, so refuse mistakes such as CLUSTER_DIR=/var.
  [ -e "$MARK" ] || [ -z "$(ls -A "$DIR")" ] ||
    die "$DIR is not empty and not a cluster's state folder: set CLUSTER_DIR to another one"
  touch "$MARK"
  chmod 755 "$DIR" # munged requires that everyone can reach its socket
  mkdir -p "$ETC" "$RUN" "$LOG"
}

check_requirements() {
  local program missing=() number
  for number in NODES CPUS MEM_MB GPUS PORT; do
    [[ ${!number} =~ ^(0|[1-9][0-9]{0,7})$ ]] || die "CLUSTER_$number='${!number}' is not a number"
  done
  [[ $NODES -ge 1 && $NODES -le 250 && $CPUS -ge 1 ]] || die "CLUSTER_NODES=$NODES must be 1 to 250, CLUSTER_CPUS=$CPUS at least 1"
  [[ $PORT -ge 1024 && $((PORT + 10 + NODES)) -le 65535 ]] || die "CLUSTER_PORT=$PORT must be 1024 to $((65525 - NODES))"
  for program in slurmctld slurmd slurmdbd munged munge mariadbd mariadb-install-db mariadb sbatch scontrol sacctmgr \
    unshare nsenter ip ss ps flock; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  [ ${#missing[@]} = 0 ] || die "programs missing: ${missing[*]}; install them with sbatch/system-packages.sh (root, Debian/Ubuntu)"
  unshare --uts --ipc --mount --pid --fork --mount-proc true 2>/dev/null ||
    die "this machine lets root make no namespaces, which the nodes need: in a container, give it CAP_SYS_ADMIN (docker run --privileged)"
}

check_ports() {
  local taken
  taken=$(ss -Hltn "( sport = :$PORT or sport = :$((PORT + 1)) or ( sport > :$((PORT + 10)) and sport <= :$((PORT + 10 + NODES)) ) )" |
    awk '{print $4}' | xargs)
  [ -z "$taken" ] || die "ports are taken by somebody else: $taken; set CLUSTER_PORT (now $PORT) to another first port"
}

# --- configuration ------------------------------------------------------------------------------------------------------------
address() { echo "127.0.1.$1"; } # all of 127.0.0.0/8 is local
cluster_nodes() { sed -n 's/^NodeName=\(n[0-9]*\) .*/\1/p' "$SLURM_CONF"; }

write_configuration() {
  local i gres="" tres=""
  # /etc/hosts of the nodes, so that they know each other by name.
  { cat /etc/hosts; for ((i = 1; i <= NODES; i++)); do echo "$(address "$i") n$i"; done; } >"$ETC/hosts"
  rm -rf "$DIR/gpus" "$ETC/gres.conf"
  mkdir "$DIR/gpus"
  if [ "$GPUS" -gt 0 ]; then
    # Slurm marks a node invalid without a device file for each GPU; a link to /dev/null suffices.
    for ((i = 0; i < GPUS; i++)); do ln -s /dev/null "$DIR/gpus/gpu$i"; done
    gres="Gres=gpu:$GPU_TYPE:$GPUS"
    tres="GresTypes=gpu"$'\n'"AccountingStorageTRES=gres/gpu,gres/gpu:$GPU_TYPE"
    echo "NodeName=n[1-$NODES] Name=gpu Type=$GPU_TYPE File=$DIR/gpus/gpu[0-$((GPUS - 1))]" >"$ETC/gres.conf"
  fi
  cat >"$SLURM_CONF" <<CONF
ClusterName=harness
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
# The controller listens on loopback only. NoInAddrAny would bind an srun inside a job to an address that the
# step daemons cannot reach.
CommunicationParameters=NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential expires: 5 s here, 2 minutes by default.
AuthInfo=socket=$RUN/munge.sock,cred_expire=5
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$RUN/slurmctld.own.pid
SlurmdPidFile=$RUN/slurmd-%n.own.pid
SlurmctldLogFile=$LOG/slurmctld.log
SlurmdLogFile=$LOG/slurmd-%n.log
MailProg=/bin/true
# PMIx keeps job sockets here; nodes sharing one folder would collide.
TmpFS=$DIR/tmp/%n
# Nodes have the declared resources, regardless of the machine.
SlurmdParameters=config_overrides
# Job ids are file names in results folders, which several clusters may share. So ids start from the time (10 per
# second, repeating after 77 days), and the saved state raises them further.
FirstJobId=$(($(date +%s) % 6600000 * 10 + 1000))
MaxJobCount=50000
MaxArraySize=10001
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
# Without a default, every job would get all memory of its node.
DefMemPerCPU=$((MEM_MB / CPUS))
ProctrackType=proctrack/linuxproc
PropagateResourceLimits=NONE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
# Refuse jobs that can never run, instead of leaving them pending.
EnforcePartLimits=ALL
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_max_job_test=1000,default_queue_depth=1000
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# A preempted job gets its --signal, then GraceTime, then TERM and KILL.
SlurmctldParameters=preempt_send_user_signal
# Short timeouts, for tests.
ReturnToService=2
KillWait=8
SlurmdTimeout=15
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 1))
# munge's socket for slurmdbd, which does not use AuthInfo.
AccountingStoragePass=$RUN/munge.sock
$tres
${CLUSTER_EXTRA_CONF:-}
CONF
  # Each slurmd needs a port of its own.
  for ((i = 1; i <= NODES; i++)); do
    echo "NodeName=n$i NodeHostname=n$i NodeAddr=$(address "$i") Port=$((PORT + 10 + i)) CPUs=$CPUS RealMemory=$MEM_MB $gres State=UNKNOWN"
  done >>"$SLURM_CONF"
  cat >>"$SLURM_CONF" <<CONF
PartitionName=main Nodes=n[1-$NODES] Default=YES MaxTime=INFINITE DefaultTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=n[1-$NODES] MaxTime=INFINITE DefaultTime=60 PriorityTier=10 PreemptMode=OFF
CONF
  (umask 077 && cat >"$ETC/slurmdbd.conf") <<CONF
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((PORT + 1))
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.sock
LogFile=$LOG/slurmdbd.log
PidFile=$RUN/slurmdbd.own.pid
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc=slurm_acct_db
CONF
}

# --- daemons ------------------------------------------------------------------------------------------------------------------
start_munged() {
  [ -s "$ETC/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$ETC/munge.key")
  spawn munged munged -F -S "$RUN/munge.sock" --key-file="$ETC/munge.key" --pid-file="$RUN/munged.own.pid" \
    --seed-file="$RUN/munge.seed" --log-file="$LOG/munged.log" --num-threads=2
  await munged 60 munge -n -S "$RUN/munge.sock"
}

# The database listens on a socket only and accepts root without a password. It has its own TMPDIR because on start it
# deletes all temporary tables there, including those of another cluster that is just starting.
start_mariadbd() {
  if [ ! -e "$DIR/db/complete" ]; then
    rm -rf "$DIR/db"
    spawn mariadb-install-db env TMPDIR="$RUN" mariadb-install-db --no-defaults --user=root --datadir="$DIR/db" \
      --auth-root-authentication-method=socket --auth-root-socket-user=root --skip-test-db --skip-name-resolve
    wait "$!" || fail_with_log mariadb-install-db "mariadb-install-db could not make a data base in $DIR/db"
    touch "$DIR/db/complete"
  fi
  spawn mariadbd env TMPDIR="$RUN" mariadbd --no-defaults --user=root --datadir="$DIR/db" --socket="$RUN/mysql.sock" \
    --skip-networking --pid-file="$RUN/mariadbd.own.pid" --innodb-buffer-pool-size=64M --innodb-log-file-size=32M \
    --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 --skip-log-bin --performance-schema=OFF
  await mariadbd 120 mariadb --no-defaults -S "$RUN/mysql.sock" -e "select 1"
}

start_slurmdbd() {
  alive slurmdbd || spawn slurmdbd env MYSQL_UNIX_PORT="$RUN/mysql.sock" slurmdbd -D
  await slurmdbd 120 sacctmgr -n show cluster
}

start_slurmctld() {
  alive slurmctld || spawn slurmctld slurmctld -D "$@"
  await slurmctld 120 scontrol ping
}

# --- nodes --------------------------------------------------------------------------------------------------------------------
# A node is an `unshare` process whose child is process 1 of the node; slurmd enters the node's namespaces from outside.
# When process 1 dies, the kernel kills everything in the node, so a power failure leaks nothing.
node_start() {
  local node=$1 pid
  if ! alive "node-$node"; then
    mkdir -p "$DIR/spool/$node" "$DIR/tmp/$node"
    rm -f "$RUN/$node.ready"
    # The shell remains as process 1 to reap the orphaned step daemons.
    # shellcheck disable=SC2016
    spawn "node-$node" unshare --uts --ipc --mount --pid --fork --kill-child=KILL --mount-proc bash -euc '
      hostname "$1"
      mount --bind "$2" /etc/hosts
      mount -t tmpfs -o mode=1777,size=4g tmpfs /dev/shm
      touch "$3"
      while :; do sleep 1d & wait; done' _ "$node" "$ETC/hosts" "$RUN/$node.ready"
    await "node-$node" 60 test -e "$RUN/$node.ready"
  fi
  alive "slurmd-$node" && return
  pid=$(recorded "node-$node")
  spawn "slurmd-$node" nsenter --target "$pid" --uts --ipc --mount --pid="/proc/$pid/ns/pid_for_children" slurmd -D -N "$node"
}

node_kill() {
  if alive "node-$1"; then
    kill -KILL "$(child_of "node-$1")" 2>/dev/null || true
    wait_for 10 gone "node-$1" || say "node $1 takes long to die" # unshare ends once everything in the node is dead
  fi
  stop "node-$1"; stop "slurmd-$1"
}

node_fail() {
  node_kill "$1"
  # slurmctld needs about 30 s to notice by itself, regardless of SlurmdTimeout.
  scontrol update nodename="$1" state=down reason="power cut"
}

node_back() {
  local since=""
  alive "slurmd-$1" || since=$(date +%Y-%m-%dT%H:%M:%S)
  node_start "$1"
  scontrol update nodename="$1" state=resume 2>/dev/null || true # refused if slurmctld has not noticed
  wait_for 60 node_up "$1" "$since" || fail_with_log "slurmd-$1" "node $1 did not come back within 60 s"
}

slurmd_kill() {
  alive "slurmd-$1" || die "slurmd of $1 does not run"
  kill "$(child_of "slurmd-$1")"
  wait_for 10 gone "slurmd-$1" || die "slurmd of $1 did not end within 10 s"
}

# Accepts jobs with a slurmd started no earlier than $2: slurmctld may not have noticed that the previous one died.
node_up() {
  local started
  started=$(scontrol -o show node "$1" | sed -n 's/.* SlurmdStartTime=\([0-9T:-]*\).*/\1/p')
  [[ ! $started < "$2" ]] && sinfo -h -N -p main -o '%N %T' | grep -qE "^$1 (idle|mixed|allocated)\$"
}
nodes_idle() { [ "$(sinfo -h -N -p main -o %T | grep -cx idle)" = "$NODES" ]; }

# --- processes, identified by recorded pids -----------------------------------------------------------------------------------
# Starts a daemon in its own session. The process records itself before it becomes the daemon, holding the lock (9) until
# then, so that `down` finds it even after a killed `up`. The start time (field 22 of stat) distinguishes it from a later
# process with the same pid. Bash starts background processes with INT and QUIT ignored, which jobs would inherit.
spawn() {
  local name=$1; shift
  rm -f "$RUN/$name.pid"
  # shellcheck disable=SC2016
  env --default-signal=INT,QUIT setsid bash -c '
    fields=$(</proc/$$/stat); fields=(${fields##*) })
    echo "$$ ${fields[19]}" >"$1.new" && mv "$1.new" "$1" || exit
    exec 9>&-; shift; exec "$@"' "$name" "$RUN/$name.pid" "$@" </dev/null >"$LOG/$name.out" 2>&1 &
  wait_for 10 test -e "$RUN/$name.pid" || fail_with_log "$name" "$name did not start"
}

recorded() { cut -d' ' -f1 "$RUN/$1.pid"; }
child_of() { ps -o pid= --ppid "$(recorded "$1")" | xargs; }
gone() { ! alive "$1"; }
session_gone() { { ps -o stat= --sid "$1" || true; } | awk '!/^Z/ { left = 1 } END { exit left }'; }

alive() {
  local pid born fields
  read -r pid born 2>/dev/null <"$RUN/$1.pid" || return 1
  fields=$(cat "/proc/$pid/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${fields##*) }"
  [[ ${fields[0]} != Z && ${fields[19]} == "$born" ]] # a zombie is not alive
}

stop() {
  if alive "$1"; then
    local pid; pid=$(recorded "$1")
    kill -- "-$pid" 2>/dev/null || true # minus: the whole session, since mariadb-install-db has children
    wait_for 20 gone "$1" || true
    kill -KILL -- "-$pid" 2>/dev/null || true
    wait_for 5 session_gone "$pid" || say "$1 (session $pid) takes long to die"
  fi
  rm -f "$RUN/$1.pid"
}

await() { # name, seconds, a command that succeeds when the daemon serves
  local name=$1 end=$((SECONDS + $2)); shift 2
  until "$@" >/dev/null 2>&1; do
    alive "$name" || fail_with_log "$name" "$name ended while it was starting"
    [ "$SECONDS" -lt "$end" ] || { "$@" >&2 || fail_with_log "$name" "$name did not answer in time: '$*' fails (above)"; }
    sleep .05
  done
}

wait_for() { # seconds, a command
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep .02
  done
}

say() { echo "slurm-cluster: $*" >&2; }
die() { say "$*"; exit 1; }
fail_with_log() { # name of the log, message
  local log
  say "$2; the end of its log in $LOG:"
  for log in "$LOG/$1.log" "$LOG/$1.out"; do [ ! -s "$log" ] || tail -n 15 "$log" >&2; done
  exit 1
}

main "$@"
