"""Collects everything the program prints and writes for the studies of golden_studies.py, as texts by file name.

Excluded are parts of other programs: versions of packages, and the library that draws the page's plots.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from golden_studies import DAMAGED, NODES, SLOWER, STUDIES, make_studies
from project import PROJECT

EXPECTED = Path(__file__).parent / "expected"
COMMANDS = Path(__file__).parent / "golden_commands.py"
RUN_IDS = "run_ids.txt"
PLANNED = ("plans.all.txt", RUN_IDS)
WRITTEN = {".csv", ".json", ".tex", ".html", ".md", ".log"}
LIBRARY = 300_000  # characters; our own scripts are shorter

Command = tuple[str, str, list[str]]  # output file, module, arguments

# Plans of at most 12 runs each, since longer ones do not list their runs. Together, more than 200.
_BASE = "cluster=slurm dataset=synthetic model=resnet20 gpus=1,4,8"
_LOCAL = "cluster=local cluster.device=cpu"
_LARGE = "cluster=slurm dataset=synthetic_imagenet model=resnet50 gpus=4,16"
PLANS = (
    f"{_LOCAL} +experiment=data_vs_model_parallel model=cnn_small data.check=false",
    f"{_LOCAL} dataset=synthetic model=resnet20 strategy=allreduce,horovod gpus=1,2 framework=pytorch,jax",
    f"{_BASE} framework=pytorch,keras strategy=allreduce,horovod scaling=strong batch=64",
    f"{_BASE} framework=tensorflow,mxnet strategy=ps_sync,ps_async repeat=1",
    f"{_BASE} framework=tensorflow,mxnet,jax seed=5",
    f"{_BASE} strategy=fsdp,zero1,hybrid,hierarchical",
    f"{_BASE} strategy=pipeline,tensor,local_sgd,mpi batch=64",
    f"{_BASE} strategy=ps_sync,ps_async,ps_mixed,ssp trace=true",
    f"{_BASE} strategy=ps_sync strategy.options.servers=null,1,4 strategy.options.placement=own_nodes",
    f"{_BASE} strategy.options.compress=none,fp16,bf16,powersgd strategy.options.bucket_mb=10",
    f"{_BASE} strategy=horovod strategy.options.controller=gloo,mpi strategy.options.fusion_mb=null,64",
    f"{_BASE} strategy=pipeline strategy.options.stages=null,2 strategy.options.schedule=1f1b,gpipe batch=64",
    f"{_BASE} strategy=tensor strategy.options.degree=null,2 model=cnn_small,vgg16",
    f"{_BASE} precision=fp32,tf32,bf16,fp16 framework.options.channels_last=true",
    f"{_BASE} framework.options.fused=true,false framework.options.compile=true,false",
    f"{_BASE} framework=tensorflow framework.options.jit_compile=true,false precision=fp32,bf16 seed=3",
    f"{_BASE} repeats=2 seed=0,7 baseline=plain strategy.options.first_bucket_mb=0.5",
    f"{_BASE} optimizer.name=sgd,adam,lars optimizer.lr=0.05 optimizer.lr_rule=sqrt",
    f"{_BASE} optimizer.nesterov=true optimizer.momentum=0.8,0.95 optimizer.warmup_steps=0,10",
    f"{_BASE} measure=default,smoke measure.steps=100,200 measure.precision=0.02",
    f"{_BASE} checkpoint.interval_steps=0,50 fault=none,kill_rank fault.step=60",
    f"{_BASE} fault=slow_rank fault.step=20 fault.seconds=1 verify=true,false deterministic=true,false",
    "cluster=slurm data.check=false dataset=cifar10,fashion_mnist model=resnet20,resnet44 gpus=2,8",
    "cluster=gpu8 data.check=false dataset=indoor67 model=alexnet,resnet18,resnet50,vgg16 gpus=1,8,16 data.workers=2",
    "cluster=slurm dataset=synthetic_text dataset.context=128 batch=8 model=gpt_tiny,gpt2 "
    "strategy=allreduce,fsdp gpus=1,8",
    f"{_LARGE} cluster.gpu_memory_gb=16 precision=fp32,fp16 batch=256",
    "cluster=iris dataset=synthetic model=resnet32,resnet110 gpus=12 framework=pytorch,mxnet "
    "+cluster.env.NCCL_DEBUG=INFO",
    f"{_LOCAL} framework=emulated dataset=synthetic model=resnet20 measure.evaluate_samples=0 "
    "framework.options.compute_ms=10,20 framework.options.jitter=0,0.1 gpus=1,2",
    f"{_BASE} model=alexnet",
    f"{_BASE} optimiser.name=adam",
)  # fmt: skip


def outputs_of_studies(folder: Path) -> dict[str, str]:
    """Return what every command on a study prints and writes. folder: empty, to run in."""
    make_studies(folder)
    (folder / "published.csv").write_bytes((PROJECT / "benchmarks" / "published" / "throughput.csv").read_bytes())
    return _outputs(folder, _commands())


def outputs_of_plans(folder: Path) -> dict[str, str]:
    """Return what the plans print, with their run_ids. Requires the frameworks' environments."""
    commands = []
    for number, plan in enumerate(PLANS):
        # The default of before, so that the same specs stay pinned.
        steps = [] if "measure" in plan else ["measure.steps=200"]
        keys = [*plan.split(), *steps, "skip_unsupported=true", "plan_only=true"]
        commands.append((f"out/plans/{number:02}.txt", "harness", ["-m", *keys]))
    outputs = _outputs(folder, commands)
    (plans,) = outputs.values()
    run_ids = sorted(set(re.findall(r"^  (\S+-\d+gpu-[0-9a-f]{12}): ", plans, re.MULTILINE)))
    return outputs | {RUN_IDS: "".join(f"{run_id}\n" for run_id in run_ids)}


def _outputs(folder: Path, commands: list[Command]) -> dict[str, str]:
    (folder / "no_programs").mkdir()
    subprocess.run(
        [sys.executable, str(COMMANDS)],
        cwd=folder,
        env=_environment(folder),
        input=json.dumps(commands),
        text=True,
        check=True,
        timeout=580,
    )
    return dict(sorted(_collected(folder / "out")))


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a user with a terminal 120 characters wide, on a machine without Slurm and git."""
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return libraries | {
        "HOME": str(folder),
        "PATH": str(folder / "no_programs"),
        "PYTHONPATH": str(PROJECT),
        "XDG_CACHE_HOME": str(folder / "cache"),
        **dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"], "1"),
        "COLUMNS": "120",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


def _commands() -> list[Command]:
    commands: list[Command] = []

    def analysis(name: str, arguments: str) -> None:
        commands.append((f"out/{name}.txt", "analysis", arguments.split()))

    for study in (*STUDIES, NODES, DAMAGED):
        target = " --target-accuracy 0.2" if study == "sync_async_mixed" else ""
        analysis(f"{study}/summary", f"{study} --only html,csv,data,tex --out out/{study}{target}")
        analysis(f"{study}/full", f"{study} --only tex --out again --full{target}")
    commands += [(f"out/{study}/status.txt", "harness.status", [study]) for study in (*STUDIES, NODES, DAMAGED)]
    measured = STUDIES[1]
    for json_ in ("", " --json"):
        end = json_.replace(" --", "_")
        analysis(f"{NODES}/predict{end}", f"predict {NODES} gpus=32,64 epochs=10 budget_gpu_hours=5{json_}")
        analysis(f"{measured}/predict{end}", f"predict {measured} gpus=4,8 gpus_per_node=4 bandwidth_gbit=100{json_}")
        analysis(f"{DAMAGED}/predict{end}", f"predict {DAMAGED} gpus=4{json_}")
        analysis(f"{NODES}/next{end}", f"next {NODES} gpus=64{json_}")
        analysis(f"{NODES}/compare{end}", f"compare {NODES} {SLOWER}{json_}")
        analysis(f"{DAMAGED}/compare{end}", f"compare {measured} {DAMAGED} --threshold 0.05{json_}")
        analysis(f"backtest{end}", f"backtest published.csv{json_}")
        machine = "cluster=gpu8 peak_tflops=15.7 memory_gb_per_s=900 gpu_link_gb_per_s=150 link_gb_per_s=12.5"
        analysis(f"estimate{end}", f"estimate model=resnet50 gpus=1,8,32 {machine}{json_}")
    analysis("estimate_refused", "estimate model=resnet50 gpus=1,8 cluster=gpu8")
    analysis(f"{NODES}/simulate", f"simulate {NODES} gpus=64,1024 steps=200 mtbf_hours=500 late_probability=0.01")
    analysis(f"{measured}/simulate", f"simulate {measured} gpus=64")
    analysis(f"{NODES}/proposal", f"proposal {NODES} series=horovod gpus=16 runs=40 hours=1 --out out/{NODES}/proposal")
    analysis(f"{measured}/proposal", f"proposal {measured} gpus=2 runs=40 hours=1 --out out/{measured}/proposal")
    analysis("mlperf", "export sync_async_mixed mlperf --out out/mlperf")
    analysis("damaged/mlperf", "export damaged mlperf --out out/damaged/mlperf")
    analysis("no_study", "nowhere")
    return commands


def _collected(out: Path) -> Iterator[tuple[str, str]]:
    """Yield the written texts with their names in EXPECTED; related files are joined into one text."""
    together: dict[str, list[str]] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
            yield f"{name}.jsonl", "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        elif path.suffix == ".log" or path.parent.name == "plans":
            text = path.read_text(encoding="utf-8")
            together.setdefault(f"{path.parent.relative_to(out).as_posix()}.all", []).append(
                f"==> {path.name}\n{text}\n"
            )
        elif path.suffix in WRITTEN | {".txt"}:
            yield name, _without_versions(path.read_bytes().decode())
    for name, texts in together.items():
        yield f"{name}.txt", "".join(texts)


def _without_versions(text: str) -> str:
    text = re.sub(r'("program": ).*', r"\1{},", text, count=1)

    def short(script: re.Match[str]) -> str:
        return script[0] if len(script[0]) < LIBRARY else "<script>the library that draws</script>"

    return re.sub(r"<script>.*?</script>", short, text, flags=re.DOTALL)
