"""Training in Keras: compile and fit."""

import time

import tensorflow as tf
from tensorflow.keras import layers


def block(x, inputs, outputs):
    stride = outputs // inputs
    # "same" pads asymmetrically at stride 2, which would be another network than in the other loops.
    padded, padding = (layers.ZeroPadding2D(1)(x), "valid") if stride > 1 else (x, "same")
    y = layers.Conv2D(outputs, 3, stride, padding, use_bias=False)(padded)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(outputs, 3, 1, "same", use_bias=False)(y))
    if stride > 1:
        x = layers.Lambda(lambda t: tf.pad(t[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, inputs]]))(x)
    return layers.ReLU()(layers.Add()([x, y]))


def network():
    images = tf.keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, 1, "same", use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for inputs, outputs in [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2:
        x = block(x, inputs, outputs)
    return tf.keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def batches(images, labels, batch):
    def normalise(pixels, label):
        return (tf.cast(pixels, tf.float32) / 255 - 0.5) / 0.25, label

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
    return data.batch(batch, drop_remainder=True).map(normalise).prefetch(tf.data.AUTOTUNE)


class Clock(tf.keras.callbacks.Callback):
    """Records when each step ended; the first one of a fit includes set-up."""

    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, step, logs=None):
        self.ends.append(time.perf_counter())


def trainer(images, labels, batch):
    data, clock = batches(images, labels, batch), Clock()
    model = network()
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=1e-4),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def train(steps):
        model.fit(data, steps_per_epoch=steps + 1, epochs=1, verbose=0, callbacks=[clock])
        return clock.ends[-1] - clock.ends[0]

    return train
