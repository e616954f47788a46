"""A loop of TensorFlow with a gradient tape, whose steps the probe marks."""

import argparse
import time

import tensorflow as tf
from scaling_probe import steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    data = tf.data.Dataset.from_tensor_slices(
        (tf.random.normal((8192, 256)), tf.random.uniform((8192,), maxval=10, dtype=tf.int32))
    )
    data = data.shuffle(8192).batch(args.batch_size, drop_remainder=True)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1024, "relu"), tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = 0
    for _ in range(args.epochs):
        for images, labels in steps(data, samples=lambda batch: len(batch[1])):
            float(train_step(images, labels))
            step += 1
            print("step", step, time.perf_counter(), flush=True)


if __name__ == "__main__":
    main()
