"""How a machine is described: what is text reaches Slurm and the ranks as it is, or is refused with one sentence."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import make_request, make_site, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from project import PROJECT, Cli
from submitit.slurm.slurm import _make_sbatch_string

from harness import site
from harness.command import AGAIN, NODE, rank_command, rank_environment
from harness.errors import UserError
from harness.launch.slurm import array_parameters
from harness.plan import Array, Resources
from harness.schema import Cluster, Container, GpuOption, Scheduler
from harness.spec import Placement
from harness.worker.rendezvous import Rendezvous

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
# What shells, sbatch or files have a meaning for.
NASTY = st.text(st.sampled_from(list(" \t'\"`\\#$(){};&|<>*?~!=%:,-\n\r\0aé→😀")), max_size=12)
RANK_3 = Rendezvous(3, 4, 1, 2, "n1", 20001)


def slurm_cluster(**changes: Any) -> Cluster:
    return Cluster(**{"name": "site", "scheduler": Scheduler.slurm, "gres": "gpu", **changes})


def script(cluster: Cluster) -> list[str]:
    """The lines of the sbatch script."""
    resources = site.resources(cluster, Placement(1, 2), 1)
    array = Array(resources, ((dataclasses.replace(make_request(), resources=resources),),))
    return _make_sbatch_string(
        command="worker", folder="/f/%j", **array_parameters(array, "token", Path("/study"))
    ).split("\n")


def as_sbatch_reads(lines: list[str]) -> dict[str, str]:
    """The options in a script, by the rules that sbatch 22.05 showed (tests/cluster/test_site_on_slurm.py asks it):
    quotes hold together, a backslash keeps what follows it, in quotes too, and a bare '#' begins a comment."""
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


def refused(cluster: Cluster) -> str | None:
    """The sentence; None where it is accepted."""
    try:
        site.check(cluster)
    except UserError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        assert message.startswith("cluster.")
        return message
    return None


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
    # With a function in the place of srun, the script prints what srun would be called with.
    text = "\n".join(["srun() { printf '%s\\0' \"$@\"; }", *script(cluster)])
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, timeout=30)
    assert done.stderr == b""
    assert done.stdout.decode().split("\0")[-2 - len(arguments) : -2] == arguments


@pytest.mark.parametrize(
    "name",
    ["", "a b", "-f", "--help", "a;b", "$(x)", "`x`", "a#b", "a\\b", "a\nb", "é", "'a'", '"a"', "a\0b", "a>b", "~"],
)
def test_a_modules_name_is_one(name: str) -> None:
    assert "is not a module's name" in (refused(slurm_cluster(modules=["lang/Python", name])) or "accepted")


def test_modules_come_before_the_lines_of_setup_and_the_ranks_and_a_missing_one_ends_the_job(tmp_path: Path) -> None:
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
def test_what_starts_mpi_is_a_word(name: str) -> None:
    assert "`srun --mpi=list`" in (refused(slurm_cluster(mpi=name)) or "accepted")


def test_what_starts_mpi_is_said_once_and_without_a_scheduler_only_mpirun_does() -> None:
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
def test_what_each_rank_has_of_its_own_cannot_be_set_for_all(name: str) -> None:
    assert f"{name} is set by the harness itself" in (refused(slurm_cluster(env={name: "x"})) or "accepted")


@given(value=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
def test_a_value_reaches_the_rank_as_it_is(value: str) -> None:
    if refused(slurm_cluster(env={"NCCL_X": value})):
        assert "\0" in value
        return
    spec = dataclasses.replace(make_spec(), env={"NCCL_X": value})
    assert rank_environment(spec, make_site(), RANK_3, {})["NCCL_X"] == value


# --- containers -------------------------------------------------------------------------------------------------------

FOLDERS = ("/results", "/data", "/results")


def command(container: Container, **environ: str) -> list[str]:
    prefix = site.container(container, "/project", FOLDERS)
    return rank_command(make_site(python="python3", container=prefix), Path("/run"), Path("/run/attempt-1"), environ)


WORKER = ["python3", "-u", "-m", "harness.worker", "/run", "/run/attempt-1"]
IN_CONTAINER = ["sh", "-c", 'trap "" USR2; eval "$HARNESS_ENVIRONMENT" && exec "$@"', "sh"]


def test_without_a_container_the_rank_is_started_as_it_is() -> None:
    assert command(Container()) == WORKER


@pytest.mark.parametrize("runtime", ["apptainer", "singularity"])
def test_apptainer_and_singularity_start_the_rank(runtime: str) -> None:
    container = Container(runtime, "/images/my torch.sif", ["--bind=/scratch", "--writable-tmpfs"])
    assert command(container) == [
        *(runtime, "exec", "--nv", "--bind=/project", "--bind=/results", "--bind=/data"),
        *("--bind=/scratch", "--writable-tmpfs", "/images/my torch.sif", *IN_CONTAINER, *WORKER),
    ]


def test_with_pyxis_the_rank_is_a_step_of_its_own_on_the_node_of_its_watcher() -> None:
    container = Container("pyxis", "nvcr.io#nvidia/pytorch:24.01-py3", ["--no-container-mount-home"])
    assert command(container, SLURMD_NODENAME="gpu7") == [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu7", "--cpu-bind=none", "--export=ALL"),
        *("--unbuffered", "--container-image=nvcr.io#nvidia/pytorch:24.01-py3"),
        *("--container-mounts=/project:/project,/results:/results,/data:/data", "--no-container-mount-home"),
        *(*IN_CONTAINER, *WORKER),
    ]
    assert NODE not in command(container)


@given(image=TEXT | NASTY, argument=TEXT | NASTY)
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("runtime", site.RUNTIMES)
def test_image_and_arguments_reach_the_runtime_as_they_are(runtime: str, image: str, argument: str) -> None:
    container = Container(runtime, image, [f"--x={argument}"])
    if refused(slurm_cluster(container=container)):
        assert not image or image.startswith("-") or "\0" in image + argument
        return
    argv = command(container, SLURMD_NODENAME="n1")
    assert f"--x={argument}" in argv
    assert image in argv or f"--container-image={image}" in argv


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (Container("docker", "x"), "cluster.container.runtime='docker': there are apptainer, singularity, pyxis"),
        (Container("apptainer"), "set cluster.container.image"),
        (Container(None, "x.sif"), "cluster.container.image='x.sif' has no effect without cluster.container.runtime"),
        (Container(None, None, ["--x"]), "cluster.container.args has no effect"),
        (Container("apptainer", "--help"), "would be taken for an option"),
        (Container("apptainer", "x.sif", ["--bind", "/scratch"]), "'/scratch' is not an option"),
    ],
)
def test_a_mistake_in_the_container_gets_one_sentence(container: Container, words: str) -> None:
    assert words in (refused(slurm_cluster(container=container)) or "accepted")


@pytest.mark.parametrize("folder", ["/a:b", "/a,b"])
def test_a_folder_that_a_container_cannot_be_told_of_is_refused(folder: str) -> None:
    with pytest.raises(UserError, match="choose another one"):
        site.container(Container("apptainer", "x.sif"), "/project", (folder,))


def test_pyxis_needs_slurm() -> None:
    cluster = Cluster(name="local", scheduler=Scheduler.local, container=Container("pyxis", "x"))
    assert "without a scheduler take apptainer" in (refused(cluster) or "accepted")


def in_container(env: dict[str, str], image: dict[str, str], *, program: str) -> str:
    """What a rank's program prints behind an image that brings variables of its own."""
    argv = command(Container("apptainer", "x.sif"))
    start = argv.index("sh")
    done = subprocess.run(
        [*argv[start : start + len(IN_CONTAINER)], "bash", "-c", program],
        env={"PATH": os.environ["PATH"], **env, **image},
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()  # not as lines: a '\r' is a character like others


@given(value=TEXT | NASTY)
@settings(max_examples=25, deadline=None)
def test_in_the_container_the_ranks_variables_win_over_the_images(value: str) -> None:
    if "\0" in value:
        return
    spec = dataclasses.replace(make_spec(), env={"NCCL_X": value})
    contained = make_site(container=site.container(Container("apptainer", "x.sif"), "/project", ()))
    env = rank_environment(spec, contained, RANK_3, {"PYTHONPATH": "/modules"})
    image = {"NCCL_X": "images", "RANK": "0", "OMP_NUM_THREADS": "64", "PYTHONPATH": "/opt/image"}
    program = 'printf "%s\\0" "$RANK" "$OMP_NUM_THREADS" "$PYTHONPATH" "$NCCL_X"'
    assert in_container(env, image, program=program).split("\0")[:-1] == ["3", "1", "/project:/opt/image", value]


def test_in_the_container_the_word_to_leave_does_not_kill_a_rank_that_is_still_starting() -> None:
    assert in_container({AGAIN: ""}, {}, program="kill -USR2 $$; echo alive") == "alive\n"


def test_the_watchers_step_does_not_describe_the_ranks() -> None:
    """srun would take it for its own options: all ranks would be bound to the cores of the first."""
    contained = make_site(container=site.container(Container("pyxis", "x"), "/project", ()))
    watcher = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x3,0xC",
        "SLURM_NTASKS": "4",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_TRES_PER_TASK": "gres:gpu:1",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "7",
        "SLURM_CONF": "/etc/slurm.conf",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "HOME": "/h",
    }
    env = rank_environment(make_spec(), contained, RANK_3, watcher)
    assert sorted(name for name in env if name.startswith("SLURM")) == ["SLURM_CONF", "SLURM_JOB_ID"]
    assert env["HOME"] == "/h"
    # A rank that srun starts does without: there, Slurm's variables are its own.
    assert rank_environment(make_spec(), make_site(), RANK_3, watcher)["SLURM_NTASKS"] == "4"


# --- conf/cluster -----------------------------------------------------------------------------------------------------


def test_slurm_yaml_lists_every_key_with_its_default() -> None:
    listed = yaml.safe_load((PROJECT / "conf" / "cluster" / "slurm.yaml").read_text())
    assert set(listed) == {f.name for f in dataclasses.fields(Cluster)}
    assert set(listed["container"]) == {f.name for f in dataclasses.fields(Container)}


def test_slurm_yaml_asks_for_no_more_than_gpus_cores_and_time() -> None:
    listed = yaml.safe_load((PROJECT / "conf" / "cluster" / "slurm.yaml").read_text())
    known = {f.name: listed[f.name] for f in dataclasses.fields(Resources) if f.name in listed}
    asked = site.resources(
        slurm_cluster(**{**known, "scheduler": Scheduler.slurm, "gpu_option": GpuOption.gres}), Placement(1, 4), 2
    )
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
