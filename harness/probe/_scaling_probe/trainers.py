"""Ends the loops of Lightning and Hugging Face's Trainer through their own interfaces, so that they clean up.

They skip the final validation and checkpoint, and the script does not continue once they have returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _scaling_probe.recorder import Recorder


class Trainers:
    """Attributes: `modules`, what to do when a module of the script has been loaded, by its name."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.modules: dict[str, Callable[[Any], None]] = {
            "lightning.pytorch.trainer.trainer": self._hook_lightning,
            "pytorch_lightning.trainer.trainer": self._hook_lightning,
            "transformers.trainer": self._hook_transformers,
        }

    def _hook_lightning(self, module: Any) -> None:
        self._hook(module, "fit", _stop_lightning)
        self._recorder.saving(module.Trainer, "save_checkpoint")

    def _hook_transformers(self, module: Any) -> None:
        self._hook(module, "train", _stop_transformers)
        self._recorder.saving(module.Trainer, "_save_checkpoint")

    def _hook(self, module: Any, name: str, stop: Callable[[Any, Any], None]) -> None:
        """name: the method that trains. stop: ends it soon, given the module and the trainer."""
        original, recorder = getattr(module.Trainer, name), self._recorder

        @functools.wraps(original)
        def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            outer, recorder.stop_library = recorder.stop_library, lambda: stop(module, trainer)
            try:
                return original(trainer, *args, **kwargs)
            finally:
                recorder.stop_library = outer
                if recorder.ended is not None:
                    raise recorder.ended

        setattr(module.Trainer, name, train)


def _stop_lightning(module: Any, trainer: Any) -> None:
    trainer.should_stop = True
    trainer.limit_val_batches = 0
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
    unwanted = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]
    trainer.callbacks = [callback for callback in trainer.callbacks if callback not in unwanted]


def _stop_transformers(module: Any, trainer: Any) -> None:
    def nothing_else(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_training_stop = True
        control.should_log = control.should_evaluate = control.should_save = False
        return control

    trainer.control.should_training_stop = True
    methods = {"on_step_end": nothing_else, "on_epoch_end": nothing_else}
    trainer.add_callback(type("Leave", (module.TrainerCallback,), methods))
