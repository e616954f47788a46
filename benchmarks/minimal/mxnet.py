"""A training loop in MXNet: Gluon, hybridised."""

import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn


class Block(nn.HybridBlock):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.stride = outputs // inputs
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(outputs, 3, self.stride, 1, use_bias=False, in_channels=inputs),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.Conv2D(outputs, 3, 1, 1, use_bias=False, in_channels=outputs),
                nn.BatchNorm(),
            )

    def hybrid_forward(self, F, x):
        y = self.body(x)
        if self.stride > 1:
            x = F.slice(x, begin=(None, None, None, None), end=(None, None, None, None), step=(None, None, 2, 2))
            x = F.concat(x, F.zeros_like(x), dim=1)
        return F.relu(x + y)


def network():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, 1, 1, use_bias=False, in_channels=3), nn.BatchNorm(), nn.Activation("relu"))
    for inputs, outputs in [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2:
        net.add(Block(inputs, outputs))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10, in_units=64))
    return net


def trainer(images, labels, batch):
    x, y = np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.float32)
    model = network()
    model.initialize(mx.init.Xavier())
    model.hybridize(static_alloc=True, static_shape=True)
    sgd = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4})
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()

    def train(steps):
        begin = time.perf_counter()
        order = np.random.permutation(len(x))
        for step in range(steps):
            mine = order[step * batch : (step + 1) * batch]
            inputs = (mx.nd.array(x[mine], dtype="float32") / 255 - 0.5) / 0.25
            targets = mx.nd.array(y[mine])
            with autograd.record():
                loss = criterion(model(inputs), targets)
            loss.backward()
            sgd.step(batch)
        mx.nd.waitall()
        return time.perf_counter() - begin

    return train
