"""`python -m benchmarks gpu_check`: runs the sections one after another, each in a process of its own.

A section that hangs, crashes or breaks CUDA does not affect the others: it is killed with its children when its share
of the budget is used up, and the file keeps what it reported. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.gpu_check import results
from benchmarks.gpu_check.figures import figure_of
from benchmarks.gpu_check.sections import SECTIONS, Section
from harness.core.serialization import write_json
from harness.plan.machine import gpus

BUDGET = 480.0
# Part of a section's share reserved for shutting down; it plans its measurements to finish earlier.
SPARE_SECONDS = 3.0
POLL_SECONDS = 0.2
# With less time no section can report anything.
LEAST_SECONDS = 5.0
Document = dict[str, dict[str, Any]]


class Refused(Exception):
    """The command cannot run; the message is one sentence for the user."""


def main(argv: Sequence[str]) -> int:
    """Run the check and return the exit code.

    0: all bounds held; 1: some did not, or a section failed; 2: no GPU or invalid arguments; 143: terminated.
    """
    asked = _parser().parse_args(argv)
    try:
        if asked.record:
            results.record(asked.record)
            return 0
        if importlib.util.find_spec("torch") is None:
            raise Refused(f"{sys.executable} has no PyTorch; run gpu_check with an interpreter that has PyTorch >= 2.7")
        if asked.budget <= 0:
            raise Refused(f"--budget {asked.budget:g}: give the seconds that the check may take, such as {BUDGET:g}")
        names = [section.name for section in SECTIONS]
        if unknown := set(asked.only) - set(names):
            raise Refused(f"--only {' '.join(sorted(unknown))}: there is no such section; valid: {', '.join(names)}")
        with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
            return _run(asked, Path(folder))
    except (Refused, results.Refused) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu_check", description="Checks a machine with a GPU.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="JSON file for the figures, rewritten after each section")
    what.add_argument("--record", type=Path, help="put the figures of such a file into benchmarks/RESULTS.md")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds, for all sections (default: %(default)g)")
    parser.add_argument(
        "--reduced", action="store_true", help="every section on the CPU, in small form: tests the check"
    )
    parser.add_argument("--wheels", type=Path, help="folder of wheels, or of unpacked packages, that Python lacks here")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="folder with the data sets (default: data/)")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION", help="these sections alone, and the first")
    return parser


def _run(asked: argparse.Namespace, folder: Path) -> int:
    # The first section detects the GPU, without which the others are meaningless.
    chosen = [s for s in SECTIONS if not asked.only or s.name in asked.only or s is SECTIONS[0]]
    if asked.wheels and not asked.wheels.is_dir():
        raise Refused(f"--wheels {asked.wheels}: there is no such folder")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    environment = _environment(asked, folder)
    document: Document = {section.name: _entry("waiting") for section in chosen}
    until = time.monotonic() + asked.budget
    # So that the running section is stopped and recorded when Slurm's time limit is reached.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for number, section in enumerate(chosen):
            left = until - time.monotonic()
            share = left * section.weight / sum(later.weight for later in chosen[number:])
            share = min(left, max(share, section.least))
            print(f"{section.name}: {section.title}, at most {share:.0f} s ... ", end="", file=sys.stderr, flush=True)
            if share < LEAST_SECONDS:
                document[section.name] = {**_entry("timeout"), "reason": "no time was left of the budget"}
                write_json(asked.out, document)
            else:
                _section(section, share, asked, environment, folder / section.name, document)
            print(_summary(document[section.name]), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 143
    finally:
        signal.signal(signal.SIGTERM, before)
    bad = [name for name, entry in document.items() if entry["status"] not in ("passed", "skipped")]
    print(f"{asked.out}: {len(document) - len(bad)} of {len(document)} sections passed or skipped", file=sys.stderr)
    return 1 if bad else 0


def _section(
    section: Section,
    share: float,
    asked: argparse.Namespace,
    environment: dict[str, str],
    scratch: Path,
    document: Document,
) -> None:
    """Run a section, rewriting the file whenever its entry changes."""
    scratch.mkdir()
    report, log = scratch.with_suffix(".jsonl"), scratch.with_suffix(".log")
    report.touch()
    device = "cpu" if asked.reduced else "cuda"
    arguments = [section.function, report, device, max(1.0, share - SPARE_SECONDS), scratch, asked.data.absolute()]
    begin = time.monotonic()
    status, size = "killed", 0
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_check.child", *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while (code := process.poll()) is None and time.monotonic() - begin < share:
                if report.stat().st_size != size:
                    size = report.stat().st_size
                    _record(_read("running", report, log, begin), section, asked.out, document)
                time.sleep(POLL_SECONDS)
            status = "timeout" if code is None else "error" if code else "passed"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            _end(process)
            _record(_read(status, report, log, begin, share), section, asked.out, document)
    if why := document[section.name].get("no_gpu"):
        raise Refused(why)
    shutil.rmtree(scratch, ignore_errors=True)


def _record(entry: dict[str, Any], section: Section, out: Path, document: Document) -> None:
    """Keep a section's entry and rewrite the file, which a machine without a GPU never gets."""
    document[section.name] = entry
    if "no_gpu" not in entry:
        write_json(out, document)


def _read(status: str, report: Path, log: Path, begin: float, share: float = 0.0) -> dict[str, Any]:
    """Build a section's entry from its reported lines and how its process ended."""
    lines = []
    for line in report.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # the last line of a killed process may be incomplete
            lines.append(json.loads(line))
    entry = _entry(status)
    entry["seconds"] = round(time.monotonic() - begin, 2)
    entry["figures"] = [line["figure"] for line in lines if "figure" in line]
    for line in lines:
        if "skipped" in line:
            entry |= {"status": "skipped", "reason": line["skipped"]}
        if "no_gpu" in line:
            entry["no_gpu"] = line["no_gpu"]
    if entry["status"] == "timeout":
        entry["reason"] = f"took longer than its share of {share:.0f} s and was killed"
    if entry["status"] == "error":
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        entry["reason"] = said[-1] if said else "ended without a word"
        entry["log"] = said[-40:]
    broken = [figure["name"] for figure in entry["figures"] if figure_of(figure).holds is False]
    if entry["status"] == "passed" and broken:
        entry |= {"status": "failed", "reason": f"out of bounds: {', '.join(broken)}"}
    return entry


def _entry(status: str) -> dict[str, Any]:
    return {"status": status, "seconds": 0.0, "figures": []}


def _summary(entry: dict[str, Any]) -> str:
    reason = f": {entry['reason']}" if "reason" in entry else ""
    return f"{entry['status']}, {len(entry['figures'])} figures, {entry['seconds']:.0f} s{reason}"


def _environment(asked: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Environment of the sections and their children: this checkout and --wheels on PYTHONPATH."""
    paths = [str(ROOT)]
    if asked.wheels:
        unpacked = folder / "wheels"
        for wheel in sorted(asked.wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(unpacked)
        paths += [str(unpacked), str(asked.wheels.absolute())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}
    environment["PYTHONUNBUFFERED"] = "1"
    if asked.reduced:
        # Use the CPU even if there is a GPU, with one thread to suit small machines.
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    elif len(gpus()) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = gpus()[0]  # checks one GPU
    return environment


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a section's process and all its descendants, in any session."""
    if process.poll() is None:
        for pid in [process.pid, *_descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[int]:
    """Living descendants of the process."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # After the name, which may contain anything, come state and parent (proc(5)).
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found = list(parents.get(pid, []))
    for child in found:
        found.extend(parents.get(child, []))
    return found
