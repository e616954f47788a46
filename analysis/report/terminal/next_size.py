"""Recommended next sizes as a table with ready command lines, and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.text import gpus_text, number, percent, printable, span
from analysis.report.terminal.prediction import MARK_WORDS
from analysis.scaling.next_size import Candidate, NextSizes
from analysis.tables.pairing import spec_of
from harness.core.spec import WEAK

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 3  # candidates whose command is printed
PROGRAM = ["python", "-m", "harness"]
# Arguments of a study's command that determine the number of runs per size, or whether any run.
LEFT_OUT = {"gpus", "repeat", "repeats", "retry", "plan_only", "budget_node_hours"}
NOTE = (
    "Width: of the 90 % interval of the mean of many runs at the target (a single one scatters more), relative to its "
    "median; that after one more run is expected by the pooled law, not measured. Node-hours: of one run as long as "
    "those on the nearest measured size, waiting in the queue not included."
)


def print_next(
    console: Console, study: str, found: Sequence[NextSizes], commands: Sequence[Sequence[str | None]]
) -> None:
    """Print the recommendations. commands: per series, one for each candidate (`command_of`)."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for one, lines in zip(found, commands, strict=True):
        console.print(Text(f"{printable(study)}: {one.source.series.name}", style="bold"))
        for sentence in _sentences(one):
            console.print(Text(sentence))
        if one.candidates:
            table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), show_edge=False)
            unit = "ranks" if one.source.device == "cpu" else "GPUs"
            for heading in (unit, "nodes", "what", "width after", "narrower by", "node-hours", "node-hours per 10 %"):
                table.add_column(heading, justify="right", overflow="fold")
            for candidate in one.candidates:
                table.add_row(*_cells(candidate, one))
            console.print(table)
        if one.candidates and not any(lines):
            console.print(Text("no command of this study is known"))
        for line in filter(None, lines[:SHOWN]):
            console.print(Text(f"  {line}"), soft_wrap=True)  # not wrapped, so that it can be copied
        console.print()
    console.print(Text(NOTE, style="dim"))


def next_json(study: str, found: Sequence[NextSizes], commands: Sequence[Sequence[str | None]]) -> dict[str, Any]:
    """Rates in samples per second, widths and narrowings fractions."""
    return {
        "study": study,
        "series": [
            {
                "series": one.source.series.name,
                "cluster": one.source.cluster,
                "marks": list(one.source.marks),
                "target": None if one.target is None else dataclasses.asdict(one.target),
                "today": one.today and one.today.document(),
                "width_today": one.width,
                "candidates": [
                    {
                        **dataclasses.asdict(each),
                        "is_target": each.size == one.target,
                        "narrowing_per_node_hour": each.node_hours and each.narrowing / each.node_hours,
                        "node_hours_per_tenth": each.node_hours_per_tenth,
                        "command": line,
                    }
                    for each, line in zip(one.candidates, lines, strict=True)
                ],
                "remarks": _sentences(one),
            }
            for one, lines in zip(found, commands, strict=True)
        ],
    }


def command_of(candidate: Candidate, one: NextSizes, invocations: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the command for this one run: the study's own that measured the series, with the series' values for its
    sweeps. None if study.json has no such command."""
    runs = [run for own in one.source.runs for run in own]
    names = {run.run_id for run in runs}
    for invocation in reversed(invocations):
        words, asked = invocation.get("command"), invocation.get("runs")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            continue
        if words[:3] == PROGRAM and isinstance(asked, list) and set(asked) & names:
            break
    else:
        return None
    run = runs[-1]
    own = {key: run[key] for key in ("framework", "strategy", "model", "dataset", "precision", "scaling", "cluster")}
    workload = spec_of(str(run.point)).get("workload") or {}
    own |= {f"workload.params.{name}": value for name, value in (workload.get("params") or {}).items()}
    own |= {"seed": run.seed, "batch": run["batch_per_gpu" if run.scaling == WEAK else "global_batch"]}
    kept = []
    words, own_command = _split(words)
    for word in words[3:]:
        key, equals, value = word.partition("=")
        if word in ("-m", "--multirun") or (equals and key in LEFT_OUT):
            continue
        if equals and key in own and str(own[key]) in value.split(","):
            word = f"{key}={own[key]}"
        kept.append(word)
    repeat = [] if candidate.repeat is None else [f"repeat={candidate.repeat}"]
    return shlex.join([*PROGRAM, "-m", f"gpus={candidate.size.gpus}", *repeat, *kept, *own_command])


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words before and from '--' on, which are the user's own."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at:]


def _cells(candidate: Candidate, one: NextSizes) -> list[str]:
    what = "new" if candidate.repeat is None else "repeat"
    return [
        str(candidate.size.gpus),
        str(candidate.size.nodes),
        f"{what}, the target itself" if candidate.size == one.target else what,
        percent(candidate.width, 1),
        percent(candidate.narrowing),
        number(candidate.node_hours),
        number(candidate.node_hours_per_tenth),
    ]


def _sentences(one: NextSizes) -> list[str]:
    if one.why_not is not None:
        return [printable(one.why_not)]
    assert one.target is not None
    assert one.today is not None
    device = one.source.device
    marks = "; ".join(MARK_WORDS.get(mark, mark) for mark in one.source.marks)
    lines = [
        f"{gpus_text(one.target.gpus, device)} today: {number(one.today.median)} {one.source.series.counts}/s, "
        f"{span(*one.today.central90.ends)} (90 %, mean of many runs)"
        + ("" if one.width is None else f": {percent(one.width, 1)} wide")
        + (f" [{marks}]" if marks else ""),
        *one.basis,
    ]
    if not one.candidates:
        lines.append("No further run would narrow it by 5 % or more.")
    return [printable(line) for line in lines]
