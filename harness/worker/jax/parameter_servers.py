"""Parameter servers hold the weights and the optimiser; ranks push gradients and receive weights. JAX has none, so
these are this project's (harness/worker/servers)."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Sequence, Tuple, Type

import jax
import numpy as np

from harness.core.strategies import served_by
from harness.worker.jax.strategies import Batch, Gradient, Rates, State, Step, Strategy, Update
from harness.worker.servers.protocol import FLOAT
from harness.worker.servers.ranks import ByHostRank


class ParameterServers(ByHostRank, Strategy):
    """Push all gradients as one row through host memory after backward, and receive all weights as one row."""

    def register_weights(self, weights: Sequence[np.ndarray]) -> None:
        self.ranks.register_weights(weights)
        # Counts the workers of the servers.
        self.world_size = int(self.allreduce_sum(np.ones(1))[0])

    def step(self, gradient: Gradient, update: Update) -> Step:
        @functools.partial(jax.jit, donate_argnums=1)
        def backward(params: Any, statistics: Any, scaling: Any, batch: Batch) -> Any:
            return gradient(params, statistics, scaling, *batch)

        apply = jax.jit(update, donate_argnums=(0, 1, 2))

        def step(state: State, batch: Batch, rates: Rates, synchronise: bool) -> Tuple[State, Any, Any]:
            gradients, statistics, loss = backward(state.params, state.statistics, state.scaling, batch)
            if not synchronise:
                params, velocity, scaling = apply(state.params, state.velocity, state.scaling, gradients, rates)
                return State(params, velocity, statistics, scaling), gradients, loss
            row = self.ranks.row([np.asarray(array) for array in gradients])
            self.ranks.push(row, float(rates.learning_rate))
            # The row is not reused: JAX may alias its memory.
            params = self.place(self.ranks.arrays(row), own=False)
            return State(params, state.velocity, statistics, state.scaling), gradients, loss

        return step

    def gradients(self, kept: Any, shapes: Any) -> List[np.ndarray]:
        return [np.asarray(array) for array in kept]

    def allreduce(self, nbytes: int) -> None:
        self.ranks.sum(np.zeros(max(1, nbytes // 4), FLOAT))


STRATEGIES: Dict[str, Type[Strategy]] = dict.fromkeys(served_by("jax"), ParameterServers)
