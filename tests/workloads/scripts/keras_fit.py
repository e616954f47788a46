"""Keras `fit` with the callback of the harness, on replicas of one process or, with --together, one in each process."""

import argparse
import json
import os
import pathlib
import socket
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


def introduce(folder):
    """Set TF_CONFIG, which names all processes, through a folder that they share."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    files = [pathlib.Path(folder, f"worker{number}") for number in range(world_size)]
    mine = files[rank].with_suffix(".new")
    mine.write_text(f"{socket.gethostname()}:{port}")
    mine.rename(files[rank])
    while not all(file.exists() for file in files):
        time.sleep(0.1)
    workers = {"worker": [file.read_text() for file in files]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": workers, "task": {"type": "worker", "index": rank}})


def mirrored(replicas):
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="of all replicas")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--together", metavar="FOLDER", help="processes train together, and meet in this folder")
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    if args.together:
        introduce(args.together)
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if args.together else mirrored(args.replicas)
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
