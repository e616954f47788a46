"""Servers that step in the place of a rank's own optimiser: what a strategy of TensorFlow, Keras, MXNet and JAX has of
them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Dict, Optional


class Stepping:
    """Of a strategy that has none; what has is an `Updating`."""

    def hold(self, weights: Any) -> None:
        """The network's weights, once they are there."""

    def means(self, gradients: Any) -> Any:
        """Of the last step that servers made: the mean of all ranks' gradients, where they made it; else the rank's."""
        return gradients

    def updates(self) -> Optional[Dict[str, Any]]:
        """`Adapter.updates`; asked on every rank."""
        return None

    def save(self, folder: Path) -> None:
        """What the servers hold; called on every rank."""

    def load(self, folder: Path) -> None:
        """On every rank, before the first step."""


class Updating(Stepping, ABC):
    """Of a strategy whose servers step."""

    @abstractmethod
    def current(self) -> Any:
        """The servers' weights, when every rank has had its last step."""
