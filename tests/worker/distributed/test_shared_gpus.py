"""Ranks that share a GPU fail with the harness's sentence instead of NCCL's."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from builders import make_spec
from gpus import PLAIN, machine_of, nvml_of_one_gpu
from project import Cli

from harness.core.rendezvous import Rendezvous
from harness.worker.distributed.exchange import held_port
from harness.worker.distributed.gpu_sharing import SharedGpuError, refuse_shared
from harness.worker.record import nvml


def said_by(boards: list[str | None]) -> list[str]:
    """Return what ranks with these GPUs say, in order; "" if they continue."""
    said = [""] * len(boards)
    with held_port() as port:

        def rank(number: int) -> None:
            place = Rendezvous(number, len(boards), number, len(boards), "127.0.0.1", port)
            try:
                refuse_shared(make_spec(framework="jax"), place, boards[number], 60.0)
            except SharedGpuError as error:
                said[number] = str(error)

        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(len(boards))]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return said


def test_two_ranks_on_one_gpu_end_with_a_sentence_on_every_rank() -> None:
    first, *others = said_by(["GPU-a", "GPU-b", "GPU-a"])
    assert first.startswith("ranks 0 and 2 share one GPU of ")
    assert "strategy 'allreduce' of framework 'jax' needs NCCL" in first
    assert others == [first, first]


@pytest.mark.parametrize("boards", [["GPU-a", "GPU-b"], [None, None]])
def test_ranks_on_gpus_of_their_own_or_on_unknown_ones_go_on(boards: list[str | None]) -> None:
    assert said_by(boards) == ["", ""]


def test_the_gpu_of_a_rank_is_the_one_that_it_has_a_part_of(tmp_path: Path) -> None:
    library = str(nvml_of_one_gpu(tmp_path))
    for visible in (None, "0", "1,0", "GPU-whole", "MIG-part"):
        assert nvml.board(visible, library) == "GPU-whole", visible
    for visible in ("7", "", "MIG-gone", "GPU-gone"):
        assert nvml.board(visible, library) is None, visible
    assert nvml.board("0", str(tmp_path / "none.so")) is None


@pytest.mark.torch
def test_a_run_whose_gpus_turn_out_to_be_one_fails_with_that_sentence(
    cli: Cli, torch_python: Path, tmp_path: Path
) -> None:
    """nvidia-smi lists two GPUs; the driver's library knows only one."""
    library = nvml_of_one_gpu(tmp_path)
    here = {
        **machine_of(tmp_path, PLAIN),
        "LD_LIBRARY_PATH": f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    small = ("model=cnn_small", "dataset=synthetic", "batch=4", "measure=smoke", "baseline=wrapped")
    done = cli("harness", "gpus=2", *small, "cluster=local", "cluster.device=cuda", "cluster.cpus_per_gpu=1", env=here)
    assert done.returncode != 0
    assert "ranks 0 and 1 share one GPU of " in done.stdout + done.stderr
    assert "needs NCCL, which rejects that" in (done.stdout + done.stderr).replace("\n", " ")
