"""`python -m harness`: Hydra composes the runs that are asked for, then ONE plan and ONE launch follow."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.core.errors import UserError

if TYPE_CHECKING:
    from harness.plan.plan import Plan
    from harness.plan.request import StudyRequest
    from harness.study.study import Study


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 all runs completed, 1 some failed, 2 a mistake in what was asked for, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with _kept():
        from hydra._internal.utils import get_args_parser

        from harness.config import composition

        composition.register()
        arguments = get_args_parser().parse_intermixed_args(argv)
        if any((arguments.help, arguments.hydra_help, arguments.cfg, arguments.info)) or (arguments.shell_completion):
            return _hydra(argv)
    try:
        if arguments.config_path or arguments.experimental_rerun:
            raise UserError("--config-path and --experimental-rerun have no effect here; --config-dir adds a folder")
        points = composition.compose(
            arguments.overrides, arguments.multirun, arguments.config_name or "config", arguments.config_dir
        )
        return _run(points, argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted before anything was launched", file=sys.stderr)
        return 130


def entry_point() -> None:
    """The `harness` command: the same program, under a name that shells can complete."""
    sys.exit(main())


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """What is loaded stays to the end: to look through it for garbage, again and again, was a fifth of --help."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _hydra(argv: Sequence[str]) -> int:
    """--help, --cfg, --info and tab completion are Hydra's own."""
    import hydra

    from harness.config import composition

    sys.argv[1:] = argv
    hydra.main(version_base="1.3", config_path=str(composition.CONF), config_name="config")(lambda _: None)()
    return 0


def _run(points: list[Any], argv: list[str]) -> int:
    from harness.cli import console
    from harness.launch import allocation, local, slurm
    from harness.plan.request import study_request
    from harness.study.study import Study

    asked = study_request(points)
    study = Study(asked.name, asked.folder)
    # What the study has is read under the lock, so that no other command adds to it before this one launches.
    with contextlib.nullcontext() if asked.plan_only else study.locked():
        plan = _plan(asked, study)
        if asked.plan_only:
            return 0
        progress = console.Progress(plan)
        code_version = asked.requests[0].site.code_version
        submitter = slurm.Submitter(plan, study, console.note) if asked.scheduler == "slurm" else None
        command = ["python", "-m", "harness", *argv]
        study.record(plan, command, asked.scheduler, code_version, asked.skipped, asked.target_accuracy)
        try:
            if submitter is None:
                launch = allocation.launch if asked.scheduler == "allocation" else local.launch
                launch(plan, study, progress.report)
            else:
                submitter.submit(len(plan.queued))
                if not asked.wait:
                    return console.left(study, submitter.kept_back)
                slurm.wait(plan, study, submitter, progress.report, console.note)
        except KeyboardInterrupt:
            console.interrupted(progress, study, submitter is not None)
            return 130
    return progress.summary(study)


def _plan(asked: StudyRequest, study: Study) -> Plan:
    """What is to be launched; printed. Raises UserError where it would exceed the budget."""
    from harness.cli import console
    from harness.core.events import COMPLETED, FAILED
    from harness.launch import slurm
    from harness.plan import cost
    from harness.plan.plan import make_plan

    run_ids = list(dict.fromkeys(request.spec.run_id for request in asked.requests))
    ended = study.ended(run_ids)
    completed = {r for r, status in ended.items() if status == COMPLETED and asked.retry != "all"}
    failed = {r for r, status in ended.items() if status == FAILED and asked.retry == "none"}
    queued = slurm.queued(study, run_ids, console.note) if asked.scheduler == "slurm" else set()
    plan = make_plan(asked.requests, completed, queued, failed, asked.pack)
    expected = cost.expected(plan.arrays, study.folder)
    console.plan(plan, study, asked.scheduler, expected, asked.skipped)
    for note in asked.notes:
        console.note(note)
    now = asked.requests[0].site.code_version
    if plan.to_launch and (others := study.code_versions(completed) - {now}):
        console.mixed_code(len(completed), others, now)
    cost.check_budget(plan.arrays, asked.budget_node_hours, expected)
    return plan


if __name__ == "__main__":
    sys.exit(main())
