"""The peer of worker.py: a minimal hand-written DistributedDataParallel training loop.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 minimal_ddp.py FASHION_MNIST BATCH WARMUP STEPS

Prints the seconds of STEPS steps on this rank.
"""

import gzip
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import catalog
from models import pytorch as networks

folder, batch, warmup, steps = Path(sys.argv[1]), *map(int, sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)

images = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())
labels = gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes())
x = torch.from_numpy(np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28).copy())
y = torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).astype(np.int64))

network = networks.build(catalog.network("resnet20").layers(1, 10, 28), 0).to(memory_format=torch.channels_last)
model = DistributedDataParallel(network, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss()
order = torch.randperm(len(x))[dist.get_rank() :: dist.get_world_size()]

for step in range(warmup + steps):
    if step == warmup:
        begin = time.perf_counter()
    mine = order[step * batch : (step + 1) * batch]
    inputs = x[mine].float().sub_(0.286 * 255).div_(0.353 * 255).contiguous(memory_format=torch.channels_last)
    optimizer.zero_grad()
    criterion(model(inputs), y[mine]).backward()
    optimizer.step()
print(time.perf_counter() - begin, flush=True)
dist.destroy_process_group()
# gloo's threads can abort the process during the interpreter's shutdown (github.com/pytorch/pytorch/pull/179291).
os._exit(0)
