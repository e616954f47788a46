"""Base of strategies with a server optimiser in TensorFlow, Keras, MXNet and JAX."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Dict, Optional

from harness.worker.data_parallel import Strategy


class ServerOptimizer(Strategy):
    """Mixin for strategies whose servers take the optimiser step; precedes the framework's base class."""

    server_optimizer = True

    @abstractmethod
    def register_weights(self, weights: Any) -> None: ...

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
