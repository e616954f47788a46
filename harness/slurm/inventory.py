"""A cluster's inventory and the user's limits: partitions, nodes, accounts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.slurm.client import Client, SlurmRefused, error_message

MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}


@dataclass(frozen=True)
class Partition:
    name: str
    is_default: bool
    state: str
    limit: str  # longest wall limit, as Slurm writes it
    nodes: str  # allocated/idle/other/total


@dataclass(frozen=True)
class Node:
    name: str
    state: str
    cpus: int
    megabytes: int
    gres: str  # as Slurm writes it, without sockets: 'gpu:v100:4,mps:400'

    def count(self, name: str, kind: str | None) -> int:
        """Return the count of a generic resource; kind: its type, None for any."""
        entries = [entry.split(":") for entry in self.gres.split(",")]
        return sum(
            int(entry[-1])
            for entry in entries
            if entry[0] == name and entry[-1].isdigit() and (kind is None or entry[1:-1] == [kind])
        )


@dataclass(frozen=True)
class Association:
    """A user's limits under one account, from Slurm's accounting."""

    account: str
    qos: str  # comma-separated names; may be empty
    max_submit: int | None  # jobs in the queue; None: no limit


def version(client: Client) -> str:
    """Return Slurm's version, such as 'slurm 22.05.8'. Raises SlurmUnavailable, SlurmRefused (no cluster)."""
    return _answer(client, "sbatch", "--version").strip()


def ping(client: Client) -> tuple[bool, str]:
    """Return whether a controller is up, and Slurm's message. Raises SlurmUnavailable."""
    done = client.run("scontrol", "ping")
    message = "; ".join(re.findall(r"^Slurmctld.*$", done.stdout, re.MULTILINE)) or error_message(done.stderr)
    return bool(re.search(r" is UP\b", message)), message


def partitions(client: Client) -> list[Partition]:
    """Return all partitions, including hidden ones. Raises SlurmUnavailable."""
    rows = [line.split("|") for line in client.lines("sinfo", "--all", "--noheader", "--format=%P|%a|%l|%F")]
    return [Partition(name.rstrip("*"), name.endswith("*"), *rest) for name, *rest in rows]


def nodes(client: Client, of: list[str]) -> list[Node]:
    """Return the nodes of these partitions. Raises SlurmUnavailable."""
    which = f"--partition={','.join(of)}"
    found = {}
    for line in client.lines("sinfo", "--Node", "--noheader", which, "--format=%N|%T|%c|%m|%G"):
        name, state, cpus, memory, gres = line.split("|", 4)
        found[name] = Node(name, state, int(cpus), int(memory), re.sub(r"\([^)]*\)", "", gres))
    return list(found.values())


def check_accounting(client: Client) -> None:
    """Raise SlurmUnavailable or SlurmRefused if the accounting does not answer."""
    _answer(client, "sacct", "-X", "--noheader", "--jobs=1")


def associations(client: Client, user: str, cluster: str) -> list[Association]:
    """Return the user's associations. Raises SlurmUnavailable, SlurmRefused."""
    which = (f"user={user}", f"cluster={cluster}", "format=Account,Partition,QOS,MaxSubmitJobs")
    message = _answer(client, "sacctmgr", "--noheader", "--parsable2", "show", "assoc", *which)
    rows = [line.split("|") for line in message.splitlines() if line.count("|") == 3]
    return [Association(account, qos, int(most) if most.isdigit() else None) for account, _, qos, most in rows]


def minutes(limit: str) -> float | None:
    """Parse a time as Slurm writes it, '1-02:03:04' or '03:04'; None if unlimited or invalid."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if not match:
        return None
    days, hours, mins, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + seconds / 60


def megabytes(text: str) -> float | None:
    """Parse an amount of memory as sbatch accepts it, such as '64GB'; None if invalid."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    return int(match[1]) * MEGABYTES[match[2].upper()] if match else None


def _answer(client: Client, *argv: str) -> str:
    done = client.run(*argv)
    if done.returncode != 0:
        raise SlurmRefused(error_message(done.stderr))
    return done.stdout
