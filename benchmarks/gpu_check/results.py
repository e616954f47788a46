"""Records the results of gpu_check in RESULTS.md, by GPU. Standard library only."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.gpu_check.figures import Figure, figure_of
from benchmarks.gpu_check.sections import SECTIONS
from harness.core.serialization import write_json

NAME = "gpu_check"
RECORDED = ROOT / "benchmarks" / "recorded" / NAME
RESULTS = ROOT / "benchmarks" / "RESULTS.md"

HEADER = """
## gpu_check

What `python -m benchmarks gpu_check` found on machines with a GPU; [docs/gpu.md](../docs/gpu.md) says what each
line means. Intervals are at 95 %.
"""

MACHINE = """
### {gpu}

{date}, code {code}. Machine: {machine}.

| section | figure | value | 95 % | bound | n |
|---|---|---|---|---|---|
"""
MARKS = {True: "", False: " **broken**", None: ""}


class Refused(Exception):
    """The file cannot be recorded; the message is one sentence for the user."""


def record(path: Path) -> None:
    """Store the file with the others and rewrite the section of RESULTS.md. Raises Refused."""
    document = read(path)
    gpu = _facts(document)["gpu"]
    RECORDED.mkdir(parents=True, exist_ok=True)
    write_json(RECORDED / f"{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json", document)
    # Imported here because `benchmarks.__main__` may be the caller.
    from benchmarks.__main__ import with_section

    RESULTS.write_text(with_section(RESULTS.read_text(encoding="utf-8"), NAME, text()), encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read gpu_check's output. Raises Refused if it is not such a file, or not from a GPU."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        facts = _facts(document)
        device = facts["device"]
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{path} is no file of gpu_check with a section 'machine'; give what --out has written") from None
    if device != "cuda":
        raise Refused(f"{path} was made with --reduced, on a CPU; only results of a GPU are recorded")
    if "gpu" not in facts:
        raise Refused(f"{path} does not name its GPU: its section 'machine' did not end; run gpu_check again")
    return document


def text() -> str:
    """The section of RESULTS.md with all recorded machines."""
    return HEADER + "".join(_machine(read(path)) for path in sorted(RECORDED.glob("*.json")))


def _machine(document: dict[str, Any]) -> str:
    facts = _facts(document)
    about = {"date": facts.get("date", "?"), "code": facts.get("code", "?"), "machine": facts.get("machine", "?")}
    lines = []
    for section in SECTIONS:
        entry = document.get(section.name)
        if entry is None:
            continue
        if entry["status"] != "passed" or not entry["figures"]:
            lines.append(f"| {section.name} | {entry['status']} | {_cell(entry.get('reason', ''))} | – | – | – |")
        lines += [f"| {section.name} | {_row(figure_of(figure))} |" for figure in entry["figures"]]
    return MACHINE.format(gpu=facts["gpu"], **about) + "".join(f"{line}\n" for line in lines)


def _row(figure: Figure) -> str:
    value = f"{figure.value:.4g}" if isinstance(figure.value, (int, float)) else _cell(str(figure.value))
    interval = f"{figure.interval[0]:.4g} to {figure.interval[1]:.4g}" if figure.interval else "–"
    bound = (figure.bound or "–") + MARKS[figure.holds]
    return " | ".join([figure.name, f"{value} {figure.unit}".strip(), interval, bound, str(figure.n)])


def _facts(document: dict[str, Any]) -> dict[str, str]:
    return {figure["name"]: figure["value"] for figure in document["machine"]["figures"]}


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")
