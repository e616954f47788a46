"""A training loop in JAX: pure functions, one jitted step."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

STAGES = [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2


def parameters():
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def conv(inputs, outputs):
        kernel = jax.random.normal(next(keys), (3, 3, inputs, outputs)) * (2 / (9 * outputs)) ** 0.5
        # Kernel, scale and shift; running mean and variance.
        return [kernel, jnp.ones(outputs), jnp.zeros(outputs)], [jnp.zeros(outputs), jnp.ones(outputs)]

    pairs = [(3, 16)] + [pair for a, b in STAGES for pair in ((a, b), (b, b))]
    convolutions, statistics = zip(*(conv(*pair) for pair in pairs), strict=True)
    return [*convolutions, [jax.random.normal(next(keys), (64, 10)) * 0.1, jnp.zeros(10)]], list(statistics)


def conv_bn(x, weights, statistics, stride=1):
    kernel, scale, shift = weights
    x = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    new = [0.9 * statistics[0] + 0.1 * mean, 0.9 * statistics[1] + 0.1 * variance]
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift, new


def loss(params, statistics, x, y):
    new, layers = [], iter(zip(params[:-1], statistics, strict=True))

    def layer(x, stride=1):
        x, kept = conv_bn(x, *next(layers), stride)
        new.append(kept)
        return x

    x = jax.nn.relu(layer(x))
    for inputs, outputs in STAGES:
        stride = outputs // inputs
        out = layer(jax.nn.relu(layer(x, stride)))
        if stride > 1:
            x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, inputs)))
        x = jax.nn.relu(x + out)
    matrix, bias = params[-1]
    logits = jax.nn.log_softmax(x.mean((1, 2)) @ matrix + bias)
    return -jnp.take_along_axis(logits, y[:, None], axis=1).mean(), new


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
def update(params, velocity, statistics, pixels, y):
    x = (pixels.astype(jnp.float32) / 255 - 0.5) / 0.25
    (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(params, statistics, x, y)
    velocity = jax.tree.map(lambda v, g, w: 0.9 * v + g + 1e-4 * w, velocity, gradients, params)
    params = jax.tree.map(lambda w, v: w - 0.01 * v, params, velocity)
    return params, velocity, statistics, value


def trainer(images, labels, batch):
    params, statistics = parameters()
    state = [params, jax.tree.map(jnp.zeros_like, params), statistics]

    def train(steps):
        begin = time.perf_counter()
        order = np.random.permutation(len(images))
        for step in range(steps):
            mine = order[step * batch : (step + 1) * batch]
            *state[:], value = update(*state, images[mine], labels[mine])
        jax.block_until_ready((state, value))
        return time.perf_counter() - begin

    return train
