"""Checks of Slurm: availability, the nodes, the user's limits, and whether a whole-node job would be accepted."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator

from harness.config.schema import Cluster, Config, Scheduler
from harness.core.placement import place
from harness.core.spec import Placement
from harness.doctor.checks import MISSING, NOTE, OK, Check, counted
from harness.launch.options import advice, trial_options
from harness.plan import mpi, site_resources
from harness.plan.plan import Resources
from harness.slurm import inventory
from harness.slurm.client import Client, SlurmRefused, SlurmUnavailable
from harness.slurm.inventory import Node, Partition

# States of nodes that accept no jobs; a trailing '*' means not responding.
UNUSABLE = re.compile(r"down|drain|fail|error|unknown|future|inval|maint|.*\*$", re.IGNORECASE)
LONGEST_LIST = 12


def slurm(config: Config) -> Iterator[Check]:
    """Check Slurm. Stops when Slurm does not answer, because each query could take a minute."""
    cluster = config.cluster
    sbatch = shutil.which("sbatch")
    if cluster.scheduler is Scheduler.local:
        there = f"sbatch is at {sbatch}: cluster=slurm would submit" if sbatch else "sbatch is not on the PATH"
        yield _check("Slurm", OK, f"not used: cluster={cluster.name} runs on this machine; {there}")
        return
    if sbatch is None:
        where = "use the cluster's login node, load its Slurm module, or set cluster=local to run on this machine"
        yield _check("sbatch", MISSING, "not on the PATH", where)
        return
    try:
        yield from _answering(Client(), config, sbatch)
    except SlurmUnavailable as error:
        yield _check("Slurm", MISSING, f"does not answer: {error}", "no further checks; try again later")


def whole_nodes(config: Config, nodes: int = 1) -> Resources:
    """Build the resources of a whole-node job. Raises UserError."""
    cluster = config.cluster
    starter = mpi.starter(cluster) if mpi.needed(config.strategy) else None
    ranks = cluster.gpus_per_node or config.gpus
    return site_resources.resources(cluster, Placement(nodes, ranks), cluster.cpus_per_gpu or 1, starter)


def _answering(client: Client, config: Config, sbatch: str) -> Iterator[Check]:
    """Checks that need a working Slurm. Raises SlurmUnavailable."""
    try:
        yield _check("sbatch", OK, f"{inventory.version(client)} at {sbatch}")
    except SlurmRefused as refusal:
        where = "use the cluster's login node, set SLURM_CONF, or set cluster=local to run on this machine"
        yield _check(
            "sbatch", MISSING, f"{sbatch} is not configured for a cluster: {str(refusal).split('; ')[-1]}", where
        )
        return
    up, answers = inventory.ping(client)
    if not up:
        yield _check("controller", MISSING, answers, "nothing can be submitted now; try later, or ask the site")
        return
    yield _check("controller", OK, answers)
    settings = client.settings()
    yield from _accounting(client, config.cluster, settings)
    yield _limits(settings)
    yield _mpi(client)
    if config.cluster.scheduler is Scheduler.allocation:
        yield _allocation()
        return
    asked = whole_nodes(config)
    partitions = inventory.partitions(client)
    yield from _partitions(partitions, asked)
    chosen = [p.name for p in partitions if (p.name in names(asked) if names(asked) else p.is_default)]
    if chosen:
        needed = place(config.gpus, config.cluster.gpus_per_node).nodes
        yield from _nodes(inventory.nodes(client, chosen), asked, needed, chosen)
        yield _preemption(client, chosen[0], settings, config)
    yield _test_submission(client, asked)


def names(asked: Resources) -> list[str]:
    """The configured partitions; Slurm accepts a comma-separated list."""
    return asked.partition.split(",") if asked.partition else []


def _accounting(client: Client, cluster: Cluster, settings: dict[str, str]) -> Iterator[Check]:
    lost = "optional: without it, the final state of a lost job is unknown"
    if "none" in settings.get("AccountingStorageType", "none"):
        yield _check("accounting", NOTE, "this site has none", lost)
        return
    user = getpass.getuser()
    answers, rows, refused = _check("accounting", OK, "answers"), [], None
    try:
        try:
            inventory.check_accounting(client)
        except SlurmRefused as refusal:
            answers = _check("accounting", NOTE, f"does not answer: {refusal}", lost)
        try:
            rows = inventory.associations(client, user, settings.get("ClusterName", ""))
        except SlurmRefused as refusal:
            refused = str(refusal)
    except SlurmUnavailable as error:
        yield _check("accounting", NOTE, f"does not answer: {error}", lost)
        return
    yield answers
    enforced = settings.get("AccountingStorageEnforce", "none")
    required = "associations" in enforced or "limits" in enforced or "qos" in enforced
    if not rows:
        found = f"{user} has no account here" + ("" if refused is None else f" ({refused})")
        state = MISSING if required and refused is None else NOTE
        yield _check("accounts", state, found, "ask the site for one" if required else "this site does not require one")
        return
    found = ", ".join(sorted({f"{row.account} (QOS {row.qos or 'none'})" for row in rows}))
    for key, asked, valid in (
        ("account", cluster.account, {row.account for row in rows}),
        ("qos", cluster.qos, {name for row in rows for name in row.qos.split(",")}),
    ):
        if asked is not None and asked not in valid:
            state = MISSING if required else NOTE
            how = f"set cluster.{key} to one of them"
            yield _check("accounts", state, f"cluster.{key}={asked} is not among {user}'s: {found}", how)
            return
    largest = [row.max_submit for row in rows if row.max_submit is not None and cluster.account in (None, row.account)]
    if largest and (cluster.max_submit is None or cluster.max_submit > min(largest)):
        how = f"set cluster.max_submit={min(largest)}, so that larger studies are submitted in portions"
        yield _check("accounts", NOTE, f"{found}; at most {min(largest)} jobs in the queue", how)
        return
    yield _check("accounts", OK, found)


def _limits(settings: dict[str, str]) -> Check:
    shown = ", ".join(f"{name}={settings.get(name, '?')}" for name in ("MaxArraySize", "MaxJobCount", "KillWait"))
    if settings.get("EnforcePartLimits", "NO") == "NO":
        careful = "a job that exceeds a partition's limit is not refused but stays pending"
        return _check("limits", NOTE, f"{shown}, EnforcePartLimits=NO", careful)
    return _check("limits", OK, shown)


def _mpi(client: Client) -> Check:
    kinds = client.mpi_kinds()
    if any(kind.startswith(("pmi", "openmpi")) for kind in kinds):
        return _check("MPI", OK, f"srun --mpi takes {', '.join(kinds)}")
    return _check(
        "MPI", NOTE, f"srun --mpi takes {', '.join(kinds) or 'nothing'}", "needed only for strategies that use MPI"
    )


def _allocation() -> Check:
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        return _check("allocation", OK, f"job {job} on {os.environ.get('SLURM_JOB_NODELIST', 'unknown nodes')}")
    return _check("allocation", MISSING, "this shell is not inside one", "run it inside `salloc` or a batch script")


def _partitions(partitions: list[Partition], asked: Resources) -> Iterator[Check]:
    for partition in partitions:
        chosen = partition.name in names(asked) if names(asked) else partition.is_default
        found = (
            f"{partition.state}, limit {partition.limit}, nodes allocated/idle/other/total {partition.nodes}"
            f"{', the default' * partition.is_default}{', configured' * (partition.name in names(asked))}"
        )
        longest = inventory.minutes(partition.limit)
        state, how = OK, ""
        if chosen and partition.state != "up":
            state, how = MISSING, "jobs wait until the site enables it; or set another cluster.partition"
        elif chosen and longest is not None and asked.timeout_minutes > longest:
            state, how = MISSING, f"set cluster.timeout_minutes to at most {longest:g}"
        yield _check(f"partition {partition.name}", state, found, how)
    known = [p.name for p in partitions]
    for name in names(asked):
        if name not in known:
            how = f"set cluster.partition to one of: {', '.join(known)}"
            yield _check(f"partition {name}", MISSING, "this cluster has no such partition", how)
    if not names(asked) and not any(p.is_default for p in partitions):
        how = f"set cluster.partition to one of: {', '.join(known)}"
        yield _check("partition", MISSING, "none is configured, and this cluster has no default one", how)


def _nodes(nodes: list[Node], asked: Resources, needed: int, partitions: list[str]) -> Iterator[Check]:
    """Check each requirement of a whole node, then count nodes that meet all. needed: nodes required."""
    gpus, cores = asked.placement.ranks_per_node, asked.placement.ranks_per_node * asked.cpus_per_gpu
    fit = set(nodes)
    if asked.gres:
        kind = asked.gpu_type
        having = {node for node in nodes if node.count(asked.gres, kind) >= gpus}
        what = ":".join(filter(None, (asked.gres, kind, str(gpus))))
        yield _enough(
            "GPUs per node", what, having, [node.gres or "none" for node in nodes], _gres_advice(nodes, asked)
        )
        fit &= having
    having = {node for node in nodes if node.cpus >= cores}
    most = max((node.cpus for node in nodes), default=0)
    how = f"set cluster.cpus_per_gpu to at most {most // gpus}" if most >= gpus else f"set cluster.gpus_per_node={most}"
    what = f"{cores} ({gpus} ranks x {asked.cpus_per_gpu})"
    yield _enough("cores per node", what, having, [f"{node.cpus} cores" for node in nodes], how)
    fit &= having
    wanted = inventory.megabytes(asked.memory_per_node) if asked.memory_per_node else None
    if wanted is not None:
        having = {node for node in nodes if node.megabytes >= wanted}
        most = max((node.megabytes for node in nodes), default=0)
        how = f"set cluster.memory_per_node to at most {most}MB"
        yield _enough("memory per node", f"{wanted:g} MB", having, [f"{node.megabytes} MB" for node in nodes], how)
        fit &= having
    up = [node for node in fit if not UNUSABLE.match(node.state)]
    states = counted(sorted(node.state for node in fit)) or "none"
    found = f"{len(fit)} of {len(nodes)} in {','.join(partitions)} meet all requirements: {states}"
    if len(fit) < needed:
        how = f"the configuration needs {needed}: fix what is missing, or use fewer gpus"
        yield _check("nodes", MISSING, found, how)
    elif len(up) < needed:
        yield _check("nodes", NOTE, f"{found}; {len(up)} accept jobs now", "jobs wait until more of them are up")
    else:
        yield _check("nodes", OK, f"{found}; {len(up)} accept jobs now")


def _enough(name: str, what: str, having: set[Node], there: list[str], how: str) -> Check:
    counts = Counter(there).most_common()
    listed = ", ".join(f"{text} on {number}" for text, number in counts[:LONGEST_LIST])
    found = f"{what} needed; the nodes have {listed}{' and others' * (len(counts) > LONGEST_LIST)}"
    return _check(name, OK, found) if having else _check(name, MISSING, found, how)


def _gres_advice(nodes: list[Node], asked: Resources) -> str:
    """Suggest the values that most nodes have."""
    entries = Counter(entry for node in nodes for entry in node.gres.split(",") if entry.split(":")[0] == asked.gres)
    if not entries:
        return "set another cluster.partition; on CPU nodes set cluster.device=cpu cluster.gres=null"
    _, *kind, count = entries.most_common(1)[0][0].split(":")
    keys = [f"cluster.gpus_per_node={count}"] if int(count) < asked.placement.ranks_per_node else []
    if asked.gpu_type is not None:
        keys.append(f"cluster.gpu_type={kind[0] if kind else 'null'}")
    return f"set {' '.join(keys)}"


def _preemption(client: Client, partition: str, settings: dict[str, str], config: Config) -> Check:
    kind = settings.get("PreemptType", "preempt/none").removeprefix("preempt/")
    own = next(iter(client.show("partition", partition)), {})
    mode = own.get("PreemptMode", settings.get("PreemptMode", "OFF"))
    if kind == "none" or mode == "OFF":
        return _check("preemption", OK, f"jobs of partition {partition} are not preempted")
    grace = own.get("GraceTime", "0")
    found = f"{kind}, PreemptMode={mode}" + (f", GraceTime={grace} s" if kind != "qos" else ", GraceTime of the QOS")
    if "preempt_send_user_signal" in settings.get("SlurmctldParameters", "") and (kind == "qos" or grace != "0"):
        return _check("preemption", OK, f"{found}: preempted jobs are warned first, so their runs save")
    how = "set checkpoint.interval_steps, to limit the loss" if not config.checkpoint.interval_steps else ""
    return _check("preemption", NOTE, f"{found}: preempted jobs get no warning before SIGTERM", how)


def _test_submission(client: Client, asked: Resources) -> Check:
    refused = client.refusal(trial_options(asked))
    job = f"a job of one node with {asked.placement.ranks_per_node} ranks"
    if refused:
        return _check("test submission", MISSING, f"{job} would be refused: {refused}", advice(refused))
    return _check("test submission", OK, f"{job} would be accepted")


def _check(name: str, state: str, found: str, how: str = "") -> Check:
    return Check("Slurm", name, state, found, how)
