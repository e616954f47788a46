"""Shows the steps of your training to the scaling harness, where it cannot see them by itself.

Copy this file beside your script if you like. Outside the harness it does nothing.

    from scaling_probe import steps

    for batch in steps(loader, samples=len):  # each iteration is one training step
        train(batch)

In a loop of another form, call `step()` at the end of each training step. For Keras, Lightning and Hugging Face's
Trainer, add one callback: `scaling_probe.KerasCallback()`, `scaling_probe.LightningCallback()` or
`scaling_probe.TrainerCallback()`.
"""

import os
import sys
from importlib import import_module
from time import perf_counter
from typing import Any

__all__ = ["KerasCallback", "LightningCallback", "TrainerCallback", "step", "steps"]  # noqa: F822 (made by __getattr__)


def steps(loader, samples=None):
    """Iterate over the loader; a training step ends when the next batch is asked for.

    Args:
        loader: Any iterable of batches.
        samples: Function of a batch that counts its samples on this rank (or what workload.unit says), compared with
            workload.samples_per_step; None: not compared.
    """
    return loader if _recorder is None else _Steps(loader, samples)


def step(samples=None):
    """End a training step. samples: how many this rank trained on in it; None: as workload.samples_per_step says."""
    if _recorder is not None:
        if samples is not None:
            _recorder.interval.add_samples(0, samples)
        _recorder.step("step")


class _Steps:
    def __init__(self, loader, samples):
        self.loader, self.samples = loader, samples

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        _recorder.starts(id(self.loader))
        iterator = _waiting(iter, self.loader)
        _recorder.began(id(iterator), id(self.loader))
        while True:
            if _recorder.repeats(id(iterator)):
                yield _recorder.last_batches.again(id(iterator))
                _recorder.step("steps")
                continue
            began = perf_counter()
            try:
                batch = _waiting(next, iterator)
            except StopIteration:
                _recorder.exhausted(id(iterator))
                return
            seconds = perf_counter() - began
            samples = self.samples(batch) if self.samples else None
            _recorder.batch(id(iterator), began, seconds, samples)
            _recorder.last_batches.keep(id(iterator), batch, samples)
            yield batch
            _recorder.step("steps")


def _waiting(function, argument):
    """A DataLoader of PyTorch also shows its batches by itself."""
    _recorder.pulling = True
    try:
        return function(argument)
    finally:
        _recorder.pulling = False


def _begin():
    if "SCALING_PROBE" not in os.environ and "_scaling_probe" not in sys.modules:
        return None
    try:
        from _scaling_probe import session
    except ImportError:
        raise SystemExit(
            "error: the harness's probe is not on Python's path: start Python without -I and -E, and add to PYTHONPATH "
            "instead of replacing it"
        ) from None
    return session.marked()


_recorder = _begin()


def _keras_callback():
    base: Any = import_module("keras").callbacks.Callback

    class KerasCallback(base):
        def on_train_begin(self, logs=None):
            if _recorder is not None and _recorder.first_began is None:
                _recorder.first_began = perf_counter()

        def on_epoch_begin(self, epoch, logs=None):
            _sign("epoch")

        def on_test_begin(self, logs=None):
            _sign("eval")

        def on_train_batch_end(self, batch, logs=None):
            step()

    return KerasCallback


def _lightning_callback():
    try:
        base: Any = import_module("lightning.pytorch").Callback
    except ImportError:
        base = import_module("pytorch_lightning").Callback

    class LightningCallback(base):
        done = 0

        def on_train_batch_end(self, trainer, *args, **kwargs):
            if trainer.global_step != self.done:  # else a micro-batch
                self.done = trainer.global_step
                step()

    return LightningCallback


def _trainer_callback():
    base: Any = import_module("transformers").TrainerCallback

    class TrainerCallback(base):
        def on_step_end(self, args, state, control, **kwargs):
            step()

    return TrainerCallback


def _sign(kind):
    if _recorder is not None:
        _recorder.sign(kind, 0)


_CALLBACKS = {
    "KerasCallback": _keras_callback,
    "LightningCallback": _lightning_callback,
    "TrainerCallback": _trainer_callback,
}


def __getattr__(name):
    if name not in _CALLBACKS:
        raise AttributeError(name)
    globals()[name] = _CALLBACKS[name]()
    return globals()[name]
