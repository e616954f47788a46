"""Supported combinations of framework, strategy and precision; sweeps with unsupported ones; the baseline."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import PROJECT, Cli

from harness.config import composition
from harness.config.framework_capabilities import CAPABILITIES
from harness.core.errors import UserError
from harness.plan.request import StudyRequest, study_request

FRAMEWORKS = sorted(path.stem for path in (PROJECT / "conf" / "framework").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every framework an interpreter, whatever is built on this machine, since nothing is run."""
    composition.register()
    monkeypatch.chdir(tmp_path)


def asked(*overrides: str, tmp_path: Path, data: tuple[str, ...] = ("dataset=synthetic",)) -> StudyRequest:
    python = tmp_path / "python"
    python.touch(mode=0o755)
    fixed = (*data, "cluster=local", "cluster.device=cpu", f"framework.environment={python}")
    return study_request(composition.compose([*overrides, *fixed], True, "config", None))


def names(found: StudyRequest) -> set[tuple[str, str, int]]:
    return {(r.spec.framework, r.spec.strategy, r.spec.gpus) for r in found.requests}


def conf(name: str) -> dict[str, Any]:
    return yaml.safe_load((PROJECT / "conf" / "framework" / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_has_its_package_and_the_script_of_its_environment(framework: str) -> None:
    assert (PROJECT / "harness" / "worker" / framework / "__init__.py").is_file()
    assert (PROJECT / "sbatch" / "env" / f"{conf(framework)['environment']}.sh").is_file()


def test_the_published_comparison_exists_in_full(tmp_path: Path) -> None:
    found = asked(
        *("framework=pytorch,tensorflow,keras,mxnet", "strategy=allreduce,horovod,mpi", "gpus=1,2"), tmp_path=tmp_path
    )
    assert len(found.requests) == 4 * 3 * 2
    assert found.skipped == ()


def test_what_a_framework_does_not_offer_is_an_error_that_says_what_it_does(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"'horovod' is not offered by framework 'jax'; jax offers: plain, allreduce, mpi, ps_sync"
    ):
        asked("framework=jax", "strategy=horovod", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"precision=bf16 is not offered by framework 'mxnet'; mxnet offers: fp32"):
        asked("framework=mxnet", "precision=bf16", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"optimizer.name=lars is not offered by framework 'keras'; keras offers: sgd"):
        asked("framework=keras", "optimizer.name=lars", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"strategy.options.bucket_mb has no effect in framework 'mxnet'"):
        asked("framework=mxnet", "strategy.options.bucket_mb=10", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"strategy 'plain' has one rank only; with gpus=2"):
        asked("strategy=plain", "gpus=2", tmp_path=tmp_path)


def test_networks_and_data_sets_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    text = ("dataset=synthetic_text",)
    with pytest.raises(
        UserError, match=r"'gpt2' is a network for text, which framework 'jax' does not offer; jax offers"
    ):
        asked("framework=jax", "model=gpt2", tmp_path=tmp_path)
    with pytest.raises(
        UserError, match=r"'gpt2' is a network for text, and data set 'synthetic' holds images; .*resnet20"
    ):
        asked("model=gpt2", tmp_path=tmp_path)
    with pytest.raises(
        UserError, match=r"is a network for images, and data set 'synthetic_text' holds text; .*gpt_tiny"
    ):
        asked("model=resnet20", tmp_path=tmp_path, data=text)
    with pytest.raises(UserError, match=r"strategy 'hybrid' is not offered for text"):
        asked("model=gpt_tiny", "strategy=hybrid", tmp_path=tmp_path, data=text)
    with pytest.raises(UserError, match=r"dataset.context=0 and dataset.image_size=0: text has a context"):
        asked("model=gpt_tiny", "dataset.context=0", tmp_path=tmp_path, data=text)
    with pytest.raises(UserError, match=r"dataset.context=8 with reader 'idx': for text take dataset.reader=text"):
        asked("model=gpt_tiny", "dataset.context=8", "dataset.reader=idx", tmp_path=tmp_path, data=text)
    found = asked("model=resnet20,gpt_tiny", "skip_unsupported=true", tmp_path=tmp_path, data=text)
    assert [r.spec.model for r in found.requests] == ["gpt_tiny"]


def test_whitening_networks_are_rejected_where_unsupported(
    tmp_path: Path,
) -> None:
    for framework in ("tensorflow", "keras", "mxnet", "jax"):
        with pytest.raises(
            UserError, match=rf"computed from the training images, which framework '{framework}' does not"
        ):
            asked(f"framework={framework}", "model=airbench94", tmp_path=tmp_path)
    [found] = asked("framework=pytorch", "model=airbench94", tmp_path=tmp_path).requests
    assert found.spec.model == "airbench94"


def test_only_pytorch_and_emulated_offer_all_networks() -> None:
    all_networks = [name for name in FRAMEWORKS if CAPABILITIES[name].inputs == ("images", "text")]
    assert all_networks == ["emulated", "pytorch"]  # emulated builds none


def test_a_sweep_can_leave_out_what_does_not_exist_and_says_so(tmp_path: Path) -> None:
    sweep = ("framework=pytorch,jax", "strategy=allreduce,horovod", "gpus=1,2")
    with pytest.raises(UserError, match="skip_unsupported=true drops unsupported combinations from a sweep"):
        asked(*sweep, tmp_path=tmp_path)
    found = asked(*sweep, "skip_unsupported=true", tmp_path=tmp_path)
    assert ("jax", "horovod", 1) not in names(found)
    assert len(found.requests) == 6
    [sentence] = found.skipped
    assert "'horovod' is not offered by framework 'jax'" in sentence


def test_a_sweep_of_which_nothing_exists_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves nothing to run"):
        asked("framework=jax", "strategy=horovod", "skip_unsupported=true", tmp_path=tmp_path)


def test_baseline_at_one_gpu_is_plain_or_wrapped_or_both(tmp_path: Path) -> None:
    sweep = ("strategy=allreduce,horovod", "gpus=1,2")
    wrapped = {("pytorch", strategy, gpus) for strategy in ("allreduce", "horovod") for gpus in (1, 2)}
    plain, at_two = {("pytorch", "plain", 1)}, {point for point in wrapped if point[2] == 2}
    assert names(asked(*sweep, tmp_path=tmp_path)) == wrapped
    assert names(asked(*sweep, "baseline=plain", tmp_path=tmp_path)) == plain | at_two
    both = asked(*sweep, "baseline=both", tmp_path=tmp_path)
    assert names(both) == plain | wrapped
    # The unwrapped baseline is the same run for both strategies.
    assert len({r.spec.run_id for r in both.requests if r.spec.strategy == "plain"}) == 1


def test_repeats_are_separate_runs_of_every_point(tmp_path: Path) -> None:
    sweep = ("gpus=1,2", "baseline=both")
    found = asked(*sweep, "repeats=3", tmp_path=tmp_path)
    points = [(request.spec.strategy, request.spec.gpus, request.spec.repeat) for request in found.requests]
    shapes = (("plain", 1), ("allreduce", 1), ("allreduce", 2))
    assert sorted(points) == sorted((*shape, repeat) for shape in shapes for repeat in range(3))
    # The same runs as with individual repeats, so that repeats can be added later.
    numbered = asked(*sweep, "repeat=0,1,2", tmp_path=tmp_path)
    assert {r.spec.run_id for r in numbered.requests} == {r.spec.run_id for r in found.requests}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("repeats=3", "repeat=0,1"), "repeats=3 and repeat=1 both say which repeats to make: repeats=3 makes 0 to 2"),
        (("repeats=0",), "repeats=0: give a number of at least 1"),
        (("repeats=1,2",), "'repeats' cannot be swept"),
    ],
)
def test_repeats_that_make_no_sense_are_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        asked(*arguments, tmp_path=tmp_path)


def test_every_framework_has_parameter_servers_and_mxnets_own_cannot_bound_staleness(tmp_path: Path) -> None:
    everywhere = asked(
        "framework=pytorch,tensorflow,keras,jax,mxnet", "strategy=ps_sync,ps_async,ps_mixed", tmp_path=tmp_path
    )
    assert len(everywhere.requests) == 5 * 3
    assert asked("framework=tensorflow,keras,jax", "strategy=ssp", tmp_path=tmp_path).skipped == ()
    with pytest.raises(
        UserError, match=r"strategy 'ssp' is not offered by framework 'mxnet'; mxnet offers: .*ps_mixed"
    ):
        asked("framework=mxnet", "strategy=ssp", tmp_path=tmp_path)


def test_horovods_options_are_those_of_every_framework_that_has_it(tmp_path: Path) -> None:
    options = ("strategy.options.compress=fp16", "strategy.options.hierarchical=true")
    found = asked("framework=pytorch,tensorflow,keras,mxnet", "strategy=horovod", "gpus=2", *options, tmp_path=tmp_path)
    chosen = {"controller": "gloo", "compress": "fp16", "hierarchical": True}
    assert [r.spec.strategy_options for r in found.requests] == [chosen] * 4


def test_horovods_controller_is_part_of_what_is_measured(tmp_path: Path) -> None:
    found = asked("strategy=horovod", "strategy.options.controller=gloo", tmp_path=tmp_path)
    assert found.requests[0].spec.strategy_options["controller"] == "gloo"
    with pytest.raises(UserError, match="controller"):
        asked("strategy=horovod", "strategy.options.controller=nccl", tmp_path=tmp_path)


def test_an_optimiser_has_its_own_options_and_no_others(tmp_path: Path) -> None:
    found = asked("optimizer.name=sgd,adam,lars", "optimizer.beta1=0.8", "optimizer.trust=0.01", tmp_path=tmp_path)
    by_name = {r.spec.optimizer.name: r.spec.optimizer for r in found.requests}
    options = {n: (o.momentum, o.beta1, o.trust) for n, o in by_name.items()}
    assert options == {"sgd": (0.9, 0.9, 0.001), "adam": (0.0, 0.8, 0.001), "lars": (0.9, 0.9, 0.01)}
    # Settings that SGD ignores do not change the run.
    assert by_name["sgd"] == asked("optimizer.name=sgd", tmp_path=tmp_path).requests[0].spec.optimizer


def test_options_that_an_optimiser_cannot_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nesterov=true is for optimizer.name=sgd; leave it at false with adam"):
        asked("optimizer.name=adam", "optimizer.nesterov=true", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"optimizer.beta2=1.0: give a number from 0 on and below 1"):
        asked("optimizer.name=adam", "optimizer.beta2=1.0", tmp_path=tmp_path)
    with pytest.raises(UserError, match="rmsprop"):
        asked("optimizer.name=rmsprop", tmp_path=tmp_path)


def test_cores_of_their_own_need_enough_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert asked("gpus=4", "cluster.bind_cpus=true", tmp_path=tmp_path).requests[0].site.bind_cpus
    with pytest.raises(UserError, match=r"5 ranks x 1 need 5 dedicated cores, this machine has 4"):
        asked("gpus=5", "cluster.bind_cpus=true", tmp_path=tmp_path)


def test_nominal_rates_stand_with_a_run_and_are_no_part_of_what_it_is(tmp_path: Path) -> None:
    said = ("cluster.link_gb_per_s=12.5", "cluster.gpu_link_gb_per_s=150", "+cluster.peak_tflops.fp32=15.7")
    (with_rates,), (without,) = (asked(*given, tmp_path=tmp_path).requests for given in (said, ()))
    site = with_rates.site
    assert (site.link_gb_per_s, site.gpu_link_gb_per_s, site.peak_tflops) == (12.5, 150.0, {"fp32": 15.7})
    assert with_rates.spec.run_id == without.spec.run_id
    with pytest.raises(
        UserError, match=r"cluster.peak_tflops: 'fp8' is not a precision; valid ones are fp32, tf32, bf16, fp16"
    ):
        asked("+cluster.peak_tflops.fp8=15", tmp_path=tmp_path)
    for key in ("cluster.link_gb_per_s", "cluster.gpu_link_gb_per_s", "+cluster.peak_tflops.bf16"):
        with pytest.raises(UserError, match=r"cluster\.\S+=0.0: give a number above 0"):
            asked(f"{key}=0", tmp_path=tmp_path)


def test_plan_lists_skipped_combinations(cli: Cli, torch_python: Path) -> None:
    done = cli(
        *("harness", "-m", "framework=pytorch", "strategy=plain,allreduce", "gpus=1,2", "dataset=synthetic"),
        *("cluster=local", "skip_unsupported=true", "plan_only=true"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"left out.*strategy 'plain' has one rank only", done.stdout)


def test_keras_compiled_by_xla_is_one_rank_alone(tmp_path: Path) -> None:
    compiled = ("framework=keras", "framework.options.jit_compile=true")
    with pytest.raises(UserError, match=r"needs strategy=plain: .*exchange of strategy=allreduce"):
        asked(*compiled, "strategy=allreduce", "gpus=2", tmp_path=tmp_path)
    assert names(asked(*compiled, "strategy=plain", "gpus=1", tmp_path=tmp_path)) == {("keras", "plain", 1)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("framework=tensorflow", "strategy.options.overlap=false"),
            "no effect in framework 'tensorflow'; leave it at true",
        ),
        (("framework=jax", "strategy.options.bucket_mb=1"), "no effect in framework 'jax'; leave it at null"),
        (("framework=mxnet", "strategy.options.compress=fp16"), "no effect in framework 'mxnet'; leave it at none"),
        (("strategy=horovod", "strategy.options.compress=powersgd"), "strategy 'horovod'; it offers: none, fp16"),
        (("strategy=local_sgd", "strategy.options.sync_every=0"), "sync_every=0: give a number of at least 1"),
        (("strategy.options.powersgd_rank=0",), "powersgd_rank=0: give a number of at least 1"),
        (("framework=tensorflow", "strategy=fsdp"), "not offered by framework 'tensorflow'; tensorflow offers: plain"),
        (("strategy=hybrid", "framework.options.compile=true"), "compile=true is not offered with strategy 'hybrid'"),
    ],
)
def test_options_of_a_strategy_that_do_not_exist_are_refused(
    overrides: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        asked(*overrides, "gpus=2", tmp_path=tmp_path)


def test_options_of_one_strategy_are_refused_in_another() -> None:
    with pytest.raises(UserError, match="sync_every"):
        composition.compose(["strategy=allreduce", "strategy.options.sync_every=2"], True, "config", None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("strategy=pipeline", "strategy.options.stages=3"), "stages=3 does not divide gpus=4"),
        (("strategy=pipeline", "strategy.options.stages=0"), "strategy.options.stages=0: give a number of at least 1"),
        (
            ("strategy=pipeline", "gpus=8"),
            "model 'cnn_small' cannot be divided into 8 pipeline stages, only into 7 at most",
        ),
        (
            ("strategy=pipeline", "strategy.options.microbatches=2"),
            "cannot fill 4 stages; take at least 4 microbatches",
        ),
        (("strategy=pipeline", "strategy.options.microbatches=5"), "divide the 32 samples"),
        (("strategy=pipeline", "strategy.options.microbatches=0"), "microbatches=0"),
        (
            ("strategy=pipeline", "scaling=strong", "strategy.options.stages=2", "batch=12"),
            "take one of 2, 3, 6, or another batch",
        ),
        (("strategy=pipeline", "gpus=1", "strategy.options.stages=2"), "or baseline=plain"),
        (("strategy=pipeline", "optimizer.name=lars"), "optimizer.name=lars is not offered by strategy 'pipeline'"),
        (("strategy=pipeline", "framework=jax"), "strategy 'pipeline' is not offered by framework 'jax'"),
        (("strategy=tensor", "precision=fp16"), "precision=fp16 is not offered by strategy 'tensor'"),
        (("strategy=tensor", "framework.options.compile=true"), "compile=true is not offered by strategy 'tensor'"),
        (("strategy=tensor", "strategy.options.degree=3"), "degree=3 does not divide gpus=4"),
        (("strategy=tensor", "gpus=6"), "degree=6 does not divide 16, 64, 128 channels, units or heads"),
        (("strategy=tensor", "model=resnet20"), "model 'resnet20' has nothing that strategy 'tensor' can divide"),
    ],
)
def test_ranks_that_cannot_have_the_network_between_them_are_refused(
    overrides: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        asked("gpus=4", "model=cnn_small", "batch=8", "scaling=weak", *overrides, tmp_path=tmp_path)


def test_heads_of_a_transformer_are_divided_whole(tmp_path: Path) -> None:
    text = ("strategy=tensor", "model=gpt_tiny", "batch=8", "scaling=weak")
    with pytest.raises(UserError, match=r"degree=8 does not divide 4 channels, units or heads .* take one of 1, 2, 4$"):
        asked(*text, "gpus=8", tmp_path=tmp_path, data=("dataset=synthetic_text",))
    assert asked(*text, "gpus=4", tmp_path=tmp_path, data=("dataset=synthetic_text",)).requests


def test_fewer_stages_than_ranks_are_pipelines_side_by_side(tmp_path: Path) -> None:
    four = ("gpus=4", "model=cnn_small", "batch=8", "scaling=weak")
    [found] = asked(*four, "strategy=pipeline", "strategy.options.stages=2", tmp_path=tmp_path).requests
    assert found.spec.strategy_options == {"stages": 2, "microbatches": 4, "schedule": "1f1b"}
    assert (found.spec.replicas, found.spec.batch_per_replica, found.spec.microbatch) == (2, 16, 4)
    [found] = asked(*four, "strategy=tensor", tmp_path=tmp_path).requests
    assert (found.spec.replicas, found.spec.batch_per_replica, found.spec.microbatch) == (1, 32, 32)
    [found] = asked(*four, "strategy=fsdp", tmp_path=tmp_path).requests
    assert (found.spec.replicas, found.spec.batch_per_replica, found.spec.microbatch) == (4, 8, 8)


def test_parameter_servers_are_one_per_node_at_most(tmp_path: Path) -> None:
    on_nodes = ("gpus=4", "cluster.gpus_per_node=2")
    [found] = asked(*on_nodes, "strategy=ps_sync", "strategy.options.servers=2", tmp_path=tmp_path).requests
    assert found.spec.strategy_options == {"servers": 2}
    for strategy in ("ps_sync", "ps_async", "ps_mixed", "ssp"):
        with pytest.raises(UserError, match=r"servers=3 are more servers than nodes: gpus=4 take 2 nodes"):
            asked(*on_nodes, f"strategy={strategy}", "strategy.options.servers=3", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"strategy.options.servers=0: give a number of at least 1"):
        asked(*on_nodes, "strategy=ps_sync", "strategy.options.servers=0", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"precision=fp16 is not offered by strategy 'ps_sync'"):
        asked(*on_nodes, "strategy=ps_sync", "precision=fp16", tmp_path=tmp_path)


def test_servers_on_nodes_of_their_own_are_further_nodes_of_the_job(tmp_path: Path) -> None:
    own = ("gpus=4", "cluster.gpus_per_node=2", "strategy=ps_sync", "strategy.options.placement=own_nodes")
    for servers, nodes in (("null", 2), ("3", 3)):
        [found] = asked(*own, f"strategy.options.servers={servers}", tmp_path=tmp_path).requests
        assert found.spec.strategy_options["placement"] == "own_nodes"
        assert found.spec.server_nodes == found.resources.server_nodes == nodes
    with pytest.raises(UserError, match=r"servers=5 are more servers than ranks: with gpus=4 take fewer"):
        asked(*own, "strategy.options.servers=5", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"own_nodes is not offered with pack=true"):
        asked(*own, "cluster.scheduler=slurm", "pack=true", tmp_path=tmp_path)
    with pytest.raises(UserError, match=r"own_nodes is not offered inside an allocation"):
        asked(*own, "cluster.scheduler=allocation", tmp_path=tmp_path)
    with pytest.raises(UserError, match="placement"):
        asked("strategy=allreduce", "strategy.options.placement=own_nodes", tmp_path=tmp_path)


def test_staleness_is_an_option_of_ssp_alone_and_not_below_zero(tmp_path: Path) -> None:
    [found] = asked("strategy=ssp", "strategy.options.staleness=0", "gpus=2", tmp_path=tmp_path).requests
    assert found.spec.strategy_options == {"servers": None, "staleness": 0}
    with pytest.raises(UserError, match=r"strategy.options.staleness=-1: give a number of at least 0"):
        asked("strategy=ssp", "strategy.options.staleness=-1", tmp_path=tmp_path)
    with pytest.raises(UserError, match="staleness"):
        asked("strategy=ps_async", "strategy.options.staleness=1", tmp_path=tmp_path)
