"""A user's training whose optimiser steps another one: ZeroRedundancyOptimizer, or Horovod's."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

model = nn.Linear(8, 2)
if sys.argv[1] == "horovod":
    os.environ.update(HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo")
    import horovod.torch as hvd

    hvd.init()
    sgd = torch.optim.SGD(model.parameters(), 0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
else:
    dist.init_process_group("gloo")
    optimizer = ZeroRedundancyOptimizer(nn.parallel.DistributedDataParallel(model).parameters(), torch.optim.Adam)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(8, 8)).mean().backward()
    time.sleep(0.01)
    optimizer.step()
