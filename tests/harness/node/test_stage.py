"""Environments staged on the nodes' disks: packed, unpacked, used and removed, with real virtual environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import make_site
from project import PROJECT

from harness.config import composition
from harness.core.errors import UserError
from harness.node import stage
from harness.plan.request import StudyRequest, study_request


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A small environment with a package and its byte code."""
    folder = tmp_path / "shared" / "small"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    package = site_packages(folder) / "of_the_environment.py"
    package.write_text("import sys\nprint(__file__, sys.prefix)\n")
    subprocess.run([folder / "bin" / "python", "-m", "py_compile", package], check=True, timeout=120)
    return folder


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3*/site-packages")
    return found


def asked(tmp_path: Path, *overrides: str) -> StudyRequest:
    composition.register()
    fixed = ("dataset=synthetic", "cluster.device=cpu", f"results={tmp_path}")
    return study_request(composition.compose(["gpus=1", *fixed, *overrides], True, "config", None))


def test_what_is_unpacked_runs_from_its_new_folder_alone(environment: Path, tmp_path: Path) -> None:
    archive = stage.pack(tmp_path / "study", environment, print)
    folder = tmp_path / "node" / "harness-17-0-n1"
    stage.unpack(archive, folder)
    code = "import of_the_environment"
    done = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    file, prefix = done.stdout.split()
    assert prefix == str(folder)
    assert Path(file).is_relative_to(folder)
    assert list(site_packages(folder).glob("__pycache__/*.pyc")), "else every rank would compile it again"


def test_the_archive_is_made_once_and_anew_when_the_environment_changes(environment: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = stage.pack(tmp_path, environment, said.append)
    (site_packages(environment) / "__pycache__" / "other.pyc").touch()  # as a running job does
    assert stage.pack(tmp_path, environment, said.append) == first
    assert len(said) == 1
    (site_packages(environment) / "installed_later.py").touch()
    second = stage.pack(tmp_path, environment, said.append)
    assert second != first
    assert sorted((tmp_path / stage.FOLDER).iterdir()) == sorted([first, second]), "and nothing half-made"


def test_the_last_rank_of_a_node_removes_the_folder(tmp_path: Path) -> None:
    environ = {stage.STAGED: str(tmp_path / "harness-17-0"), "SLURMD_NODENAME": "n1"}
    folder = tmp_path / "harness-17-0-n1"
    folder.mkdir()
    site = make_site(stage_environment="tar")
    with stage.staged_site(site, environ) as first:
        with stage.staged_site(site, environ) as second:
            assert first.python == second.python == str(folder / "bin" / "python")
        assert folder.exists()
    assert not folder.exists()


def test_job_without_its_staged_environment_does_not_fall_back(tmp_path: Path) -> None:
    for way in ("tar", "sbcast"):
        site = make_site(stage_environment=way)
        with pytest.raises(SystemExit, match=f"={way}, but .* has not staged the env"), stage.staged_site(site, {}):
            pass
    with stage.staged_site(make_site(), {}) as here:
        assert here == make_site()


def test_begin_json_records_how_the_environment_was_staged(tmp_path: Path) -> None:
    environ = {stage.STAGED: str(tmp_path / "h"), stage.ARCHIVE: "/gone", stage.BEGAN: "10.0", stage.ENDED: "14.5"}
    by_tar = stage.staging_record(make_site(stage_environment="tar"), environ)
    by_sbcast = stage.staging_record(make_site(stage_environment="sbcast"), {**environ, stage.BROADCAST: "1.250000"})
    assert by_tar is not None
    assert by_sbcast is not None
    keys = ("way", "seconds", "broadcast_seconds")
    assert [by_tar[key] for key in keys] == ["tar", 4.5, None]
    assert [by_sbcast[key] for key in keys] == ["sbcast", 4.5, 1.25]
    assert stage.staging_record(make_site(), environ) is None


@pytest.mark.parametrize("broken", ["archive", "interpreter", "folder"])
def test_node_that_cannot_stage_reports_why(environment: Path, tmp_path: Path, broken: str) -> None:
    if broken == "interpreter":
        (environment / "bin" / "python").unlink()
        (environment / "bin" / "python").symlink_to("/nowhere/python3")
    archive = stage.pack(tmp_path, environment, print)
    if broken == "archive":
        archive.write_bytes(archive.read_bytes()[:100])
    base = tmp_path / "node" / "harness-17-0"
    if broken == "folder":
        base.parent.touch()
    variables = {stage.STAGED: str(base), stage.ARCHIVE: str(archive), "SLURMD_NODENAME": "n1"}
    done = subprocess.run(
        [sys.executable, "-m", "harness.node.stage"],
        env={**os.environ, **variables, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: cluster.stage_environment=tar: on ")
    why = {"archive": "cannot be unpacked", "interpreter": "does not start here", "folder": "cannot be created"}
    assert why[broken] in done.stderr
    assert not Path(f"{base}-n1").exists()


@pytest.mark.parametrize("way", ["tar", "sbcast"])
def test_the_plan_knows_what_is_staged_and_the_run_stays_the_same(environment: Path, tmp_path: Path, way: str) -> None:
    on_slurm = ("cluster=slurm", f"framework.environment={environment}")
    (request,) = asked(
        tmp_path, *on_slurm, f"cluster.stage_environment={way}", "cluster.stage_folder=/scratch"
    ).requests
    (plain,) = asked(tmp_path, *on_slurm).requests
    assert (request.resources.staged, request.resources.stage_folder) == (str(environment), "/scratch")
    assert (request.site.stage_environment, plain.site.stage_environment) == (way, "none")
    assert (request.resources.stage_environment, plain.resources.stage_environment) == (way, "none")
    assert plain.resources.staged is None
    assert request.spec.run_id == plain.spec.run_id


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster=local"], "cluster.stage_environment has no effect without a scheduler"),
        (["cluster=slurm", "cluster.scheduler=allocation"], "needs cluster.scheduler=slurm"),
        (
            [
                "cluster=slurm",
                "cluster.container.runtime=apptainer",
                "cluster.container.image=/a.sif",
                "framework.environment=python3",
            ],
            "whose image is already a single file",
        ),
        (["cluster=slurm", "pack=true"], "pack=true"),
        (
            ["cluster=slurm", "pack=true", "cluster.stage_environment=sbcast"],
            "stage_environment=sbcast is not supported",
        ),
        (
            ["cluster=slurm", "cluster.scheduler=allocation", "cluster.stage_environment=sbcast"],
            "needs cluster.scheduler=slurm",
        ),
        (["cluster=slurm", "strategy=mpi", "cluster.mpi=mpirun"], "cluster.mpi=mpirun"),
        (["cluster=slurm", "framework.environment=/usr/bin/env"], "/usr has no pyvenv.cfg"),
        (["cluster=slurm", "cluster.stage_folder=scratch"], "give an absolute path"),
        (["cluster=slurm", "cluster.stage_folder=/x", "cluster.stage_environment=none"], "has no effect"),
    ],
)
def test_plan_rejects_unsupported_staging(environment: Path, tmp_path: Path, overrides: list[str], said: str) -> None:
    given = ["cluster.stage_environment=tar", f"framework.environment={environment}"]
    keys = {word.split("=")[0] for word in overrides}
    with pytest.raises(UserError, match=said):
        asked(tmp_path, *(word for word in given if word.split("=")[0] not in keys), *overrides)
