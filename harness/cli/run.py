"""`harness key=value ...`: compose the requested runs, then plan and launch them together."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.core.console_script import Parser
from harness.core.errors import UserError
from harness.core.system import disk

if TYPE_CHECKING:
    from harness.plan.plan import Plan
    from harness.plan.request import StudyRequest
    from harness.study.study import Study

# Options answered by Hydra.
HYDRAS = ("cfg", "info", "hydra_help", "shell_completion")


def main(argv: Sequence[str], program: str = "harness") -> int:
    """Return the exit code: 0 all runs completed, 1 some failed, 2 invalid request, 130 interrupted."""
    own, command = split(argv)
    options = _options(own, program)
    if options.help:
        from harness.cli.help import help_text

        print(help_text(options.config_dir), end="")
        return 0
    from harness.config import composition

    composition.register()
    try:
        if options.config_path:
            raise UserError("--config-path has no effect here; --config-dir adds a folder")
        for_hydra = any(getattr(options, name) for name in HYDRAS)
        if not for_hydra or options.cfg == "job":  # --cfg job reports mistakes as a run does
            points = composition.compose(
                options.overrides, options.multirun, options.config_name, options.config_dir, command
            )
        if for_hydra:
            print(composition.hydra_output(own), end="")
            return 0
        return _run(points, [*argv])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in disk.NO_SPACE_ERRORS:
            raise
        print(
            f"error: {error.filename or 'a file'} cannot be written: {error.strerror}; free space (df -h, df -i) and "
            "re-run the command to continue",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted before anything was launched", file=sys.stderr)
        return 130


def split(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split at the first `--`: arguments of the harness, and the user's own command; None without `--`."""
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _options(argv: Sequence[str], program: str) -> argparse.Namespace:
    """Parse options under Hydra's names, so that Hydra's own can be passed on."""
    parser = Parser(
        prog=program, usage="%(prog)s [-m] [--config-dir DIR] key=value ... [-- command] (more: --help)", add_help=False
    )
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default="config")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-p", "--package")
    parser.add_argument("-i", "--info", nargs="?", const="all")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("-sc", "--shell-completion", action="store_true")
    parser.add_argument("-cp", "--config-path")
    return parser.parse_intermixed_args(argv)


def _run(points: list[Any], argv: list[str]) -> int:
    from harness.cli import console
    from harness.core.environment_variables import SECRET_VARIABLES
    from harness.plan import secret_environment
    from harness.plan.request import study_request
    from harness.study.study import Study

    asked = study_request(points)
    study = Study(asked.name, asked.folder)
    # Read the study under the lock, so that no other command adds runs before this one launches.
    with contextlib.nullcontext() if asked.plan_only else study.locked():
        plan = _plan(asked, study)
        if asked.plan_only:
            return 0
        # Not at the start, because most plans need no launcher and submitit takes a while to import.
        from harness.launch import allocation, local, slurm

        progress = console.Progress(plan)
        code_version = asked.requests[0].site.code_version
        submitter = slurm.Submitter(plan, study, console.note) if asked.scheduler == "slurm" else None
        if asked.scheduler == "local" and plan.to_launch:
            study.check_folder("submitit", local.PLACEHOLDERS)
        command = ["python", "-m", "harness", *secret_environment.masked(argv, asked.secrets)]
        os.environ.update({**asked.secrets, SECRET_VARIABLES: " ".join(asked.secrets)} if asked.secrets else {})
        study.record(plan, command, asked.scheduler, code_version, asked.skipped, asked.target_accuracy)
        try:
            if submitter is None:
                launch = allocation.launch if asked.scheduler == "allocation" else local.launch
                launch(plan, study, progress.report)
            else:
                submitter.submit(len(plan.queued))
                if not asked.wait:
                    return console.left(study, submitter.held_back)
                slurm.wait(plan, study, submitter, progress.report, console.note)
        except KeyboardInterrupt:
            console.interrupted(progress, study, submitter is not None)
            return 130
    return progress.summary(study)


def _plan(asked: StudyRequest, study: Study) -> Plan:
    """Make and print the plan. Raises UserError if it exceeds the budget."""
    from harness.cli import console
    from harness.core.events import COMPLETED, FAILED
    from harness.plan import cost
    from harness.plan.plan import make_plan

    known = study.prepared(dict.fromkeys(request.spec.run_id for request in asked.requests))
    # Before the results: whoever has left the queue by then has written its own.
    queued: set[str] = set()
    if asked.scheduler == "slurm":
        from harness.launch import slurm

        queued = slurm.queued(study, known, console.note)
    ended = study.ended(known)
    completed = {r for r, status in ended.items() if status == COMPLETED and asked.retry != "all"}
    failed = {r for r, status in ended.items() if status == FAILED and asked.retry == "none"}
    plan = make_plan(asked.requests, completed, queued, failed, asked.pack)
    expected = cost.expected(plan.arrays, study.folder)
    console.plan(plan, study, asked.scheduler, expected, asked.skipped)
    for note in (*asked.notes, *_without_framework(plan)):
        console.note(note)
    now = asked.requests[0].site.code_version
    if plan.to_launch and (others := study.code_versions(completed) - {now}):
        console.mixed_code(len(completed), others, now)
    cost.check_budget(plan.arrays, asked.budget_node_hours, expected)
    return plan


def _without_framework(plan: Plan) -> list[str]:
    """Return a sentence for each environment that lacks its framework or a package of the strategy. In containers, and
    where jobs load modules or a setup first, each rank checks this itself."""
    from harness.core import gpu_types
    from harness.core.strategies import info, packages_of
    from harness.plan import environments

    runs = [
        request
        for request in plan.to_launch
        if request.spec.workload is None
        and not request.site.container
        and not (request.resources.modules or request.resources.setup)
        and os.path.isfile(request.site.python)
    ]
    notes = []
    for request in runs:
        spec, python = request.spec, request.site.python
        if absent := environments.absent_packages(python, packages_of(spec.framework, spec.strategy)):
            which = f"framework '{spec.framework}'"
            which += f" with strategy={spec.strategy}" if info(spec.strategy).package else ""
            lacking = f"{python} has no package {' and no '.join(absent)}"
            notes.append(f"runs of {which} will fail: {lacking}; {gpu_types.completion(spec.environment)}")
    return list(dict.fromkeys(notes))
