"""`python -m harness.status results/<study>`: report the status of a study without changing it."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.core.console_script import Parser
from harness.core.errors import UserError
from harness.study import run_status
from harness.study.run_status import RunStatus, StudyStatus

STYLES = {
    run_status.COMPLETED: "green",
    run_status.FAILED: "red",
    run_status.RUNNING: "bold cyan",
    run_status.STOPPED: "red",
}
# Limit on rows; --all shows every run.
MOST_ROWS = 40
WIDTH_OF_A_FILE = 150


def main(argv: Sequence[str] | None = None, program: str = "python -m harness.status") -> int:
    """Return the exit code: 0 success, 2 invalid request, 130 --watch interrupted."""
    parser = Parser(prog=program, description="Show the status of a study from its run directories and Slurm.")
    parser.add_argument("study", type=Path, help="the study's folder, results/<study>")
    parser.add_argument(
        "--watch", nargs="?", type=float, const=5.0, metavar="SECONDS", help="refresh at this interval (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="for programs; with --watch one object per line")
    parser.add_argument("--all", action="store_true", help="every run, not only the first of each state")
    words = list(sys.argv[1:] if argv is None else argv)
    for i, (word, following) in enumerate(itertools.pairwise(words)):
        # A study's folder after --watch would be read as the seconds.
        if word == "--watch" and not _is_number(following):
            words[i] = "--watch=5"
    arguments = parser.parse_args(words)
    if arguments.watch is not None and not 0.5 <= arguments.watch < float("inf"):
        parser.error(f"--watch {arguments.watch:g}: give seconds of at least 0.5")
    slurm = run_status.SlurmCache()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    try:
        if arguments.watch is None:
            now = run_status.read(arguments.study, slurm)
            _print_json(now, 1) if arguments.json else console.print(shown(now, arguments.all))
        elif arguments.json:
            while True:
                _print_json(run_status.read(arguments.study, slurm), None)
                time.sleep(arguments.watch)
        else:
            _watch(arguments, slurm, console)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def shown(now: StudyStatus, every_run: bool) -> RenderableType:
    """Return the summary and a table of runs, the most important first."""
    parts: list[RenderableType] = [_summary(now)]
    if now.remark:
        parts.append(Text(now.remark, style="yellow"))
    order = {name: i for i, name in enumerate(run_status.STATES)}
    runs = sorted(now.runs, key=lambda run: (order[run.state], run.gpus or 0, run.run_id))
    rows = runs if every_run else _few(runs)
    if rows:
        parts.append(_table(rows))
    if len(rows) < len(runs):
        parts.append(Text(f"{len(runs) - len(rows):,} more runs; --all shows every one", style="dim"))
    if any(run.oversubscribed for run in runs):
        parts.append(Text("oversubscribed runs: their throughput is no scaling result", style="yellow"))
    return Group(*parts)


def _summary(now: StudyStatus) -> Text:
    counts = Counter(run.state for run in now.runs)
    text = Text(f"study {now.study}: ")
    named = [(f"{counts[name]:,} {name}", STYLES.get(name, "")) for name in run_status.STATES if counts[name]]
    for i, (words, style) in enumerate(named):
        text.append(", " if i else "")
        text.append(words, style=style)
    if not named:
        text.append("no runs")
    used = sum(run.node_hours for run in now.runs)
    text.append(f"; node-hours: {_hours(used)} used, at most {_hours(now.planned_node_hours)} planned")
    return text


def _few(runs: list[RunStatus]) -> list[RunStatus]:
    """Choose running and failed runs, then completed and waiting runs as far as the limit allows."""
    first = [run for run in runs if run.state not in (run_status.COMPLETED, run_status.PENDING)]
    rest = [run for run in runs if run.state in (run_status.COMPLETED, run_status.PENDING)]
    return [*first[:MOST_ROWS], *rest[: max(0, MOST_ROWS - len(first))]]


def _steps(run: RunStatus) -> str:
    if run.fixed:
        return f"{run.steps_done}/{run.steps}"
    return f"{run.steps_done}" if run.state == run_status.COMPLETED else f"{run.steps_done}/≤{run.steps}"


def _table(runs: list[RunStatus]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for name in ("ranks", "step", "samples/s", "ETA", "node-h"):
        table.add_column(name, justify="right")
    table.add_column("job")
    table.add_column("", overflow="fold", ratio=1)
    for run in runs:
        attempts = f"attempt {run.attempts}" if run.attempts > 1 else None
        over = "oversubscribed" if run.oversubscribed else None
        table.add_row(
            escape(run.run_id),
            Text(run.state, style=STYLES.get(run.state, "")),
            "" if run.gpus is None else f"{run.gpus}",
            "" if run.steps is None else _steps(run),
            "" if run.samples_per_second is None else f"{run.samples_per_second:,.0f}",
            "" if run.eta_seconds is None else ("" if run.fixed else "≤ ") + _duration(run.eta_seconds),
            _hours(run.node_hours) if run.node_hours else "",
            run.job or "",
            escape("; ".join(filter(None, (attempts, over, run.note)))),
        )
    return table


def _hours(hours: float) -> str:
    return f"{hours:,.2f}" if hours >= 1 or hours == 0 else f"{hours:.2g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _watch(arguments: argparse.Namespace, slurm: run_status.SlurmCache, console: Console) -> None:
    """Refresh until all runs have ended, or until Ctrl-C."""
    over = {run_status.COMPLETED, run_status.FAILED, run_status.MISSING, run_status.STOPPED}
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = run_status.read(arguments.study, slurm)
            live.update(shown(now, arguments.all), refresh=True)
            if all(run.state in over for run in now.runs):
                return
            time.sleep(arguments.watch)


def _print_json(now: StudyStatus, indent: int | None) -> None:
    print(json.dumps(now.to_json(), indent=indent, allow_nan=False), flush=True)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
