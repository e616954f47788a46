"""Terminal output of the harness: the plan, the end of each run, the summary."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.core import events
from harness.core.spec import EMULATED
from harness.plan import memory, workload
from harness.plan.cost import Expected
from harness.plan.plan import Array, Plan, Request, gpu_hours, node_hours
from harness.study.study import Study

# Tables in a file or a pipe are not squeezed into 80 columns.
_console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)

LISTED_RUNS = 12


def note(text: str) -> None:
    _console.print(escape(text))


def plan(plan: Plan, study: Study, scheduler: str, expected: Expected, skipped: Sequence[str]) -> None:
    """Print the plan as a table (arrays, nodes, GPUs, wall limit, node-hours), and the runs it leaves out."""
    where = {
        "local": "on this machine, one run after another",
        "slurm": "through Slurm, one job array per resource shape",
        "allocation": "inside this allocation, one run after another",
    }
    _console.print(f"study [bold]{study.name}[/] in {escape(str(study.folder))}; runs {where[scheduler]} "
                   f"(cluster={scheduler}; force it with cluster=local|slurm)")  # fmt: skip
    gpu = any(request.spec.cluster.device == "cuda" for request in plan.requests)
    table = Table(
        title=f"plan: {_count(plan.to_launch, 'run')} in {_count(plan.arrays, 'array')}", title_justify="left"
    )
    for name in (
        "array",
        "runs",
        "nodes",
        "ranks/node",
        "GPUs" if gpu else "ranks (CPU)",
        "wall limit",
        "node-hours",
        "",
    ):
        table.add_column(name, justify="left" if name in ("array", "") else "right")
    for number, array in enumerate(plan.arrays, start=1):
        table.add_row(*_row(number, array))
    if plan.arrays:
        _console.print(table)
        gpu_hours_text = f" ({gpu_hours(plan.arrays):.2f} {'GPU' if gpu else 'rank'}-hours)"
        _console.print(
            f"at most {node_hours(plan.arrays):.2f} node-hours{gpu_hours_text}, if every start of every run "
            "took its whole wall limit"
        )
        _console.print(expected.sentence)
    for why in dict.fromkeys(request.site.oversubscribed for request in plan.to_launch):
        if why:
            _console.print(f"[yellow]oversubscribed: {escape(why)}; not a scaling result; flagged in every output[/]")
    _commands([request for request in plan.requests if request.spec.workload is not None])
    _memory(plan.requests)
    for data in dict.fromkeys(request.spec.dataset for request in plan.requests):
        if data.context:
            _console.print(
                f"a sample of data set '{escape(data.name)}' is one sequence of {data.context} tokens; loss and "
                "accuracy are means over tokens"
            )
    if plan.completed:
        _console.print(f"{_count_are(plan.completed)} completed already")
    if plan.failed:
        _console.print(f"not retried, because of retry=none: {_count(plan.failed, 'failed run')}")
    if plan.queued:
        _console.print(f"{_count_are(plan.queued)} already pending or running")
    for sentence in skipped:
        _console.print(f"left out, because it does not exist: {escape(sentence)}")
    if plan.repeated:
        _console.print(f"duplicate points of the sweep: {plan.repeated}; each is run once")


def _commands(requests: Sequence[Request]) -> None:
    """Print what runs of the user's own training execute; if there are many, only the first ones."""
    for request in requests[:LISTED_RUNS]:
        _console.print(f"  {request.spec.run_id}: {_batches(request.spec)}")
        _console.print(f"    {escape(workload.command_line(request))}")
    if len(requests) > LISTED_RUNS:
        _console.print(f"  and {len(requests) - LISTED_RUNS} more")


def _memory(requests: Sequence[Request]) -> None:
    """Print the memory that points need on each GPU; if there are many, only those that may not fit."""
    # Emulated runs have no network, and that of the user's own training is unknown.
    requests = [r for r in requests if r.spec.framework != EMULATED and r.spec.workload is None]
    tight = [request for request in requests if not memory.fits(request.spec, request.gpu_memory_gb)]
    listed = requests if len(requests) <= LISTED_RUNS else tight[:LISTED_RUNS]
    for request in listed:
        said = escape(memory.sentence(request.spec, request.gpu_memory_gb))
        _console.print(f"  {request.spec.run_id}: {_batches(request.spec)}")
        _console.print(f"    [yellow]{said}[/]" if request in tight else f"    {said}")
    if tight[len(listed) :] and listed is not requests:
        _console.print(f"[yellow]{len(tight)} runs in all may not fit into the memory of a GPU[/]")
    if listed:
        _console.print("memory is an estimate, without workspaces, message buffers and fragmentation")


def mixed_code(completed: int, others: set[str], now: str) -> None:
    _console.print(
        f"[yellow]warning: some of the {completed} completed runs were measured with code "
        f"{escape(', '.join(sorted(others)))}, this is {escape(now)}: the study mixes code versions, and the report "
        "will say so; retry=all measures everything again[/]"
    )


def left(study: Study, kept_back: int) -> int:
    """Print what follows a submission with wait=false. Return the exit code."""
    if kept_back:
        _console.print(
            f"[yellow]{kept_back} runs are not submitted yet (cluster.max_submit): "
            "the same command submits them later[/]"
        )
    _console.print(f"wait=false: the jobs run without this command; status: python -m harness.status {_quoted(study)}")
    _console.print(f"cancel its jobs: python -m harness.cancel {_quoted(study)}")
    return 0


class Progress:
    """Print the end of each run, and counts."""

    def __init__(self, plan: Plan) -> None:
        self.total = len(plan.to_launch) + len(plan.queued)
        self.already = len(plan.completed)
        self.not_retried = len(plan.failed)
        self.failed: list[str] = []
        self.completed = 0
        own = [request.spec.workload for request in plan.to_launch if request.spec.workload is not None]
        self.lost = "the run that was interrupted continues from its last checkpoint, if it had time to save one"
        if own:
            resumed = "as workload.resume_args say" if all(each.resume_args for each in own) else "from step 0"
            self.lost = f"the run that was interrupted starts again {resumed}"

    def report(self, run_id: str, result: dict[str, Any] | None) -> None:
        done = self.completed + len(self.failed) + 1
        if result is not None and result["status"] == events.COMPLETED:
            self.completed += 1
            mark = (
                f" [yellow](oversubscribed: {escape(result['oversubscribed'])})[/]" if result["oversubscribed"] else ""
            )
            _console.print(f"\\[{done}/{self.total}] [green]completed[/] {run_id}{mark}")
            return
        self.failed.append(run_id)
        reason = str((result or {}).get("reason") or "no result")
        _console.print(f"\\[{done}/{self.total}] [red]failed[/] {run_id}: {escape(reason)}")
        for line in (result or {}).get("stderr_tail", [])[-3:]:
            if line.removeprefix("error: ") not in reason:
                _console.print(f"    {escape(line)}")

    def summary(self, study: Study) -> int:
        """Print the status of the study; return the exit code."""
        _console.print(f"{self.completed} completed, {len(self.failed)} failed, {self.already} were completed before")
        if self.not_retried:
            _console.print(f"{self.not_retried} failed before and were not retried (retry=none)")
        if self.failed:
            _console.print(f"log of a failed run: {study.run_dir(self.failed[0])}; the same command retries it")
        _console.print(f"report: python -m analysis {_quoted(study)}")
        return 1 if self.failed else 0


def interrupted(progress: Progress, study: Study, on_slurm: bool) -> None:
    left = progress.total - progress.completed - len(progress.failed)
    what = (
        "the jobs keep running in Slurm"
        if on_slurm
        else f"{progress.lost}; {left} {'run is' if left == 1 else 'runs are'} left"
    )
    _console.print(f"\ninterrupted; {progress.completed} runs completed, {what}; the same command resumes the study")
    if on_slurm:
        _console.print(f"status: python -m harness.status {_quoted(study)}")
        _console.print(f"cancel its jobs: python -m harness.cancel {_quoted(study)}")


def _quoted(study: Study) -> str:
    return escape(shlex.quote(str(study.folder)))


def _count(things: Sequence[object], one: str) -> str:
    return f"{len(things)} {one}{'s' * (len(things) != 1)}"


def _count_are(runs: Sequence[object]) -> str:
    return f"{_count(runs, 'run')} {'is' if len(runs) == 1 else 'are'}"


def _row(number: int, array: Array) -> list[str]:
    placement = array.resources.placement
    why = next((r.site.oversubscribed for r in array.requests if r.site.oversubscribed), None)
    remarks = (_servers(array), "packed" if array.packed else "", "[yellow]oversubscribed[/]" if why else "")
    return [
        str(number),
        str(len(array.requests)),
        str(array.resources.nodes),
        str(placement.ranks_per_node),
        str(placement.world_size),
        f"{array.resources.timeout_minutes:g} min" + (f" x {array.starts}" if array.starts > 1 else ""),
        f"{array.worst_case_node_hours:.2f}",
        ", ".join(filter(None, remarks)),
    ]


def _servers(array: Array) -> str:
    servers = array.resources.server_nodes
    if not servers:
        return ""
    what = f"{servers} server{'s' * (servers > 1)}"
    # Only a scheduler gives a run as many nodes as requested.
    own = array.resources.nodes > array.resources.placement.nodes
    return f"{what} on additional nodes" if own else f"{what} in separate processes on this node"


def _batches(spec: Any) -> str:
    text = f"{spec.scaling} scaling, {spec.global_batch} samples per step, {spec.batch_per_gpu} per GPU"
    if spec.workload and (spec.workload.unit, spec.workload.samples_per_step) != ("samples", spec.global_batch):
        text += f", counted as {spec.workload.samples_per_step} {escape(spec.workload.unit)} per step"
    return text
