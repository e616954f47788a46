"""Ranks in containers on a real Slurm: the layer between srun and the program, and what it passes on."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from project import PROJECT, Cli
from slurm_study import SHORT, TRAINED
from studies import described, program, read_json, run_dirs

from harness.slurm.client import error_message

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


@pytest.fixture
def telling_python(tmp_path: Path, torch_python: Path) -> Path:
    """A Python that first records where its rank runs, as a line of JSON in ranks.jsonl."""
    tell = (
        "import json, os, socket; "
        f"file = open('{tmp_path}/ranks.jsonl', 'a'); "
        "print(json.dumps({**os.environ, 'HOST': socket.gethostname()}), file=file, flush=True)"
    )
    return program(tmp_path / "bin" / "python", f'#!/bin/sh\n{torch_python} -c "{tell}"\nexec {torch_python} "$@"\n')


def told_by_ranks(tmp_path: Path) -> list[dict[str, str]]:
    lines = (tmp_path / "ranks.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda rank: int(rank["RANK"]))


def test_pyxis_ranks_start_on_their_own_node_with_their_own_gpu(
    cli: Cli, slurm: Any, tmp_path: Path, telling_python: Path
) -> None:
    """The plugin is not installed here; an srun wrapper that drops its options tests everything else."""
    real = shutil.which("srun", path=slurm.env["PATH"])
    program(
        tmp_path / "bin" / "srun",
        '#!/bin/bash\nfor a; do shift; case $a in --container-*) echo "$a" >> '
        f'{tmp_path}/left-out;; *) set -- "$@" "$a";; esac; done\nexec {real} "$@"\n',
    )
    environ = {**slurm.env, "PATH": f"{tmp_path}/bin:{slurm.env['PATH']}"}
    pyxis = (
        *("cluster.container.runtime=pyxis", "cluster.container.image='nvcr.io#x/y:z'", "cluster.gpus_per_node=2"),
        *(f"framework.environment={telling_python}", "+cluster.env.NCCL_X='a b'"),
    )
    done = cli("harness", "gpus=4", *SHORT, *pyxis, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = told_by_ranks(tmp_path)
    assert [rank["RANK"] for rank in ranks] == ["0", "1", "2", "3"]
    assert ranks[0]["HOST"] == ranks[1]["HOST"] != ranks[2]["HOST"] == ranks[3]["HOST"]
    assert {rank["SLURM_NTASKS"] for rank in ranks} == {"1"}, "each is a step of its own"
    assert len({rank["SLURM_STEP_ID"] for rank in ranks}) == 4
    assert {rank["NCCL_X"] for rank in ranks} == {"a b"}
    assert {rank["PYTHONPATH"] for rank in ranks} == {str(PROJECT)}
    results = tmp_path / "results"
    mounts = ",".join(f"{folder}:{folder}" for folder in (PROJECT, results))
    left_out = {"--container-image=nvcr.io#x/y:z", f"--container-mounts={mounts}"}
    assert set((tmp_path / "left-out").read_text().splitlines()) == left_out

    # The step would see all of the job's GPUs on this node. There are no real ones, so the run then fails.
    (tmp_path / "ranks.jsonl").unlink()
    failed = cli("harness", "gpus=4", *TRAINED[1:], *pyxis, env=environ)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "sees no GPU here" in failed.stdout
    assert {rank["RANK"]: rank["CUDA_VISIBLE_DEVICES"] for rank in told_by_ranks(tmp_path)} == {
        "0": "0", "1": "1", "2": "0", "3": "1",
    }  # fmt: skip


def test_pyxis_where_it_is_not_installed_fails_with_sruns_words(
    cli: Cli, slurm: Any, tmp_path: Path, telling_python: Path
) -> None:
    pyxis = ("cluster.container.runtime=pyxis", "cluster.container.image=x", f"framework.environment={telling_python}")
    done = cli("harness", "gpus=1", *SHORT, *pyxis, env=slurm.env)
    assert done.returncode == 1
    (run_dir,) = run_dirs(tmp_path)
    assert "unrecognized option '--container-image=x'" in error_message(
        "\n".join(read_json(run_dir / "result.json")["stderr_tail"])
    )


def test_an_apptainer_that_only_starts_the_program_gets_what_it_needs(
    cli: Cli, slurm: Any, tmp_path: Path, telling_python: Path
) -> None:
    """Apptainer is not installed here; a program replaces it that parses the command line like Apptainer and sets
    variables like an image."""
    image = tmp_path / "my image.sif"
    image.touch()
    program(
        tmp_path / "bin" / "apptainer",
        "#!/bin/bash\n[ \"$1 $2\" = 'exec --nv' ] || exit 9\nshift\nwhile [[ $1 == -* ]]; do\n"
        '  case $1 in --bind=*) [ -d "${1#--bind=}" ] || exit 8;; esac\n  shift\ndone\n'
        f'[ "$1" = "{image}" ] || exit 7\nshift\nexport OMP_NUM_THREADS=64 RANK=0 NCCL_X=images\nexec "$@"\n',
    )
    (tmp_path / "data").mkdir()
    environ = {**slurm.env, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    container = {"runtime": "apptainer", "image": str(image), "args": ["--cleanenv=no"]}
    description = described(tmp_path, container=container, env={"NCCL_X": "a\nb 'c'"})
    done = cli("harness", "gpus=2", *SHORT, *description, f"framework.environment={telling_python}", env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = told_by_ranks(tmp_path)
    assert [(r["RANK"], r["OMP_NUM_THREADS"], r["NCCL_X"]) for r in ranks] == [
        ("0", "1", "a\nb 'c'"), ("1", "1", "a\nb 'c'"),
    ]  # fmt: skip
