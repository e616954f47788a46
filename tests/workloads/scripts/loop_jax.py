"""A loop in JAX, whose steps the probe marks; over several processes, each with one part of the batch."""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from scaling_probe import steps


def loss(weights, images, labels):
    hidden = jax.nn.relu(images @ weights[0])
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(hidden @ weights[1]), labels[:, None], 1))


@jax.jit
def train_step(weights, images, labels):
    gradients = jax.grad(loss)(weights, images, labels)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--alone", action="store_true", help="each process by itself")
    args = parser.parse_args()
    environ = os.environ
    if environ["WORLD_SIZE"] != "1" and not args.alone:
        address = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        jax.distributed.initialize(address, int(environ["WORLD_SIZE"]), int(environ["RANK"]))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("ranks",))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.05, shape).astype("float32") for shape in ((1024, 2048), (2048, 10))]
    batches = [
        (rng.normal(size=(args.batch_size, 1024)).astype("float32"), rng.integers(10, size=args.batch_size))
        for _ in range(128)
    ]
    step = 0
    for _ in range(args.epochs):
        for images, labels in steps(batches, samples=lambda batch: len(batch[1])):
            part = (jax.make_array_from_process_local_data(divided, array) for array in (images, labels))
            weights = train_step(weights, *part)
            jax.block_until_ready(weights)
            step += 1
            if jax.process_index() == 0:
                print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
