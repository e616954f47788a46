"""Keras `fit` with the callback of the harness, on as many replicas as are asked for."""

import argparse
import time

import numpy as np
import scaling_probe
import tensorflow as tf
from tensorflow import keras


class StepTimes(keras.callbacks.Callback):
    step = 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        print("step", self.step, time.perf_counter(), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="of all replicas")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * args.replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(args.replicas)])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(512, "relu", input_shape=(256,)), keras.layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = np.random.rand(8192, 256).astype("float32")
    labels = np.random.randint(10, size=8192)
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(images[:512], labels[:512]),
        verbose=0,
        callbacks=[StepTimes(), scaling_probe.KerasCallback()],
    )


if __name__ == "__main__":
    main()
