"""Servers hold the weights and the optimiser; the ranks push gradients and take weights. JAX has none of its own: they
are this project's (harness/worker/servers)."""

from __future__ import annotations

import functools
from typing import Any, Dict, Sequence, Tuple, Type

import jax
import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.core.strategies import served_by
from harness.worker.jax.strategies import Batch, Gradient, State, Step, Strategy, Update
from harness.worker.servers.protocol import FLOAT
from harness.worker.servers.ranks import ByHostRank, HostRank


class ParameterServers(ByHostRank, Strategy):
    """All gradients in one row, through the host's memory, when backward is done; all weights in one row back."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)
        self.ranks = HostRank(spec, site, rendezvous)
        through = ", through the host's memory" if spec.cluster.device == "cuda" else ""
        self.communication = f"parameter servers: {self.ranks.words()}{through}"

    def hold(self, weights: Sequence[np.ndarray]) -> None:
        self.ranks.hold(weights)
        # As many as the servers are asked by.
        self.world_size = int(self.allreduce_sum(np.ones(1))[0])

    def step(self, gradient: Gradient, update: Update) -> Step:
        @functools.partial(jax.jit, donate_argnums=1)
        def backward(params: Any, statistics: Any, scaling: Any, batch: Batch) -> Any:
            return gradient(params, statistics, scaling, *batch)

        apply = jax.jit(update, donate_argnums=(0, 1, 2))

        def step(state: State, batch: Batch, learning_rate: Any, synchronise: bool) -> Tuple[State, Any, Any]:
            gradients, statistics, loss = backward(state.params, state.statistics, state.scaling, batch)
            if not synchronise:
                params, velocity, scaling = apply(state.params, state.velocity, state.scaling, gradients, learning_rate)
                return State(params, velocity, statistics, scaling), gradients, loss
            row = self.ranks.row([np.asarray(array) for array in gradients])
            self.ranks.push(row, float(learning_rate))
            # Of the row nothing is kept: JAX may take an array's memory for its own.
            params = self.place(self.ranks.arrays(row), own=False)
            return State(params, state.velocity, statistics, state.scaling), gradients, loss

        return step

    def allreduce(self, nbytes: int) -> None:
        self.ranks.sum(np.zeros(max(1, nbytes // 4), FLOAT))


STRATEGIES: Dict[str, Type[Strategy]] = dict.fromkeys(served_by("jax"), ParameterServers)
