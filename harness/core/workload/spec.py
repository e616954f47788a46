"""`WorkloadSpec`, the user's own training within a run's spec. Standard library only, Python 3.8 syntax."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from harness.core.serialization import LATER
from harness.core.workload import launchers

# Kinds of the user's own workload, which take the place of a framework; and a placeholder for what only it knows.
SCRIPT, COMMAND = "script", "command"
OWN = "own"
# Value of WorkloadSpec.processes_per_node.
PER_NODE = "node"
# Value of WorkloadSpec.single.
PLAIN = "plain"


@dataclass(frozen=True)
class WorkloadSpec:
    """The user's own training. What it computes is unknown here; only its steps are measured.

    Texts may contain placeholders in braces, such as '{batch_per_gpu}' (harness/core/workload/templates.py).

    Attributes:
        kind: SCRIPT, a Python script or module; COMMAND, any program.
        name: display name: the script's file name without suffix, the module, or the program.
        command: what followed `--`. For SCRIPT: the script, or '-m' and a module, and their arguments.
        params: the user's own placeholders and their values.
        code: identity of the script's code: the git commit of its repository, with a hash of the changed tracked files
            if there are any, else a hash of the script; empty if unknown.
        samples_per_step: samples (or tokens, see `unit`) per optimiser step over all ranks.
        unit: what is counted, in the plural.
        cwd: working directory; None: the folder from which the study was started.
        shell: `command` is one text for `sh -c`.
        launcher: who starts the ranks: 'harness', the command itself in one process per node ('own'), or a program
            of the user's environment (harness/core/workload/launchers.py).
        processes_per_node: 'gpu': one process per GPU; 'node': one process, which drives all GPUs of its node.
        single: whether a single process gets the variables of a distributed run ('distributed') or not ('plain').
        step: the optimiser class or function whose calls are the steps; None: found by itself.
        pattern: regular expression over the output, or the name of a preset; None: the steps are seen from inside.
        stop: end the training once enough steps were measured.
        resume_args: arguments added when an interrupted run starts again; without them it starts from step 0.
        signals: deliver SIGUSR1 and SIGUSR2 to the program, as Slurm does.
        probe_steps: steps of each block with and without synchronisation after the timed steps; 0: none.
        trace: steps that are traced before these; 0: none.
        probe_limit: maximum share of the run's time that either takes.
        launcher_config: hash of the launcher's default configuration; empty: none.
    """

    kind: str
    name: str
    command: typing.Tuple[str, ...]
    params: Mapping[str, Any]
    code: str
    samples_per_step: int
    unit: str = "samples"
    cwd: Optional[str] = None
    shell: bool = False
    launcher: str = "harness"
    processes_per_node: str = "gpu"
    single: str = "distributed"
    step: Optional[str] = None
    pattern: Optional[str] = None
    stop: bool = True
    resume_args: typing.Tuple[str, ...] = ()
    signals: bool = False
    probe_steps: int = field(default=5, metadata=LATER)
    trace: int = field(default=3, metadata=LATER)
    probe_limit: float = field(default=0.1, metadata=LATER)
    launcher_config: str = field(default="", metadata=LATER)

    def starter(self, gpus: int) -> str:
        """Return who starts the ranks of a run: a single one that is not to be distributed needs no launcher."""
        return launchers.HARNESS if gpus == 1 and self.single == PLAIN and self.launcher != OWN else self.launcher

    @property
    def starts_ranks(self) -> bool:
        """Return whether what the harness starts once per node starts the ranks."""
        return self.launcher == OWN or self.launcher in launchers.PER_NODE

    @property
    def one_process_per_node(self) -> bool:
        return self.starts_ranks or self.processes_per_node == PER_NODE
