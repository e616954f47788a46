"""A training script of a user's own."""

# Open MPI names the ranks in variables of its own.
RANKS_OF_MPI = """
import os
for name, theirs in (("RANK", "RANK"), ("LOCAL_RANK", "LOCAL_RANK"), ("WORLD_SIZE", "SIZE")):
    os.environ.setdefault(name, os.environ.get("OMPI_COMM_WORLD_" + theirs, ""))
"""

DDP = """
import sys, time, torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(100000, 8))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=int(sys.argv[1])):
    time.sleep(0.01)
    optimiser.zero_grad()
    model(batch).square().mean().backward()
    optimiser.step()
"""
