"""Writes env.json of an attempt, as rank 0 records its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.serialization import write_json

# As written by harness/worker/record/capture.py on a node with two GPUs.
ENVIRONMENT = {
    "v": 1,
    "host": "node0",
    "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
    "python": "3.12.3",
    "interpreter": "/opt/envs/pytorch/bin/python",
    "versions": {"torch": "2.13.0", "nccl": "2.27"},
    "code_version": "0123456789abcdef",
    "cpu": "AMD EPYC 9454",
    "cores": 96,
    "memory_bytes": 810_000_000_000,
    "gpus": [f"NVIDIA H100, GPU-{i}1a2b3c4-1111-2222-3333-444455556666, 550.54, 81559 MiB" for i in range(2)],
    "topology": ["\tGPU0\tGPU1", "GPU0\t X \tNV18", "GPU1\tNV18\t X "],
    "nvlink": [],
    "numa": {"0": "0-47", "1": "48-95"},
    "variables": {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node[0-1]", "NCCL_DEBUG": "INFO"},
}


def write_environment(run_dir: Path, attempt: int = 1, **changes: Any) -> Path:
    """Write an attempt's env.json: ENVIRONMENT with these changes; `variables` are added to its own."""
    variables = {**ENVIRONMENT["variables"], **changes.pop("variables", {})}  # type: ignore[dict-item]
    path = run_dir / f"attempt-{attempt}" / "env.json"
    write_json(path, {**ENVIRONMENT, "variables": variables, **changes})
    return path
