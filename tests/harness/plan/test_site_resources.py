"""Descriptions of a machine: texts reach Slurm and the ranks verbatim, or are rejected with one sentence."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import make_request, make_site, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from project import PROJECT, Cli
from site_builder import NASTY, RANK_3, TEXT, refused, slurm_cluster

from harness.config.schema import Cluster, Container, GpuOption, Scheduler, StageEnvironment
from harness.core.spec import Placement
from harness.launch.options import batch_script
from harness.node.command import rank_environment
from harness.plan import site_resources
from harness.plan.plan import Array, Resources


def script(cluster: Cluster) -> list[str]:
    """Return the lines of the sbatch script."""
    resources = site_resources.resources(cluster, Placement(1, 2), 1)
    array = Array(resources, ((dataclasses.replace(make_request(), resources=resources),),))
    return batch_script(array, "token", Path("/study")).split("\n")


def as_sbatch_reads(lines: list[str]) -> dict[str, str]:
    """Parse a script's options like sbatch 22.05 (verified by tests/cluster/test_site_on_slurm.py): quotes group, a
    backslash escapes the next character, even in quotes, and a bare '#' begins a comment."""
    options = {}
    for line in lines:
        if line.startswith("#SBATCH "):
            word, quote, escape = "", "", False
            for c in line.removeprefix("#SBATCH "):
                if escape or (quote and c not in (quote, "\\")):
                    word, escape = word + c, False
                elif c == "\\":
                    escape = True
                elif c == quote:
                    quote = ""
                elif c in "'\"":
                    quote = c
                elif c == "#" or c.isspace():
                    raise AssertionError(f"sbatch would not read all of {line!r}")
                else:
                    word += c
            assert not quote
            assert not escape
            name, _, value = word.removeprefix("--").partition("=")
            options[name] = value
    return options


# --- options of sbatch ------------------------------------------------------------------------------------------------


@given(value=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize(
    ("key", "option"),
    [
        *[(key, key) for key in ("partition", "account", "qos", "constraint", "reservation")],
        *[("memory_per_node", "mem"), ("gres", "gres"), ("gpu_type", "gres"), ("sbatch_args", "comment")],
    ],
)
def test_an_option_reaches_sbatch_as_it_is_or_is_refused(key: str, option: str, value: str) -> None:
    cluster = slurm_cluster(**{key: {"comment": value} if key == "sbatch_args" else value})
    if refused(cluster):
        assert not value or set(value) & set("\n\r\0"), "nothing else needs to be refused"
        return
    expected = {"gres": f"{value}:2", "gpu_type": f"gpu:{value}:2"}.get(key, value)
    assert as_sbatch_reads(script(cluster))[option] == expected


@given(name=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
def test_the_name_of_an_option_is_a_name(name: str) -> None:
    cluster = slurm_cluster(sbatch_args={name: "x"})
    assert refused(cluster) or name in as_sbatch_reads(script(cluster))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (True, "#SBATCH --x"),
        (3, "#SBATCH --x=3"),
        ("true", "#SBATCH --x=true"),
        (False, None),
        (None, None),
    ],
)
def test_true_is_an_option_without_a_value_and_null_leaves_it_out(value: Any, line: str | None) -> None:
    cluster = slurm_cluster(sbatch_args={"x": value})
    assert refused(cluster) is None
    assert [one for one in script(cluster) if one.startswith("#SBATCH --x")] == ([line] if line else [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition": ""}, "cluster.partition is empty; write null"),
        ({"account": "a\nb"}, "cluster.account='a\\nb' has a line break in it"),
        ({"qos": "a\0b"}, "has a zero character in it"),
        ({"sbatch_args": {"mail_type": "END"}}, "write it as mail-type: END"),
        ({"sbatch_args": {"--comment": "x"}}, "'--comment' is not a long option"),
        ({"sbatch_args": {"J": "x"}}, "'J' is not a long option of sbatch"),
        ({"sbatch_args": {"time": "1"}}, "'time' is set by the harness itself"),
        ({"sbatch_args": {"partition": "x"}}, "has a key of its own: cluster.partition"),
        ({"sbatch_args": {"mem": "1G"}}, "has a key of its own: cluster.memory_per_node"),
        ({"sbatch_args": {"comment": ["a"]}}, "cluster.sbatch_args.comment: give one text or number, not ['a']"),
        ({"sbatch_args": {"help": True}}, "'help' is set by the harness"),
        (
            {"srun_args": ["--label", "n1"]},
            "cluster.srun_args: 'n1' is not an option; write --name=value as one element",
        ),
        ({"srun_args": [""]}, "'' is not an option"),
        ({"srun_args": ["--x\0"]}, "zero character"),
        ({"setup": ["a\nb"]}, "give each line of shell as one element"),
        ({"setup": [" #SBATCH --nodes=9"]}, "options of sbatch go into cluster.sbatch_args"),
        ({"setup": ["a\0b"]}, "zero character"),
        ({"gpu_type": "v100", "gres": None}, "set cluster.gres=gpu"),
        ({"gpu_option": GpuOption.gpus_per_node, "gres": None}, "set cluster.gres=gpu"),
        ({"signal_seconds": 60, "timeout_minutes": 0.5}, "cluster.signal_seconds=60"),
    ],
)
def test_a_mistake_gets_one_sentence(changes: dict[str, Any], words: str) -> None:
    assert words in (refused(slurm_cluster(**changes)) or "accepted")


def test_a_character_that_the_locale_has_no_code_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "latin-1")
    assert refused(slurm_cluster(account="é")) is None
    assert "'→' in it, which this machine's locale has no code for" in (refused(slurm_cluster(account="→")) or "")


# --- what bash reads --------------------------------------------------------------------------------------------------


@given(arguments=st.lists((TEXT | NASTY).map("--x=".__add__), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_options_of_srun_reach_it_as_they_are(arguments: list[str]) -> None:
    cluster = slurm_cluster(srun_args=arguments)
    if refused(cluster):
        assert any("\0" in argument for argument in arguments)
        return
    # A function in place of srun prints its arguments.
    text = "\n".join(["srun() { printf '%s\\0' \"$@\"; }", *script(cluster)])
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, timeout=30)
    assert done.stderr == b""
    words = done.stdout.decode().split("\0")
    supervisor = words.index(sys.executable)
    assert words[supervisor - len(arguments) : supervisor] == arguments


@pytest.mark.parametrize(
    "name",
    ["", "a b", "-f", "--help", "a;b", "$(x)", "`x`", "a#b", "a\\b", "a\nb", "é", "'a'", '"a"', "a\0b", "a>b", "~"],
)
def test_invalid_module_names_are_rejected(name: str) -> None:
    assert "is not a module's name" in (refused(slurm_cluster(modules=["lang/Python", name])) or "accepted")


def test_modules_load_before_setup_and_a_missing_one_fails_the_job(tmp_path: Path) -> None:
    cluster = slurm_cluster(
        modules=["lang/Python/3.11", "system/CUDA@12=x"], setup=['echo "setup $A"', "echo '#' done"]
    )
    assert refused(cluster) is None
    functions = 'module() { echo "module $*"; A=set; return $BAD; }; srun() { echo ranks; }'
    for bad, printed in (
        ("0", ["module load lang/Python/3.11 system/CUDA@12=x", "setup set", "# done", "ranks"]),
        ("3", ["module load lang/Python/3.11 system/CUDA@12=x"]),
    ):
        text = "\n".join([functions, *script(cluster)])
        done = subprocess.run(["bash"], input=text, capture_output=True, text=True, env={"BAD": bad}, timeout=30)
        assert done.stdout.splitlines() == printed
        assert done.returncode == int(bad)


@pytest.mark.parametrize("name", ["", "pmix;", "--help", "a b", "pmi-2", "é\n"])
def test_mpi_launcher_is_a_single_word(name: str) -> None:
    assert "`srun --mpi=list`" in (refused(slurm_cluster(mpi=name)) or "accepted")


def test_mpi_launcher_is_given_only_once_and_must_be_mpirun_without_a_scheduler() -> None:
    assert "cluster.mpi" in (refused(slurm_cluster(srun_args=["--mpi=pmi2"])) or "accepted")
    for name in ("pmix", "pmix_v4", "pmi2", "none", "mpirun"):
        assert refused(slurm_cluster(mpi=name)) is None
        on_this_machine = Cluster(name="local", scheduler=Scheduler.local, mpi=name)
        assert (refused(on_this_machine) is None) == (name == "mpirun")


# --- environment variables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "A B", "A-B", "1A", "A=B", "É", "A\n", "$A", "A;B", "A'"])
def test_a_name_that_no_shell_could_set_is_refused(name: str) -> None:
    assert "is not a name of an environment variable" in (refused(slurm_cluster(env={name: "x"})) or "accepted")


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "PYTHONPATH"]
)
def test_per_rank_variables_cannot_be_set_for_all(name: str) -> None:
    assert f"{name} is set by the harness itself" in (refused(slurm_cluster(env={name: "x"})) or "accepted")


@given(value=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
def test_a_value_reaches_the_rank_as_it_is(value: str) -> None:
    if refused(slurm_cluster(env={"NCCL_X": value})):
        assert "\0" in value
        return
    spec = dataclasses.replace(make_spec(), env={"NCCL_X": value})
    assert rank_environment(spec, make_site(), RANK_3, {})["NCCL_X"] == value


# --- conf/cluster -----------------------------------------------------------------------------------------------------


def test_slurm_yaml_lists_every_key_with_its_default() -> None:
    listed = yaml.safe_load((PROJECT / "conf" / "cluster" / "slurm.yaml").read_text())
    assert set(listed) == {f.name for f in dataclasses.fields(Cluster)}
    assert set(listed["container"]) == {f.name for f in dataclasses.fields(Container)}


def test_slurm_yaml_asks_for_no_more_than_gpus_cores_and_time() -> None:
    listed = yaml.safe_load((PROJECT / "conf" / "cluster" / "slurm.yaml").read_text())
    known = {f.name: listed[f.name] for f in dataclasses.fields(Resources) if f.name in listed}
    enums = {"scheduler": Scheduler, "gpu_option": GpuOption, "stage_environment": StageEnvironment}
    known |= {key: enum[listed[key]] for key, enum in enums.items()}
    asked = site_resources.resources(slurm_cluster(**known), Placement(1, 4), 2)
    assert asked == Resources("slurm", Placement(1, 4), 2, 30.0, gres="gpu")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster=iris", "gpus=1,2,4,8,12"], ["5 runs in 5 arrays", "27.00 GPU-hours"]),
        (["cluster=gpu8", "gpus=1,2,4,8,16"], ["5 runs in 5 arrays", "31.00 GPU-hours"]),
        (["cluster=cpu", "gpus=1,2,4,8"], ["4 runs in 4 arrays", "15.00 rank-hours"]),
    ],
    ids=lambda value: value[0],
)
def test_the_worked_examples_are_planned(cli: Cli, arguments: list[str], words: list[str]) -> None:
    more = ("dataset=synthetic", "plan_only=true", "framework.environment=/usr/bin/env")
    done = cli("harness", "-m", *arguments, *more)
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout
