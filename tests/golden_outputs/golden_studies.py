"""The studies of the golden tests: recorded ones, one derived from them on several nodes, and a damaged one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from golden_commands import NOW
from project import PROJECT

RECORDED = PROJECT / "benchmarks" / "recorded" / "studies"
# With failures, restarts and divided models; with four frameworks and repeats; with parameter servers and accuracy.
STUDIES = ("data_vs_model_parallel", "frameworks_v100", "sync_async_mixed")
DAMAGED, NODES, SLOWER = "damaged", "nodes", "nodes_slower"
GPUS_PER_NODE = 4


def make_studies(folder: Path) -> None:
    """Write every study into the folder."""
    for name in STUDIES:
        _unpack(name, folder)
    _damage(_unpack(STUDIES[1], folder / "intact").rename(folder / DAMAGED))
    _on_nodes(folder / STUDIES[1], folder / NODES, 1.0)
    _on_nodes(folder / STUDIES[1], folder / SLOWER, 1.1)
    shutil.rmtree(folder / "intact")
    for path in folder.rglob("*"):
        os.utime(path, (NOW - 1000, NOW - 1000))


def _unpack(name: str, folder: Path) -> Path:
    with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def _damage(study: Path) -> None:
    """Damage the first runs of the study, in order of name, in one way each."""
    runs = iter(sorted((study / "runs").iterdir()))

    def log() -> Path:
        return next(runs) / "attempt-1" / "events.rank0.jsonl"

    cut = log()
    cut.write_bytes(cut.read_bytes()[:2000])  # in the middle of a line
    garbage = log()
    lines = garbage.read_bytes().splitlines(keepends=True)
    garbage.write_bytes(b"".join([*lines[:5], b"\x00\xff\xfe{garbage\n", *lines[5:9], b"[1, 2]\n", *lines[9:]]))
    doubled = log()
    lines = doubled.read_bytes().splitlines(keepends=True)
    doubled.write_bytes(b"".join([*lines[:8], *lines[5:8], *lines[8:]]))
    missing = log()
    missing.unlink()
    (next(runs) / "result.json").unlink()
    (next(runs) / "spec.json").write_text('{"v": 1, "run_id"')
    _edit(next(runs) / "spec.json", v=99)
    _edit(next(runs) / "result.json", status="unheard-of")
    shutil.rmtree(next(runs) / "attempt-1")
    _edit(next(runs) / "result.json", status="failed", reason="rank 1 ended with signal 9", failed_rank=1, exit_code=-9)
    (next(runs) / "attempt-1" / "env.json").write_bytes(b"\xff\xff")
    shutil.copytree((again := next(runs)) / "attempt-1", again / "attempt-2")
    negative = log()
    negative.write_text(negative.read_text().replace('"seconds":0', '"seconds":-0'))
    infinite = log()
    infinite.write_text(infinite.read_text().replace('"loss":', '"loss":1e999,"was":'))
    other = log()
    other.write_text(other.read_text().replace('{"v":1,', '{"v":7,', 3))
    for path in next(runs).glob("attempt-1/events.rank*.jsonl"):
        path.write_text("")


def _on_nodes(source: Path, study: Path, slowness: float) -> None:
    """Write a study on 1 to 16 GPUs of up to four nodes from logs of a one-GPU run. slowness: factor of each step."""
    runs = {path.name.rsplit("-", 1)[0]: path for path in sorted((source / "runs").iterdir(), reverse=True)}
    ids = []
    for framework, strategy in (("pytorch", "allreduce"), ("pytorch", "horovod"), ("emulated", "allreduce")):
        template = runs[f"pytorch-{strategy}-resnet20-2gpu"]
        for gpus in (1, 2, 4, 8, 16):
            for repeat in range(3):
                digest = hashlib.sha256(f"{framework} {strategy} {gpus} {repeat}".encode()).hexdigest()[:12]
                ids.append(f"{framework}-{strategy}-resnet20-{gpus}gpu-{digest}")
                # 4 % slower with each doubling, 4 % more between nodes, and 1 % between repeats.
                factor = slowness * (1 + 0.04 * gpus.bit_length() + 0.04 * (gpus > GPUS_PER_NODE) + 0.01 * repeat)
                factor *= 1.05 if framework == "emulated" else 1
                _write_run(template, study / "runs" / ids[-1], framework, gpus, repeat, factor)
    document = json.loads((source / "study.json").read_text())
    document |= {"study": study.name, "invocations": [document["invocations"][0] | {"runs": ids, "arrays": []}]}
    (study / "study.json").write_text(json.dumps(document))


def _write_run(template: Path, run: Path, framework: str, gpus: int, repeat: int, factor: float) -> None:
    document = json.loads((template / "spec.json").read_text())
    per_node = min(gpus, GPUS_PER_NODE)
    document["spec"] |= {"framework": framework, "gpus": gpus, "repeat": repeat, "global_batch": 16 * gpus}
    document["spec"] |= {"placement": {"nodes": gpus // per_node, "ranks_per_node": per_node}}
    document["spec"]["cluster"] |= {"name": "atlas", "device": "cuda"}
    document["site"] |= {"link_gb_per_s": 12.5, "gpu_link_gb_per_s": 150.0, "peak_tflops": {"fp32": 15.7}}
    attempt = run / "attempt-1"
    attempt.mkdir(parents=True)
    (run / "spec.json").write_text(json.dumps(document | {"run_id": run.name}))
    result = json.loads((template / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"run_id": run.name}))
    for name in ("begin.json", "job.json", "env.json"):
        shutil.copy(template / "attempt-1" / name, attempt)
    exit_ = json.loads((template / "attempt-1" / "exit.rank0.json").read_text())
    for rank in range(gpus):
        (attempt / f"exit.rank{rank}.json").write_text(json.dumps(exit_ | {"rank": rank}))
        lines = (template / "attempt-1" / f"events.rank{rank % 2}.jsonl").read_text().splitlines()
        events = [_event(json.loads(line), rank, gpus, factor) for line in lines]
        log = "".join(json.dumps(event) + "\n" for event in events)
        (attempt / f"events.rank{rank}.jsonl").write_text(log)


def _event(event: dict[str, Any], rank: int, gpus: int, factor: float) -> dict[str, Any]:
    event |= {"rank": rank}
    if event["ev"] == "start":
        node = rank // GPUS_PER_NODE
        event |= {"local_rank": rank % GPUS_PER_NODE, "host": f"node{node}", "machine": f"boot{node}", "cores": 64}
        event |= {"global_batch": 16 * gpus, "world_size": gpus, "communication": "nccl", "device": "cuda"}
        event |= {"device_name": "Tesla V100-SXM2-16GB", "device_id": f"GPU-{rank}"}
        event |= {"energy_of": "gpu", "energy_basis": "counter"}
    elif event["ev"] == "steps":
        event |= {"seconds": factor * event["n"] * (0.010 + 0.001 * event["seconds"] / event["n"])}
        event |= {"joules": 250 * event["seconds"]}
    elif event["ev"] == "resources":
        event |= {"device_peak_bytes": 3 * 2**30, "device_peak_source": "torch.cuda.max_memory_allocated"}
    elif event["ev"] == "probe":
        part = {"full": 1.0, "cached_batch": 0.97, "no_sync": 0.9 if gpus > 1 else 1.0}.get(event["probe"], 0.05)
        event |= {"seconds": factor * part * event["n"] * (0.010 + 0.001 * event["seconds"] / event["n"])}
    elif event["ev"] in ("eval", "end"):
        event |= {"samples_seen": event["samples_seen"] // 2 * gpus}
    return event


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
