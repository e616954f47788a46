"""Predicts several nodes from one and a bandwidth: the expected cost of an allreduce of the gradients between nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from analysis.scaling.bayesian import Posterior, Prior, posterior
from analysis.scaling.communication import ring_seconds
from analysis.scaling.series import RateSeries
from harness.core.spec import WEAK

# Published parameter counts by the letters and digits of a network's name. models/catalog.py counts parameters too, but
# only given numbers of classes and input sizes.
PARAMETERS = {
    "alexnet": 61.1e6,  # Krizhevsky 2014; this and the following as in torchvision's table of models
    "vgg16": 138.4e6,
    "vgg19": 143.7e6,
    "inceptionv3": 27.2e6,  # with the auxiliary classifier, Szegedy et al. 2016
    "resnet18": 11.7e6,
    "resnet50": 25.6e6,  # He et al. 2015
    "resnet101": 44.5e6,
    "resnet152": 60.2e6,
    "bertbase": 110e6,  # Devlin et al. 2019, section 3
    "bertlarge": 340e6,
    "transformerbase": 65e6,  # Vaswani et al. 2017, table 3
    "transformerbig": 213e6,
    "vitb": 86e6,  # Dosovitskiy et al. 2021, table 1
    "vitl": 307e6,
    "gpt2": 124e6,  # Radford et al. 2019, with the counts that the authors published later
    "gpt2medium": 355e6,
    "gpt2large": 774e6,
    "gpt2xl": 1558e6,
}
HALF = ("fp16", "bf16", "float16", "bfloat16")


@dataclass(frozen=True)
class OneNode:
    """Prediction from one node. posterior, prior: None if something is missing, named in `why`; else `why` says what
    they are based on."""

    posterior: Posterior | None
    why: str
    prior: Prior | None = None


def one_node(series: RateSeries, bytes_per_second: float | None = None, gradient_bytes: float | None = None) -> OneNode:
    """Predict several nodes from sizes on one. Arguments that are None are read from the names of system and model.

    The median cost of the ring between nodes becomes bytes / bandwidth: fully exposed, at full speed. Overlap makes it
    less, protocols and other traffic more, so the prior stays as wide as usual.
    """
    given = bytes_per_second is not None
    if bytes_per_second is None:
        bytes_per_second = bandwidth_in(series.system)
    if bytes_per_second is None:
        return OneNode(None, f"no bandwidth in the system's name {series.system!r}; give one with --bandwidth")
    if gradient_bytes is None:
        parameters = parameters_of(series.model)
        if parameters is None:
            of = f" of {series.model!r}" if series.model else ""
            return OneNode(None, f"the number of parameters{of} is not known here")
        gradient_bytes = parameters * (2 if series.precision.lower() in HALF else 4)
    if series.batch_per_gpu is None or series.scaling != WEAK:
        return OneNode(None, "the batch per GPU is not constant")
    step_seconds = float(series.costs[-1]) * series.batch_per_gpu
    between = ring_seconds(2, gradient_bytes, bytes_per_second) / step_seconds
    why = (
        f"{gradient_bytes / 1e6:,.3g} MB of gradients over {bytes_per_second * 8 / 1e9:g} Gb/s "
        f"({'given' if given else 'from the name of the system'}): {100 * between:.1f} % of a step between two nodes"
    )
    prior = Prior(between, series.noise)
    return OneNode(posterior(series, prior), why, prior)


def bandwidth_in(text: str) -> float | None:
    """Parse bytes per second from 'InfiniBand EDR 100 Gb/s' or '12.5 GB/s'; None if the text has none."""
    found = re.search(r"(\d+(?:\.\d+)?)\s*(Gb/s|Gbit/s|Gbps|GbE|GB/s)", text)
    if found is None or float(found[1]) <= 0:
        return None
    return float(found[1]) * 1e9 / (1 if found[2] == "GB/s" else 8)


def parameters_of(model: str) -> float | None:
    """Look up the network that the name begins with ('ResNet50 V1.5' is resnet50); None if unknown."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    found = [known for known in PARAMETERS if name.startswith(known)]
    return PARAMETERS[max(found, key=len)] if found else None
