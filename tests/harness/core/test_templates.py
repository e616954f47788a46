from __future__ import annotations

from pathlib import Path

import pytest
from builders import make_site, make_spec

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Placement
from harness.core.workload.spec import WorkloadSpec
from harness.core.workload.templates import UnknownPlaceholder, expand, placeholders
from harness.node.workload import placeholder_values as values

SECOND_NODE = Rendezvous(5, 8, 1, 4, "gpu03", 29500)


def of_a_run(**params: object) -> dict[str, object]:
    workload = WorkloadSpec("script", "train", ("train.py",), params, "", 64)
    spec = make_spec(workload=workload, gpus=8, placement=Placement(2, 4), global_batch=64, batch_per_gpu=8, repeat=3)
    return values(spec, make_site(), Path("/study/run"), SECOND_NODE)


def test_every_placeholder_of_a_run() -> None:
    names = "batch_per_gpu global_batch gpus nodes gpus_per_node seed repeat data_root run_dir node_rank"
    text = " ".join(f"{{{name}}}" for name in [*names.split(), "master_addr", "master_port"])
    assert expand(text, of_a_run()) == "8 64 8 2 4 0 3 /data /study/run 1 gpu03 29500"


@pytest.mark.parametrize(("value", "text"), [(0.1, "0.1"), ("adam", "adam"), (True, "true"), (None, "null")])
def test_own_parameters_are_written_as_in_yaml(value: object, text: str) -> None:
    assert expand("--lr={lr}", of_a_run(lr=value)) == f"--lr={text}"


def test_doubled_braces_are_literal() -> None:
    assert expand('{{"gpus": {gpus}, "awk": {{}}}}', of_a_run()) == '{"gpus": 8, "awk": {}}'


def test_an_unknown_placeholder_is_named_with_the_valid_ones() -> None:
    with pytest.raises(UnknownPlaceholder, match=r"unknown placeholder \{batch\}; valid are batch_per_gpu, .*lr,"):
        expand("--batch {batch}", of_a_run(lr=1))


def test_an_unpaired_brace_says_how_to_write_it() -> None:
    with pytest.raises(UnknownPlaceholder, match=r"unpaired '\{'.*write \{\{ and \}\} for literal braces"):
        expand('{"a": {"b": 1}}', of_a_run())


def test_data_root_is_unknown_without_data() -> None:
    with pytest.raises(UnknownPlaceholder, match=r"unknown placeholder \{data_root\}"):
        expand("{data_root}/train", values(make_spec(), make_site(data_root=None), Path("/r"), SECOND_NODE))


def test_placeholders_in_order() -> None:
    assert placeholders("{run_dir}/{{x}}/{lr}") == ["run_dir", "lr"]
