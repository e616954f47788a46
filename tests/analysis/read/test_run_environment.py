"""Environments of a study's runs on the page: everything in env.json, and only the differences per run."""

from __future__ import annotations

import base64
import json
import os
import zlib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from environment_files import ENVIRONMENT, write_environment
from file_times import touch_later
from project import PROJECT
from seen import Seen, Tags, words
from study_builder import SITE, Logs, StudyBuilder, spec_of

from analysis.read.environment import LONGEST_VALUE, MOST_LEAVES, Environment, read_environment
from analysis.read.study import read_study
from analysis.report.html import differences as page_settings
from analysis.report.html import runs as page_runs
from analysis.report.html.differences import ABSENT, Settings, environments, hosts
from harness.core.measuring.environment import environment

SCHEMA = PROJECT / "harness" / "schemas" / "env.schema.json"


def environment_of(path: Path) -> Environment:
    found = read_environment(path)
    assert found is not None
    return found


def settings(study: StudyBuilder) -> Settings:
    read = read_study(study.folder)
    return environments(read.runs, read.folder)


def two_runs(study: StudyBuilder, **changes: Any) -> None:
    """Add two runs of the same point; the second one's environment has these changes."""
    for repeat, own in ((0, {}), (1, changes)):
        write_environment(study.completed(1, repeat=repeat), **own)


def details(html: str) -> dict[str, Any]:
    packed = html.split('id="details">')[1].split("<")[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_the_built_environment_and_this_machine_s_are_as_the_schema_says(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    here = environment(SITE.code_version, "3.11.2", "/envs/a/bin/python", {"torch": "2.13.0"}, os.environ)
    for document in (ENVIRONMENT, here):
        jsonschema.validate(document, schema)
    path = tmp_path / "run" / "attempt-1" / "env.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(here))
    leaves = environment_of(path).leaves
    assert leaves["version of torch"] == "2.13.0"
    assert leaves["cores"] == str(here["cores"])
    assert environment_of(path).hosts == here["host"]


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({"platform": "Linux-6.9"}, "platform", {"Linux-6.8.0-x86_64-with-glibc2.39", "Linux-6.9"}),
        ({"python": "3.12.4"}, "python", {"3.12.3", "3.12.4"}),
        ({"interpreter": "/other/python"}, "interpreter", {"/opt/envs/pytorch/bin/python", "/other/python"}),
        ({"versions": {"torch": "2.13.0", "nccl": "2.28"}}, "version of nccl", {"2.27", "2.28"}),
        ({"code_version": "other"}, "code_version", {"0123456789abcdef", "other"}),
        ({"cpu": None}, "cpu", {"AMD EPYC 9454", "null"}),
        ({"cores": 48}, "cores", {"96", "48"}),
        ({"memory_bytes": 1}, "memory_bytes", {"810000000000", "1"}),
        ({"gpus": ENVIRONMENT["gpus"][:1]}, "gpus.1", {"NVIDIA H100, GPU-<uuid>, 550.54, 81559 MiB", ABSENT}),
        ({"topology": ["", "", "PHB"]}, "topology.2", {"GPU1\ufffdNV18\ufffd X ", "PHB"}),
        ({"nvlink": ["25 GB/s"]}, "nvlink.0", {ABSENT, "25 GB/s"}),
        ({"numa": {"0": "0-47", "1": "none"}}, "numa.1", {"48-95", "none"}),
        ({"variables": {"NCCL_IB_DISABLE": "1"}}, "variables.NCCL_IB_DISABLE", {ABSENT, "1"}),
        ({"variables": {"NCCL_DEBUG": "WARN"}}, "variables.NCCL_DEBUG", {"INFO", "WARN"}),
        ({"later": {"field": [True]}}, "later.field.0", {ABSENT, "true"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_leaf_of_the_environment_is_compared(
    study: StudyBuilder, changes: dict[str, Any], key: str, values: set[str]
) -> None:
    two_runs(study, **changes)
    found = settings(study)
    assert {value for value, _ in found.differing[key]} == values
    assert [n for _, n in found.differing[key]] == [1, 1]


def test_inherently_unique_values_are_not_differences(study: StudyBuilder) -> None:
    own = {
        "SLURM_JOB_ID": "18",
        "SLURM_ARRAY_JOB_ID": "18",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_NAME": "study-1f2e",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURMD_NODENAME": "node7",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "51234",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.7",
        "OMPI_MCA_orte_hnp_uri": "1234.0;tcp://10.0.0.7:5678",
    }
    uuid = "GPU-91a2b3c4-1111-2222-3333-444455556666"
    for repeat, (host, job) in enumerate((("node0", "17"), ("node7", "18"))):
        run_dir = study.completed(1, repeat=repeat)
        log = {"NCCL_DEBUG_FILE": f"{run_dir}/attempt-1/nccl.rank0.log"}
        gpus = (
            ENVIRONMENT["gpus"]
            if not repeat
            else [text.replace(text.split(", ")[1], uuid) for text in ENVIRONMENT["gpus"]]
        )
        variables = {**log, **(own if repeat else {})}
        python = f"/local/staged-{job}-{host}/bin/python"
        write_environment(run_dir, host=host, gpus=gpus, variables=variables, interpreter=python)
    found = settings(study)
    assert found.differing == {}
    assert found.shared["variables.NCCL_DEBUG_FILE"].endswith("runs/<run>/nccl.rank0.log")
    assert found.shared["interpreter"] == "/local/staged-<job>-<job>/bin/python"
    rows = read_study(study.folder).runs
    assert sorted(hosts(rows)) == [("node0, of node[0-1]", 1), ("node7, of node[7-8]", 1)]


def test_configuration_comes_first_then_the_environment_then_the_hosts(study: StudyBuilder) -> None:
    two_runs(study, host="node3", variables={"NCCL_IB_DISABLE": "1"})
    seen = Seen(study)
    text = words(Tags(seen.html).text)
    section = text[text.index("What differs between the runs") :]
    order = ["ConfigurationValues", "repeat", "EnvironmentValues", "variables.NCCL_IB_DISABLE", "Host of rank 0"]
    places = [section.index(word) for word in order]
    assert places == sorted(places)
    assert "node3, of node[0-1] 1" in section
    document = details(seen.html)
    assert document["environment"]["differing"] == ["variables.NCCL_IB_DISABLE"]
    first, second = (document["runs"][spec_of(1, repeat=repeat).run_id] for repeat in (0, 1))
    assert document["environments"][second["environment"]] == {"variables.NCCL_IB_DISABLE": "1"}
    assert dict(second["facts"])["Host"] == "node3, of node[0-1]"
    assert first["environment"] != second["environment"]


def test_one_file_is_read_per_distinct_environment(study: StudyBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    for repeat in range(6):
        write_environment(study.completed(1, repeat=repeat), host=f"node{repeat}", cores=48 if repeat % 2 else 96)
    read = read_study(study.folder)
    opened = []
    monkeypatch.setattr(
        "analysis.report.html.differences.read_environment", lambda path: opened.append(path) or read_environment(path)
    )
    found = environments(read.runs, read.folder)
    assert len(opened) == 2
    assert len({id(own) for own in found.of_runs}) == 2
    assert {key: sorted(values) for key, values in found.differing.items()} == {"cores": [("48", 3), ("96", 3)]}


def test_a_run_that_recorded_nothing_is_no_difference_and_says_so(study: StudyBuilder) -> None:
    two_runs(study)
    study.add(spec_of(4), None, result={"status": "failed", "reason": "rank 0 ended with signal 9"})
    found = settings(study)
    assert found.differing == {}
    assert found.shared["cores"] == "96"
    assert found.of_runs[-1] is None
    assert details(Seen(study).html)["runs"][spec_of(4).run_id]["environment"] is None


def test_environment_comes_from_the_last_attempt_that_recorded_one(study: StudyBuilder) -> None:
    run_dir = study.attempts(spec_of(1), Logs(block_seconds=[1.0], ends=False, exit_codes=[-9]), Logs())
    write_environment(run_dir, 1, cores=1)
    assert settings(study).shared["cores"] == "1"
    write_environment(run_dir, 2, cores=2)
    assert settings(study).shared["cores"] == "2"


def test_a_changed_environment_is_noticed_and_a_damaged_one_is_named(study: StudyBuilder) -> None:
    run_dir = study.completed(1)
    path = write_environment(run_dir)
    read_study(study.folder)
    write_environment(run_dir, cores=7)
    touch_later(path)
    assert read_study(study.folder).reread == 1
    assert settings(study).shared["cores"] == "7"
    for text in ('{"v": 1, "host"', "[]", '{"a": ' + "[" * 100_000, "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        touch_later(path)
        read = read_study(study.folder)
        assert [(row["file"], row["kind"]) for row in read.damage] == [("attempt-1/env.json", "damaged file")]
        assert read.runs[0]["status"] == "completed"
        assert "cores" not in settings(study).shared
        touch_later(path)


def test_huge_environments_are_stored_compactly_and_stay_distinguishable(study: StudyBuilder) -> None:
    huge = {f"NCCL_{i:04}": "x" for i in range(2_000)}
    two_runs(study, platform="p" * 100_000, variables=huge)
    third = study.completed(1, repeat=2)
    write_environment(third, platform="p" * 99_999 + "q", variables={**huge, "NCCL_1999": "y"})
    leaves = [environment_of(p).leaves for p in sorted(study.folder.glob("runs/*/attempt-1/env.json"))]
    assert all(len(own) <= MOST_LEAVES + 1 for own in leaves)
    assert max(len(value) for own in leaves for value in own.values()) <= LONGEST_VALUE
    found = settings(study)
    assert len(found.differing["platform"]) == len(found.differing["further values"]) == 3
    assert len(read_study(study.folder).runs[0]["env_digest"]) == 16


def test_omitted_environments_are_referenced_by_file(study: StudyBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    two_runs(study, platform="another")
    monkeypatch.setattr(page_runs, "MOST_DETAILS", 0)
    seen = Seen(study)
    assert details(seen.html)["environments"] is None
    assert "each run's env.json has its own" in words(Tags(seen.html).text)


def test_most_frequent_of_too_many_environments_are_compared(
    study: StudyBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repeat in range(5):
        write_environment(study.completed(1, repeat=repeat), cores=repeat if repeat < 2 else 96)
    monkeypatch.setattr(page_settings, "MOST_CHARACTERS", 1)
    found = settings(study)
    assert (found.left_out, found.differing) == (2, {})
    assert "those of 2 runs are not compared here" in words(Tags(Seen(study).html).text)


def test_hostile_environments_are_words_in_the_page(study: StudyBuilder) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e"
    two_runs(study, host=hostile, platform=hostile, **{hostile: hostile})
    seen = Seen(study)
    tags = Tags(seen.html)
    assert "img" not in {tag for tag, _ in tags.tags}
    assert "</script><img src=x onerror=alert(1)>\ufffd[31m\ufffd" in tags.text
    assert not {"\x1b", "\u202e"} & set(seen.html)
