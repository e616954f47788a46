"""`python -m harness`: Hydra composes the runs that are asked for, then ONE plan and ONE launch follow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser

from harness import config
from harness.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 all runs completed, 1 some failed, 2 a mistake in what was asked for, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    config.register()
    arguments = get_args_parser().parse_intermixed_args(argv)
    if any((arguments.help, arguments.hydra_help, arguments.cfg, arguments.info)) or (arguments.shell_completion):
        return _hydra(argv)
    try:
        if arguments.config_path or arguments.experimental_rerun:
            raise UserError("--config-path and --experimental-rerun have no effect here; --config-dir adds a folder")
        points = config.compose(
            arguments.overrides, arguments.multirun, arguments.config_name or "config", arguments.config_dir
        )
        return _run(points, argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted before anything was launched", file=sys.stderr)
        return 130


def console() -> None:
    """The `harness` command: the same program, under a name that shells can complete."""
    sys.exit(main())


def _hydra(argv: Sequence[str]) -> int:
    """--help, --cfg, --info and tab completion are Hydra's own."""
    sys.argv[1:] = argv
    hydra.main(version_base="1.3", config_path=str(config.CONF), config_name="config")(lambda _: None)()
    return 0


def _run(points: list[Any], argv: list[str]) -> int:
    from harness import show
    from harness.launch import local, slurm
    from harness.plan import make_plan
    from harness.request import study_request
    from harness.study import Study

    asked = study_request(points)
    study = Study(asked.name, asked.folder)
    on_slurm = asked.scheduler == "slurm"
    # What the study has is read under the lock, so that no other command adds to it before this one launches.
    with contextlib.nullcontext() if asked.plan_only else study.locked():
        run_ids = list(dict.fromkeys(request.spec.run_id for request in asked.requests))
        completed = study.completed(run_ids)
        queued = slurm.queued(study, run_ids) if on_slurm else set()
        plan = make_plan(asked.requests, completed, queued)
        show.plan(plan, study, asked.scheduler)
        if asked.plan_only:
            return 0
        progress = show.Progress(plan)
        study.record(plan, ["python", "-m", "harness", *argv], asked.scheduler, asked.requests[0].site.code_version)
        try:
            if on_slurm:
                for array, job in zip(plan.arrays, slurm.submit(plan, study), strict=True):
                    show.submitted(array, job)
                slurm.wait(plan, study, progress.report)
            else:
                local.launch(plan, study, progress.report)
        except KeyboardInterrupt:
            show.interrupted(progress, study, on_slurm)
            return 130
    return progress.summary(study)


if __name__ == "__main__":
    sys.exit(main())
