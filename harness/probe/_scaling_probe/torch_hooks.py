"""Hooks in PyTorch that tell the recorder of steps, data and what is not training. Armed as its modules are loaded."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from _scaling_probe import facts, refusals
from _scaling_probe.facts import tensors_of
from _scaling_probe.recorder import HOOKS, Recorder

# Nesting of a batch in which its first tensor is looked for.
DEPTH = 3


class TorchHooks:
    """Attributes: `modules`, what to do when a module of the script has been loaded, by its name."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.wanted = recorder.settings.step
        save = recorder.saving
        self.modules: dict[str, Callable[[Any], None]] = {
            "torch.optim.optimizer": self._hook_optimizers,
            "torch.amp.grad_scaler": self._hook_scaler,
            "torch.cuda.amp.grad_scaler": self._hook_scaler,
            "deepspeed.runtime.engine": self._hook_deepspeed,
            "torch.utils.data.dataloader": self._hook_loaders,
            "torch.nn.modules.module": self._hook_evaluation,
            "torch._tensor": self._hook_backward,
            "torch.serialization": lambda module: save(module, "save"),
            "torch.distributed.checkpoint.state_dict_saver": lambda module: save(module, "save"),
            "safetensors.torch": lambda module: save(module, "save_file"),
            "accelerate.accelerator": lambda module: save(module.Accelerator, "save_state"),
            **recorder.parallel.modules,
        }
        self._loss: Any = None
        self._scaler: Any = None
        # Steps under way: Horovod, ZeRO, DeepSpeed and GradScaler step another optimiser inside of their own step.
        self._depth = 0
        self._prepared = False
        recorder.read_loss = self._read_loss

    # Steps.

    def _hook_optimizers(self, module: Any) -> None:
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            self.recorder.refuse(
                "steps can be seen from PyTorch 2.0 on; with this version, use scaling_probe.steps() in the loop"
            )
        module.register_optimizer_step_pre_hook(self._steps)
        register(self._stepped)

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before each optimiser's step, called by PyTorch's wrapper around `step`."""
        self._depth += 1

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """After it; the outermost one counts."""
        self._depth -= 1
        if self._depth <= 0:
            self._depth = 0
            self._outermost(optimizer)

    def _outermost(self, optimizer: Any, model: Any = None) -> None:
        """A step of the optimiser ends. model: what it updates, if its own tensors are only parts of it."""
        recorder = self.recorder
        if not (recorder.active or recorder.ended):
            return
        if recorder.method != HOOKS:
            if recorder.parallel.device is None:
                recorder.parallel.updates(tensors_of(optimizer))
            return
        if not (recorder.steps or self._prepared or recorder.first_began):
            # Before any batch or backward pass: broadcast_optimizer_state of Horovod makes the optimiser's state so.
            self._prepared = True
            return
        name = type(optimizer).__name__
        counts = self.wanted is None or self.wanted == name
        if facts.capturing():  # the step is captured, not taken
            if counts:
                recorder.refuse(refusals.CAPTURED)
            return
        recorder.seen[name] = recorder.seen.get(name, 0) + 1
        if counts:
            parameters = None
            if not recorder.steps:
                parameters = tensors_of(optimizer) if model is None else list(model.parameters())
            recorder.step(name, optimizer, parameters)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _hook_scaler(self, module: Any) -> None:
        """A step that a GradScaler skips never calls the optimiser."""
        scaler_class = module.GradScaler
        if "step" not in vars(scaler_class):
            return
        original, hooks = scaler_class.step, self

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            with hooks._inside():
                result = original(scaler, optimizer, *args, **kwargs)
            if not hooks._depth:
                hooks._scaler = scaler
                hooks._outermost(optimizer)
            return result

        scaler_class.step = functools.wraps(original)(step)

    def _hook_deepspeed(self, module: Any) -> None:
        """DeepSpeed steps an optimiser once for each group of parameters."""
        engine_class = module.DeepSpeedEngine
        self.recorder.saving(engine_class, "save_checkpoint")
        original, hooks = engine_class._take_model_step, self

        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            with hooks._inside():
                result = original(engine, *args, **kwargs)
            hooks._outermost(engine.optimizer, engine.module)
            return result

        engine_class._take_model_step = functools.wraps(original)(step)

    # Loss.

    def _hook_backward(self, module: Any) -> None:
        original, hooks = module.Tensor.backward, self

        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            recorder = hooks.recorder
            hooks._depth = 0  # else a step has failed that the script goes on after
            if recorder.active:
                if recorder.first_began is None:
                    recorder.first_began = perf_counter()
                if recorder.steps + 1 >= recorder.block_end:  # else it would not be read
                    hooks._loss = tensor.detach() if tensor.dim() == 0 else None
            return original(tensor, *args, **kwargs)

        module.Tensor.backward = backward

    def _read_loss(self) -> float | None:
        """Called after a fence only, where it costs nothing."""
        loss, scaler = self._loss, self._scaler
        self._loss = self._scaler = None
        try:
            return None if loss is None else float(loss) / (scaler.get_scale() if scaler is not None else 1.0)
        except (RuntimeError, TypeError, ZeroDivisionError):
            return None

    # Data.

    def _hook_loaders(self, module: Any) -> None:
        iterator_class, loader_class = module._BaseDataLoaderIter, module.DataLoader
        next_batch, start, hooks = iterator_class.__next__, loader_class.__iter__, self

        @functools.wraps(next_batch)
        def __next__(iterator: Any) -> Any:
            recorder = hooks.recorder
            if recorder.pulling or not recorder.active or recorder.thread != threading.get_ident():
                return next_batch(iterator)
            if recorder.repeats(id(iterator)):
                return recorder.last_batches.again(id(iterator))
            recorder.pulling = True
            began = perf_counter()
            try:
                batch = next_batch(iterator)
            except StopIteration:
                recorder.exhausted(id(iterator))
                raise
            finally:
                recorder.pulling = False
            seconds = perf_counter() - began
            size = batch_size(batch) if getattr(iterator, "_auto_collation", True) else None
            recorder.batch(id(iterator), began, seconds, size)
            recorder.last_batches.keep(id(iterator), batch, size)
            return batch

        @functools.wraps(start)
        def __iter__(loader: Any) -> Any:
            recorder = hooks.recorder
            if recorder.pulling or not recorder.active or recorder.thread != threading.get_ident():
                return start(loader)
            recorder.starts(id(loader))
            iterator = start(loader)
            recorder.began(id(iterator), id(loader))
            return iterator

        iterator_class.__next__ = __next__
        loader_class.__iter__ = __iter__

    # What is not training.

    def _hook_evaluation(self, module: Any) -> None:
        original, hooks = module.Module.eval, self

        @functools.wraps(original)
        def eval(self: Any) -> Any:
            recorder = hooks.recorder
            if recorder.active and recorder.thread == threading.get_ident():
                recorder.sign("eval", id(self))
            return original(self)

        module.Module.eval = eval


def batch_size(batch: Any, depth: int = DEPTH) -> int | None:
    """The first dimension of the first tensor in a batch; None if there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth == 0 or isinstance(batch, (str, bytes)):
        return None
    if isinstance(batch, (list, tuple)):
        parts = batch
    elif hasattr(batch, "values") and hasattr(batch, "keys"):
        parts = list(batch.values())
    else:
        return None
    for part in parts:
        size = batch_size(part, depth - 1)
        if size is not None:
            return size
    return None
