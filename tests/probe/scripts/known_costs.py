"""A user's training whose compute, waiting for data and messages take a given time."""

import argparse
import atexit
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 8


class Slow(Dataset):
    """Loads a batch in `seconds`. spent: seconds of loading the current batch."""

    def __init__(self, seconds, samples):
        self.seconds, self.samples, self.spent = seconds, samples, 0.0

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        begin = time.perf_counter()
        wait(self.seconds / BATCH)
        self.spent += time.perf_counter() - begin
        return torch.ones(64)


def wait(seconds):
    """Without the overshoot of sleeping."""
    end = time.perf_counter() + seconds
    if seconds > 0.002:
        time.sleep(seconds - 0.001)
    while time.perf_counter() < end:
        pass


@torch.library.custom_op("known::busy", mutates_args=())
def busy(x: torch.Tensor, seconds: float) -> torch.Tensor:
    """An operator, as a profiler sees it."""
    wait(seconds)
    return x.clone()


def sent_bytes(interface):
    """Bytes that this host has sent on its link, including frames."""
    with open(f"/sys/class/net/{interface}/statistics/tx_bytes") as file:
        return int(file.read())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compute", type=float, default=0.0, help="seconds")
    parser.add_argument("--straggler", type=float, default=0.0, help="more seconds on the last rank")
    parser.add_argument("--data", type=float, default=0.0, help="seconds of waiting for a batch")
    parser.add_argument("--message", type=float, default=0.0, help="seconds that each exchange of gradients takes")
    parser.add_argument("--rows", type=int, default=4, help="of the weights, 256 bytes each")
    parser.add_argument("--samples", type=int, default=10**6)
    parser.add_argument("--with", dest="what", default="ddp")
    parser.add_argument("--link", help="interface: its bytes per step and what its steps took go to times.<rank>.json")
    args = parser.parse_args()
    if args.link:
        # Ranks wait most of the time, and a busy neighbour would delay each message by a time slice.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(64, args.rows, bias=False)
    model = network if args.what == "no_ddp" else DistributedDataParallel(network)
    if args.message:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def slow(state, bucket):
            wait(args.message)
            return allreduce_hook(state, bucket)

        model.register_comm_hook(None, slow)
    if args.what == "profiler":
        torch.profiler.profile().start()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    seconds = args.compute + args.straggler * (rank == dist.get_world_size() - 1)
    steps, seen = 0, set()
    times = {"bytes": 0, "steps": []}
    if args.link:
        atexit.register(lambda: Path(f"times.{rank}.json").write_text(json.dumps(times)))
    while True:
        data = Slow(args.data, args.samples)
        for batch in DataLoader(data, BATCH):
            steps += 1
            seen.add(id(batch))
            optimizer.zero_grad()
            if args.what == "no_sync" and steps == 3:
                with model.no_sync():
                    model(batch).mean().backward()
            loss = model(batch).mean()
            clock = [time.perf_counter()]
            busy(batch, seconds)
            clock.append(time.perf_counter())
            loss.backward()
            clock.append(time.perf_counter())
            times["steps"].append(
                {
                    "data": data.spent,
                    "compute": clock[1] - clock[0],
                    # Backward of one small layer: hardly more than its message, and its wait for other ranks.
                    "message": clock[2] - clock[1],
                    "sent": getattr(model, "require_backward_grad_sync", True),
                    "traced": torch.autograd._profiler_enabled(),
                }
            )
            if args.what == "no_ddp":
                dist.all_reduce(network.weight.grad)
            if args.link and steps == 4:
                before = sent_bytes(args.link)
            if args.link and steps == 24:
                times["bytes"] = (sent_bytes(args.link) - before) / 20
            data.spent = 0.0
            optimizer.step()
            if args.what == "checkpoint" and steps == 30:
                torch.save(model.state_dict(), f"saved.{rank}.pt")
            if args.what == "raise" and steps == 30:
                raise ValueError("too many steps")
            if args.what == "exit" and steps == 30:
                sys.exit(3)


if __name__ == "__main__":
    main()
