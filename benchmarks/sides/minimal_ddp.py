"""The peer of worker.py: a minimal DistributedDataParallel training loop, in an existing process group."""

import gzip
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import catalog
from models import pytorch as networks


def trainer(folder, batch):
    """Return a function that takes so many steps and returns their seconds on this rank. folder: of Fashion-MNIST."""
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
    done = 0

    def train(steps):
        nonlocal done
        begin = time.perf_counter()
        for step in range(done, done + steps):
            start = step * batch % (len(order) - batch)
            mine = order[start : start + batch]
            inputs = x[mine].float().sub_(0.286 * 255).div_(0.353 * 255).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            criterion(model(inputs), y[mine]).backward()
            optimizer.step()
        done += steps
        return time.perf_counter() - begin

    return train
