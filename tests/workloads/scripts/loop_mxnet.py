"""A loop of MXNet's Gluon, whose steps the probe marks."""

import argparse
import time

import mxnet as mx
from mxnet import autograd, gluon
from scaling_probe import steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    images = mx.nd.random.normal(shape=(8192, 256))
    labels = mx.nd.random.randint(0, 10, shape=(8192,)).astype("float32")
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(images, labels), args.batch_size, last_batch="discard")
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(1024, "relu"), gluon.nn.Dense(10))
    net.initialize()
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    step = 0
    for _ in range(args.epochs):
        for x, y in steps(data, samples=lambda batch: len(batch[1])):
            with autograd.record():
                loss = criterion(net(x), y)
            loss.backward()
            trainer.step(args.batch_size)
            loss.mean().asscalar()
            step += 1
            print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
