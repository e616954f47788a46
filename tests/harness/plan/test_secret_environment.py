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
