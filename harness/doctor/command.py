"""`python -m harness.doctor [key=value ...]`: what works for a configuration, and what is missing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from harness.core.console_script import Parser
from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.config.schema import Config
    from harness.doctor.checks import Check

# Names of the groups for --only -> their headings. --probe adds one more.
GROUPS = {"here": "here", "slurm": "Slurm", "framework": "frameworks", "others": "frameworks", "data": "data sets"}
STYLES = {"ok": "green", "missing": "bold red", "note": "yellow"}


def main(argv: Sequence[str] | None = None, program: str = "python -m harness.doctor") -> int:
    """Run the doctor and return the exit code.

    0: everything required is there; 1: something is missing; 2: invalid arguments; 130: interrupted.
    """
    arguments = _arguments(argv, program)
    try:
        from harness.config import data_source
        from harness.config.composition import compose, register

        register()
        points = compose(arguments.overrides, False, "config", arguments.config_dir)
        # With data=both, check the variant that needs files.
        point = data_source.variants(points[0])[0]
        _refuse_unknown_groups(arguments.only)
        if arguments.all and not arguments.probe and arguments.only and "others" not in arguments.only.split(","):
            raise UserError(f"--all has no effect with --only={arguments.only}: add the group others, or --probe")
        _refuse_mistakes(point, arguments.probe)
        checks = _checks(point, arguments)
        missing = _print_json(checks) if arguments.json else _print(checks)
    except ModuleNotFoundError as error:
        # First of all, because the doctor itself needs the harness's environment.
        print(
            f"missing: {sys.executable} has no {error.name}; `make login` builds .venv with it",
            file=sys.stderr,
        )
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; temporary files were removed", file=sys.stderr)
        return 130
    return 1 if missing else 0


def _arguments(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = Parser(
        prog=program,
        description="Check what works on this machine for a configuration and what is missing. "
        "Exit code 0: everything required is there; 1: something is missing; 2: invalid arguments.",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for python -m harness")
    parser.add_argument(
        "--probe",
        action="store_true",
        help="also run a convolution, a compiled step, an allreduce; on Slurm, in a job that also checks the node",
    )
    parser.add_argument(
        "--all", action="store_true", help="load every framework, and compute with it if --probe is given"
    )
    parser.add_argument(
        "--only", metavar="GROUP,...", default="", help=f"these groups of checks alone: {', '.join(GROUPS)}"
    )
    parser.add_argument("--json", action="store_true", help="print a list of checks as JSON")
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with your own configurations")
    return parser.parse_intermixed_args(argv)


def _refuse_unknown_groups(only: str) -> None:
    if unknown := [name for name in filter(None, only.split(",")) if name not in GROUPS]:
        raise UserError(f"--only {only}: there is no group '{unknown[0]}'; valid: {', '.join(GROUPS)}")


def _refuse_mistakes(config: Config, probe: bool) -> None:
    """Raise UserError for what any machine would refuse. What this machine lacks is left to the checks."""
    from harness.config.schema import Device, Precision, Scheduler
    from harness.core.spec import NSYS
    from harness.plan.request import request

    if config.cluster.scheduler is Scheduler.local:
        # This machine decides about the device here, and a missing GPU is not a mistake.
        config = replace(config, precision=Precision.fp32, cluster=replace(config.cluster, device=Device.cpu))
    elif probe and config.cluster.scheduler is not Scheduler.slurm:
        raise UserError("--probe submits a job of its own; leave it out with cluster.scheduler=allocation")
    anywhere = replace(config.framework, environment=sys.executable)
    trace = False if config.trace == NSYS else config.trace
    request(replace(config, framework=anywhere, data=replace(config.data, check=False), trace=trace))


def _checks(config: Config, arguments: argparse.Namespace) -> Iterator[Check]:
    from harness.config.schema import Scheduler
    from harness.doctor import checks, compute, frameworks, node_probe, slurm_checks

    config_dir, every = arguments.config_dir, arguments.all
    groups = {
        "here": checks.here(config),
        "slurm": slurm_checks.slurm(config),
        "framework": frameworks.configured(config),
        "others": frameworks.others(config, config_dir, every),
        "data": checks.datasets(config, config_dir),
    }
    chosen = list(filter(None, arguments.only.split(","))) or list(GROUPS)
    at = chosen.index("framework") if "framework" in chosen else len(chosen)

    def of(names: Iterable[str]) -> Iterator[Check]:
        for name in names:
            yield from guarded(GROUPS[name], groups[name])

    # Loading the framework, in a process of its own, takes as long as all that follows it.
    with ThreadPoolExecutor(1) as beside:
        loaded = beside.submit(list, of(chosen[at : at + 1]))
        yield from of(chosen[:at])
        rest = list(of(chosen[at + 1 :]))
        yield from loaded.result()
        yield from rest
    if arguments.probe and config.cluster.scheduler is Scheduler.local:
        yield from guarded("probe", compute.here(config, config_dir, every))
    elif arguments.probe:
        yield from guarded("probe", node_probe.probe(config, config_dir, every, _say))


def guarded(group: str, checks: Iterable[Check]) -> Iterator[Check]:
    """Run a group of checks; an exception in one group must not hide the others."""
    from harness.doctor.checks import MISSING, Check

    try:
        yield from checks
    except Exception as error:
        what = f"this check failed: {type(error).__name__}: {error}"
        yield Check(group, "doctor", MISSING, what, "please report it; the other checks are not affected")


def _print(checks: Iterable[Check]) -> int:
    """Print each check as soon as it is known, then a summary. Returns the number of missing items."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    group, missing = "", []
    # Shown on a terminal only: loading a framework from a busy file system takes a while.
    with console.status("checking; loading a framework can take half a minute"):
        for check in checks:
            if check.group != group:
                group = check.group
                console.print(Text(group, style="bold"))
            if check.state == "missing":
                missing.append(f"{check.name} ({check.group})")
            line = Text("  ").append(f"{check.state:<8}", style=STYLES[check.state])
            line.append(f"{check.name}: {check.found}").append(f" -> {check.advice}" if check.advice else "")
            console.print(line)
    if missing:
        console.print(Text(f"missing: {', '.join(missing)}", style=STYLES["missing"]))
    else:
        console.print(Text("everything this configuration needs is there", style=STYLES["ok"]))
    return len(missing)


def _print_json(checks: Iterable[Check]) -> int:
    all_of_them = list(checks)
    print(json.dumps([asdict(check) for check in all_of_them], indent=1))
    return sum(check.state == "missing" for check in all_of_them)


def _say(text: str) -> None:
    # stdout may be read by a program.
    print(text, file=sys.stderr, flush=True)
