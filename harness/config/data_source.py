"""Real or synthetic data, or both: `data=real`, `synthetic`, `both`.

Synthetic data has the shapes and the numbers of classes and samples of the data set it replaces, but a name of its own,
because its accuracy says nothing about the real data.
"""

from __future__ import annotations

from dataclasses import replace

from harness.config.schema import Config, Source
from harness.core.data_location import SYNTHETIC
from harness.core.errors import UserError


def variants(config: Config) -> list[Config]:
    """Return the point with its data source; two adjacent points for `both`. Raises UserError."""
    source = config.data.source
    if source is Source.real:
        return [config]
    real = replace(config, data=replace(config.data, source=Source.real))
    if config.dataset.reader == SYNTHETIC:
        if source is Source.synthetic:
            return [real]  # already synthetic
        raise UserError(
            f"data=both: data set '{config.dataset.name}' is generated from the seed and has no real data to compare "
            "with; take a data set that has files, or leave out data=both"
        )
    _check_counts(config)
    made = replace(
        config,
        data=replace(config.data, source=Source.synthetic),
        dataset=replace(config.dataset, reader=SYNTHETIC),
    )
    return [made] if source is Source.synthetic else [real, made]


def names(config: Config) -> dict[str, str]:
    """Return the name of a variant's data, and that of the data set it replaces (None for real data)."""
    name = config.dataset.name
    if config.data.source is Source.synthetic:
        return {"name": f"{name}-synthetic", "stands_for": name}
    return {"name": name}


def _check_counts(config: Config) -> None:
    for key in ("train_samples", "test_samples"):
        if getattr(config.dataset, key) < 1:
            raise UserError(
                f"data={config.data.source.name}: the configuration of data set '{config.dataset.name}' does not say "
                f"how many samples it has; set dataset.{key} to the number to generate"
            )
