"""Variables that look secret are taken out of what is written."""

from __future__ import annotations

import pytest

from harness.config.schema import Cluster
from harness.config.workload_schema import Workload
from harness.core.errors import UserError
from harness.plan import secret_environment


@pytest.mark.parametrize("name", ["MY_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "password", "DB_CREDENTIALS"])
def test_a_secret_leaves_the_configuration_and_the_command_line(name: str) -> None:
    cluster = Cluster(name="mine", env={name: "a b=c", "NCCL_ALGO": "Ring"})
    assert secret_environment.take([cluster, cluster]) == {name: "a b=c"}
    assert cluster.env == {"NCCL_ALGO": "Ring"}
    argv = ["gpus=1", f"+cluster.env.{name}=a b=c", f"cluster.env={{{name}: a b=c}}", "+cluster.env.NCCL_ALGO=Ring"]
    assert secret_environment.masked(argv, {name: "a b=c"}) == [
        *("gpus=1", f"+cluster.env.{name}=***", f"cluster.env={{{name}: ***}}", "+cluster.env.NCCL_ALGO=Ring")
    ]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "OMPI_MCA_btl", "AUTHOR"])
def test_other_variables_stay(name: str) -> None:
    cluster = Cluster(name="mine", env={name: "1"})
    assert secret_environment.take([cluster]) == {}
    assert cluster.env == {name: "1"}


def test_a_secret_of_the_command_that_would_not_arrive_is_refused() -> None:
    workload = Workload(command=["train.py", "--api-key=one"])
    with pytest.raises(UserError, match=r"what is in the command or its parameters looks secret.*--export=NONE hides"):
        secret_environment.take_from_commands([(workload, Cluster(name="mine", sbatch_args={"export": "NONE"}))])


def test_a_secret_that_would_not_arrive_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be swept"):
        secret_environment.take([Cluster(name="mine", env={"A_TOKEN": value}) for value in ("one", "two")])
    for keys in ({"sbatch_args": {"export": "NONE"}}, {"srun_args": ["--export=NONE"]}):
        with pytest.raises(UserError, match="--export=NONE hides it"):
            secret_environment.take([Cluster(name="mine", env={"A_TOKEN": "one"}, **keys)])


def test_a_short_secret_is_masked_where_its_name_stands_and_said_to_be_seen_in_output() -> None:
    values = {"A_TOKEN": "ab", "B_TOKEN": "long enough"}
    argv = ["gpus=1", "+cluster.env={A_TOKEN: ab, OTHER: ab}", "+cluster.env={'A_TOKEN':'ab'}", "study=ab"]
    assert secret_environment.masked(argv, values) == [
        *("gpus=1", "+cluster.env={A_TOKEN: ***, OTHER: ab}", "+cluster.env={'A_TOKEN':'***'}", "study=ab")
    ]
    (note,) = secret_environment.notes(values)
    assert note == "A_TOKEN: fewer than 4 characters, not masked in the runs' output"
    assert secret_environment.notes({"B_TOKEN": "long enough", "C_TOKEN": ""}) == []
