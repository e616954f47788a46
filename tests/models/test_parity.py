"""Every framework computes the same as PyTorch from the same catalogue row, seed and batch: logits with running
statistics, gradients, SGD steps. tests/worker/sides/parity_side.py runs in the frameworks' environments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from environments import in_environment
from noise import SMALL_RESNET

from models import catalog

# With even sizes, frameworks pad convolutions of stride 2 differently by default. Several pixels remain to be
# flattened, so that their order matters: 2 x 2 in cnn_small.
CASES = [(SMALL_RESNET, 32, 20), ("cnn_small", 72, 5), ("resnet9", 16, 2)]
# ResNet-18 is not compared at 32: its last stage is of one pixel there, and statistics of four values let rounding
# switch a ReLU in the third step.
WHOLE = [
    *(("resnet20", 32, 20), ("resnet20", 28, 5), ("resnet18", 28, 5), ("resnet18", 64, 5)),
    *(("alexnet", 96, 2), ("vgg16", 32, 2)),
]
ENVIRONMENTS = {"tensorflow": "tensorflow", "keras": "tensorflow", "mxnet": "mxnet", "jax": "jax"}

Computed = dict[tuple[str, int], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def computed(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Computed]:
    """The results of a framework for all cases, computed once."""
    known: dict[str, Computed] = {}
    cases = [*CASES, *WHOLE] if pytestconfig.getoption("--whole") else CASES

    def get(framework: str, environment: str) -> Computed:
        if framework not in known:
            folder = tmp_path_factory.mktemp(framework)
            in_environment(environment, "parity_side", "compute", framework, cases, str(folder))
            known[framework] = {
                (model, size): dict(np.load(folder / f"{model}-{size}.npz")) for model, size, _ in cases
            }
        return known[framework]

    return get


@pytest.mark.torch
@pytest.mark.parametrize("framework", ENVIRONMENTS)
@pytest.mark.parametrize(
    ("model", "size", "steps"), [*CASES, *(pytest.param(*case, marks=pytest.mark.whole) for case in WHOLE)]
)
def test_a_framework_computes_what_pytorch_does(
    computed: Callable[[str, str], Computed], framework: str, model: str, size: int, steps: int
) -> None:
    ours = computed(framework, ENVIRONMENTS[framework])[model, size]
    theirs = computed("pytorch", "pytorch")[model, size]
    assert ours["parameters"] == catalog.parameters(catalog.network(model).layers(3, 10, size))
    # fp32 rounding of logits of order 1, through up to 20 layers.
    np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=1e-4)
    errors = [relative_error(ours[name], theirs[name]) for name in theirs if name.startswith("gradient")]
    # Rounding: up to 3e-5.
    assert max(errors) < 1e-3
    # Each step amplifies the rounding of those before: 1e-6 after 5 steps, 1e-3 after 20.
    np.testing.assert_allclose(ours["losses"][:5], theirs["losses"][:5], rtol=1e-4)
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-2)
    assert relative_error(ours["trained"], theirs["trained"]) < (1e-3 if steps <= 5 else 5e-2)


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return ||ours - theirs|| / ||theirs||. Gradients behind a BatchNorm with initial scale 0 are 0."""
    length = float(np.linalg.norm(theirs))
    return float(np.linalg.norm(ours - theirs)) / length if length else float(np.linalg.norm(ours))
