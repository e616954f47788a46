from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf, open_dict

from harness.config import composition
from harness.config.schema import Config
from harness.core.errors import UserError


@pytest.fixture(autouse=True)
def _registered() -> None:
    composition.register()


def points(*overrides: str, multirun: bool = True) -> list[Config]:
    return composition.compose(overrides, multirun, "config", None)


def test_a_sweep_gives_every_combination() -> None:
    found = points("gpus=1,2,4", "model=resnet20,resnet44", "seed=range(0,3)", "cluster=local")
    assert {(p.gpus, p.model.name, p.seed) for p in found} == {
        (gpus, model, seed) for gpus in (1, 2, 4) for model in ("resnet20", "resnet44") for seed in range(3)
    }
    assert len(found) == 18


def composed_by_hydra(overrides: list[str]) -> object:
    with initialize_config_dir(version_base="1.3", config_dir=str(composition.CONF)):
        cfg = hydra_compose("config", overrides)
    with open_dict(cfg):
        cfg.pop("hydra", None)
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


def plain(point: Config) -> object:
    # Strategy options get their types only when checked; to Hydra they are text.
    cfg = OmegaConf.structured(point)
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


@pytest.mark.parametrize(
    "overrides",
    [
        ["gpus=2", "cluster=local"],
        ["cluster=slurm", "cluster.partition=gpu", "model=resnet110", "gpus=8"],
        ["measure=smoke", "measure.steps=40", "cluster=local"],
        ["measure={steps: 30}", "measure.block_steps=3", "cluster=local"],
        ["dataset=fashion_mnist", "dataset.augment=false", "cluster=slurm"],
        ["+cluster.env.NCCL_ALGO=Ring", "cluster=slurm"],
    ],
    ids=str,
)
def test_points_are_what_hydra_itself_composes(overrides: list[str]) -> None:
    """We apply values to a composed choice of groups; Hydra's own `compose` takes both at once."""
    for multirun in (True, False):
        assert [plain(p) for p in points(*overrides, multirun=multirun)] == [composed_by_hydra(overrides)]


@pytest.mark.parametrize(
    "sweep",
    [
        [["gpus=1", "gpus=2"], ["seed=0", "seed=1"], ["batch=64"]],
        [["framework=pytorch", "framework=tensorflow"], ["model=resnet20", "model=resnet44"], ["seed=0", "seed=1"]],
        [
            ["framework=pytorch", "framework=keras"],
            ["strategy=allreduce", "strategy=mpi"],
            ["dataset=cifar10", "dataset=text"],
        ],
        [["framework=jax", "framework=mxnet"], ["measure=smoke", "measure=default"], ["optimizer={lr: 0.1}"]],
        [["model=vgg16", "model=resnet18"], ["data=real", "data=synthetic"], ["data.workers=2", "data.workers=3"]],
        [["fault=kill_rank", "fault=none"], ["dataset=text", "dataset=cifar10"], ["seed=1", "seed=2"]],
        [["strategy=allreduce"], ["strategy.options.compress=none", "strategy.options.compress=fp16"]],
        [["framework.options.compile=true", "framework.options.compile=false"], ["scaling=weak", "scaling=strong"]],
        [["+cluster.env={A:x}", "+cluster.env={B:y}"], ["cluster.timeout_minutes=3", "cluster.timeout_minutes=4"]],
        [["+cluster.env.NCCL_ALGO=Ring", "+cluster.env.NCCL_ALGO=Tree"], ["measure.steps=20", "measure.steps=40"]],
        [["dataset.mean=[0.1,0.2,0.3]", "dataset.mean=[0.3,0.2,0.1]"], ["heartbeat=null", "heartbeat=60"]],
        [["trace=true", "trace=nsys"], ["optimizer={lr: 0.1}", "optimizer={lr: 0.2, momentum: 0.5}"]],
        [["measure={steps: 20}", "measure={block_steps: 4}", "measure={steps: 40}"], ["seed=1", "seed=2"]],
        [["measure.warmup_steps=5", "measure.warmup_steps=6"], ["measure={steps: 20}", "measure={probe_steps: 4}"]],
        [["++workload.params={lr: 1}", "++workload.params={mom: 2}"], ["workload=script"], ["gpus=1", "gpus=2"]],
        [["framework={name: pytorch}", "framework={options: {compile: true}}"], ["seed=1", "seed=2"]],
        [["results=r/${seed}"], ["seed=3", "seed=4"]],
        [["results='r 1'", 'results="r,2"', "results=r\\=3"], ["optimizer.lr=1e-3", "optimizer.lr=0.5"]],
        [["dataset.augment=true", "dataset.augment=false"], ["heartbeat=null", "heartbeat=1e2"]],
        [["framework=pytorch", "framework=jax"], ["model=resnet20", "model=vgg16"], ["results=r/${model.name}"]],
        [["trace_steps=3", "trace_steps=${gpus}"], ["gpus=1", "gpus=2"]],
    ],
    ids=str,
)
def test_sweep_points_equal_single_points(sweep: list[list[str]]) -> None:
    """Points that override the same keys are derived from the first of them."""
    swept = [f"{values[0].split('=', 1)[0]}=" + ",".join(v.split("=", 1)[1] for v in values) for values in sweep]
    alone = [points(*values, "cluster=slurm", multirun=False)[0] for values in itertools.product(*sweep)]
    found = points(*swept, "cluster=slurm")
    assert found == alone
    assert len(found) > 1


def test_hydra_composes_each_choice_of_a_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compose(name: str, overrides: list[str], **keywords: bool) -> object:
        asked.append(overrides)
        return hydra_compose(name, overrides, **keywords)

    monkeypatch.setattr("hydra.compose", compose)
    sweep = ("framework=pytorch,jax,mxnet", "strategy=allreduce,mpi", "model=vgg16,resnet18,resnet20,resnet32")
    assert len(points(*sweep, "seed=1,2", "cluster=local")) == 48
    # The first point, and each choice beside the first one of its group.
    assert len(asked) == 1 + 2 + 1 + 3


GLOBAL = "# @package _global_\n"


def measure(steps: int, **others: Any) -> str:
    """The file of a measurement that sets keys outside of its group too, if there are others."""
    keys = yaml.safe_load((composition.CONF / "measure" / "smoke.yaml").read_text(encoding="utf-8")) | {"steps": steps}
    return GLOBAL + yaml.safe_dump({"measure": keys, **others}) if others else yaml.safe_dump(keys)


@pytest.mark.parametrize(
    "files",
    [
        {"model/a.yaml": GLOBAL + "model: {name: resnet20}\nseed: 3"},
        # The first point has that model anyway, so the other measurement seems not to change it.
        {"model/a.yaml": "name: resnet20", "measure/a.yaml": measure(9, model={"name": "resnet20"})},
        {"measure/a.yaml": measure(9, defaults=[{"override /dataset": "text"}])},
        {"model/b.yaml": "name: resnet${measure.steps}", "measure/a.yaml": measure(20), "measure/b.yaml": measure(44)},
    ],
    ids=["package", "hidden", "defaults", "interpolation"],
)
def test_groups_that_depend_on_each_other_are_composed_by_hydra(tmp_path: Path, files: dict[str, str]) -> None:
    """In sweeps over both, of which each combination is composed alone too."""
    given = {"model/a.yaml": "name: resnet18", "model/b.yaml": "name: resnet44"}
    given |= {"measure/a.yaml": measure(9), "measure/b.yaml": measure(47)}
    for name, text in {**given, **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    def found(*overrides: str) -> list[Config]:
        return composition.compose([*overrides, "cluster=local"], True, "config", str(tmp_path))

    alone = {pair: found(f"model={pair[0]}", f"measure={pair[1]}")[0] for pair in itertools.product("ab", repeat=2)}
    for models, measures in itertools.product(("a,b", "b,a"), repeat=2):
        pairs = itertools.product(models.split(","), measures.split(","))
        assert found(f"model={models}", f"measure={measures}") == [alone[pair] for pair in pairs]


def test_a_file_beside_the_choices_that_cannot_be_read_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "model" / "no-file.yaml").mkdir(parents=True)
    sweep = ["model=resnet20,resnet44", "measure=smoke,default", "cluster=local"]
    assert composition.compose(sweep, True, "config", str(tmp_path)) == points(*sweep)


def test_an_option_that_depends_on_two_groups_is_composed_by_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a primary defaults list can hold one. Here it has a file for one combination only."""
    conf = tmp_path / "conf"
    shutil.copytree(composition.CONF, conf)
    text = (conf / "config.yaml").read_text(encoding="utf-8")
    (conf / "config.yaml").write_text(
        text.replace("  - _self_", "  - optional more@measure: ${model}_${dataset}\n  - _self_")
    )
    (conf / "more").mkdir()
    (conf / "more" / "vgg16_text.yaml").write_text("steps: 47\n")
    monkeypatch.setattr("harness.config.composition.sweep.CONF", conf)
    found = points("model=resnet20,vgg16", "dataset=cifar10,text", "cluster=local", "measure=smoke")
    assert [point.measure.steps for point in found] == [6, 6, 6, 47]


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ("gpus=1,", "gpus=abc"),
        ("gpus=1,", "gpus=null"),
        ("gpus=1,", "gpus=???"),
        ("precision=fp32,", "precision=fp8"),
        ("strategy.options.bucket_mb=1,", "strategy.options.bucket_mb=x"),
        ("+cluster={gpu_type: a},", "+cluster={partion: x}"),
        ("+framework.options={compile: true},", "+framework.options={compil: true}"),
        ("framework.name=pytorch,", "framework.name=torch"),
        ("+cluster.env={A:x},", "+cluster.env=x"),
    ],
)
def test_a_mistake_in_a_later_point_is_said_as_in_the_first(values: str, wrong: str) -> None:
    with pytest.raises(UserError) as first:
        points(wrong, "strategy=allreduce", "cluster=local")
    with pytest.raises(UserError) as later:
        points(values + wrong.split("=", 1)[1], "strategy=allreduce", "cluster=local")
    assert str(later.value) == str(first.value)


def test_an_experiment_brings_its_sweep_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "two.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: resnet20\nstudy: two\n"
        "hydra:\n  sweeper:\n    params:\n      gpus: 1,2\n      seed: 0,1,2\n"
    )
    found = composition.compose(["+experiment=two", "seed=7", "cluster=local"], True, "config", str(tmp_path))
    assert [(p.study, p.model.name, p.gpus, p.seed) for p in found] == [
        ("two", "resnet20", 1, 7),
        ("two", "resnet20", 2, 7),
    ]
    swept = ["+experiment=two", "seed=7", "model=resnet32,resnet44", "cluster=local"]
    found = composition.compose(swept, True, "config", str(tmp_path))
    assert [(p.model.name, p.gpus) for p in found] == [
        (model, gpus) for gpus in (1, 2) for model in ("resnet32", "resnet44")
    ]


def test_a_sweep_of_an_experiment_is_never_left_out_silently(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    for name, counts in (("two", "1,2"), ("four", "1,4")):
        text = f"# @package _global_\nhydra:\n  sweeper:\n    params:\n      gpus: {counts}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    with pytest.raises(UserError, match="the experiment sweeps over gpus=1,2: add -m"):
        composition.compose(["+experiment=two", "cluster=local"], False, "config", str(tmp_path))
    with pytest.raises(UserError, match="cannot be swept over"):
        composition.compose(["+experiment=two,four", "cluster=local"], True, "config", str(tmp_path))


def test_a_site_adds_its_cluster_in_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("name: mine\nscheduler: slurm\ndevice: cuda\ngpus_per_node: 8\n")
    (point,) = composition.compose(["cluster=mine", "gpus=8"], False, "config", str(tmp_path))
    assert (point.cluster.name, point.cluster.gpus_per_node) == ("mine", 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo=1", "'foo' is not a key of the configuration. Valid keys: study, results"),
        ("gpu=2", "Did you mean 'gpus'?"),
        ("+foo=1", "'foo' is not a key of the configuration"),
        ("measure.step=1", "'step' is not a key of 'measure'. Did you mean 'steps'?"),
        ("+cluster.partion=x", "'partion' is not a key of 'cluster'. Did you mean 'partition'?"),
        ("strategy.options.bucket=1", "'bucket' is not a key of 'strategy.options'. Did you mean 'bucket_mb'?"),
        ("+strategy.options.bucket=1", "Valid keys: bucket_mb"),
        ("~gpus", "'gpus' was removed from the configuration"),
        ("gpus=abc", "gpus=abc: 'gpus' takes a whole number (several: -m gpus=1,2,4,8)"),
        ("gpus=null", "gpus=null: 'gpus' needs a value"),
        ("gpus=1.5", "gpus=1.5: 'gpus' takes a whole number"),
        ("gpus=1..4", "gpus=1..4: 'gpus' takes a whole number"),
        ("deterministic=ja", "deterministic=ja: 'deterministic' takes true or false"),
        ("cluster.modules=7", "'cluster.modules' takes a list, such as [a,b], not a number"),
        ("cluster.env=x", "'cluster.env' takes keys with values, such as {a: 1}, not text"),
        ("study=тест", "'study=тест' names a folder: use letters from A to Z"),
        ("data.root=/home/тест", "characters other than ASCII need quotes"),
        ("results=/tmp/a\nb", r"'results=/tmp/a\nb' has a line break"),
        ("strategy=ddp", "there is no 'ddp' in 'strategy'. Did you mean 'allreduce'? Valid: allreduce, fsdp,"),
        ("framework=torch", "Did you mean 'pytorch'?"),
        ("scaling=both", "scaling=both: 'scaling' is one of strong, weak"),
        ("precision=fp8", "precision=fp8: 'precision' is one of fp32, tf32, bf16, fp16"),
        ("framework=tensrflow", "Did you mean 'tensorflow'? Valid: emulated, jax, keras, mxnet, pytorch, tensorflow"),
        ("strategy.options.bucket_mb=x", "bucket_mb=x: 'bucket_mb' takes a number"),
        ("experiment=x", "use +experiment=x"),
        ("gpus=1,,2", "'gpus=1,,2' is not of the form"),
        ("gpus=[", "'gpus=[' is not of the form"),
        ("hydra.verbose=true,false", "keys of hydra itself have no effect here"),
        ("hydra/launcher=basic", "keys of hydra itself have no effect here"),
    ],
)
def test_a_mistake_gets_one_sentence(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        points(override, "cluster=local")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nqoss: x\n", "mine.yaml: 'qoss' is not a key of 'cluster'. Did you mean 'qos'?"),
        ("name: mine\ngpus_per_node: four\n", "mine.yaml: cluster.gpus_per_node=four: 'cluster.gpus_per_node' takes a"),
        ("name: mine\n partition: gpu\n", "mine.yaml, line 2: this is not YAML (mapping values are not allowed here)"),
        ("name: mine\nname: yours\n", "mine.yaml, line 2: 'name' is there twice; keep one"),
        ("name: mine\nenv:\nA: b\n", "mine.yaml: cluster.env=null: 'cluster.env' needs a value"),
    ],
)
def test_a_mistake_in_a_sites_file_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        composition.compose(["cluster=mine"], False, "config", str(tmp_path))
    assert f"{tmp_path}/cluster/{message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_with_commas_without_multirun_say_how_to_sweep() -> None:
    with pytest.raises(UserError, match="'gpus=1,2' gives several values: to sweep over them, add -m"):
        points("gpus=1,2", multirun=False)


@pytest.fixture
def path_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_cluster_is_slurm_exactly_where_sbatch_is_on_the_path(path_without_slurm: Path) -> None:
    assert points()[0].cluster.name == "local"
    (path_without_slurm / "sbatch").write_text("#!/bin/sh\n")
    (path_without_slurm / "sbatch").chmod(0o755)
    assert points()[0].cluster.name == "slurm"
    assert points("cluster=local")[0].cluster.name == "local"


def test_tab_completion_knows_groups_and_values(tmp_path: Path, project: Path) -> None:
    """Calls the function that `harness -sc install=bash` defines, as bash does."""
    (tmp_path / "harness").write_text(f'#!/bin/sh\nexec {sys.executable} -m harness "$@"\n')
    (tmp_path / "harness").chmod(0o755)
    script = (
        f'export PATH={tmp_path}:$PATH PYTHONPATH={project}; eval "$(harness -sc install=bash)"; '
        'COMP_LINE="harness model=resnet1"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(harness model=resnet1); '
        'COMP_CWORD=1; hydra_bash_completion; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["model=resnet110", "model=resnet18"], done.stderr
