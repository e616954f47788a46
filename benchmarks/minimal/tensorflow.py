"""A training loop in TensorFlow: tf.function around GradientTape, layers of tf.keras."""

import time

import tensorflow as tf

from benchmarks.minimal.keras import batches, network


def trainer(images, labels, batch):
    iterator = iter(batches(images, labels, batch))
    model = network()
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=1e-4)
    criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = criterion(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def train(steps):
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step(*next(iterator))
        loss.numpy()
        return time.perf_counter() - begin

    return train
