"""The optimiser of parameter servers, in the place of a rank's own: in TensorFlow, Keras, MXNet and JAX."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Dict, Optional

from harness.worker.data_parallel import Strategy


class ServerOptimizer(Strategy):
    """Of a strategy whose servers take the optimiser step; to be named before the framework's own base."""

    server_optimizer = True

    @abstractmethod
    def hold(self, weights: Any) -> None: ...

    @abstractmethod
    def means(self, gradients: Any) -> Any: ...

    @abstractmethod
    def current(self) -> Any: ...

    @abstractmethod
    def updates(self) -> Optional[Dict[str, Any]]: ...

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    @abstractmethod
    def load(self, folder: Path) -> None: ...
