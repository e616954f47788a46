"""Slurm's energy accounting: queries and the interpretation of answers. The answers are taken from slurm.conf(5),
scontrol(1) and sstat(1), since the tests' clusters do not count energy."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from project import PROJECT

from harness.core.run_files import SLURM_ENERGY
from harness.node.image import image as image_of
from harness.slurm import energy
from harness.slurm.client import settings_of

SCHEMA = PROJECT / "harness" / "schemas" / "slurm_energy.schema.json"


@pytest.mark.parametrize(
    ("line", "plugin"),
    [
        ("AcctGatherEnergyType    = acct_gather_energy/none", None),
        ("AcctGatherEnergyType    = (null)", None),
        ("SlurmdTimeout           = 300 sec", None),
        ("AcctGatherEnergyType    = acct_gather_energy/rapl", "acct_gather_energy/rapl"),
        ("AcctGatherEnergyType=acct_gather_energy/pm_counters", "acct_gather_energy/pm_counters"),
    ],
)  # fmt: skip
def test_whether_a_cluster_counts_energy(line: str, plugin: str | None) -> None:
    assert energy.plugin(settings_of(f"AccountingStorageType   = x\n{line}\nAuthType = auth/munge\n")) == plugin


@pytest.mark.parametrize(
    ("said", "joules"),
    [
        ("12345\n", 12345.0),
        ("12345.500000\n", 12345.5),
        *(
            (text, None)
            for text in ("0\n", "0.000000", "", "\n", "4294967294", "18446744073709551614", "nan", "1\n2\n")
        ),
    ],
)
def test_no_value_markers_are_never_an_energy(said: str, joules: float | None) -> None:
    assert energy.joules_of(said) == joules


def test_unanswered_energy_query_records_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no scontrol
    energy.write(tmp_path, {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"})
    found = json.loads((tmp_path / SLURM_ENERGY).read_text())
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    assert (found["joules"], found["reason"]) == (None, "scontrol did not answer")


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "12", "SUBMITIT_LOCAL_JOB_ID": "7"}])
def test_a_local_run_asks_nobody(tmp_path: Path, environ: dict[str, str]) -> None:
    energy.write(tmp_path, environ)
    assert not list(tmp_path.iterdir())


def test_an_image_is_known_by_name_size_and_time(tmp_path: Path) -> None:
    assert image_of(()) is None
    image = tmp_path / "torch.sif"
    image.write_bytes(b"x" * 100)
    told = image_of(("apptainer", "exec", "--nv", str(image)))
    assert told == {"image": str(image), "bytes": 100, "modified": image.stat().st_mtime}
    pyxis = ("srun", "--container-image=nvcr.io#nvidia/pytorch:24.05-py3", "--container-mounts=/a:/a")
    fetched = {"image": "nvcr.io#nvidia/pytorch:24.05-py3", "bytes": None, "modified": None}
    assert image_of(pyxis) == fetched
