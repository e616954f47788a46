"""The options matrix: the reference in MXNet, imperative (see train_side.py)."""

from __future__ import annotations

from typing import Callable, Iterator, List

import mxnet as mx
import numpy as np
from mxnet import gluon
from options.plain_sgd_side import DEFECTS, Arrays, Batch, trained

from harness.core.spec import RunSpec
from models import catalog, initial
from models import mxnet as networks

__all__ = ["DEFECTS", "reference"]


def reference(spec: RunSpec, batches: Callable[[int], Iterator[Batch]], defect: str = "") -> List[np.ndarray]:
    data = spec.dataset
    layers = catalog.network(spec.model).layers(data.channels, data.classes, data.image_size)
    network = networks.build(layers, spec.seed)
    network.hybridize(active=False)
    criterion, parameters = gluon.loss.SoftmaxCrossEntropyLoss(), networks.parameters(network)
    mean, std = (np.array(values, np.float32) * 255 for values in (data.mean, data.std))

    def gradients(weights: Arrays, batch: Batch, scale: float) -> Arrays:
        for parameter, weight in zip(parameters, weights):
            parameter.set_data(mx.nd.array(weight))
        images, labels = batch
        pixels = mx.nd.array(((images.astype(np.float32) - mean) / std).transpose(0, 3, 1, 2))
        with mx.autograd.record():
            loss = criterion(network(pixels), mx.nd.array(labels)).mean() * scale
        loss.backward()
        return [parameter.grad().asnumpy() for parameter in parameters]

    return trained(spec, initial.weights(layers, spec.seed), gradients, batches, defect)
