"""What an interval comes from, or why there is none, in words."""

from __future__ import annotations

from analysis.stats.estimates import FEWEST_BLOCKS, Basis, Missing

ONE_RUN = "blocks of one run"


def basis_text(basis: Basis) -> str:
    """'4 runs and 3 runs', '3 runs each', 'no interval: the 3 runs are alike to the last digit'."""
    if basis.missing:
        return f"no interval: {'; '.join(map(_why, basis.missing))}"
    texts = [ONE_RUN if runs == 1 else f"{runs} runs" for runs in basis.runs]
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < len(texts) and distinct != [ONE_RUN]:
        return f"{distinct[0]} each"
    return " and ".join(distinct)


def _why(missing: Missing) -> str:
    if missing.blocks is not None:
        return f"{missing.blocks} block{'s' * (missing.blocks != 1)} of one run, {FEWEST_BLOCKS} are needed"
    return f"the {ONE_RUN if missing.runs == 1 else f'{missing.runs} runs'} are alike to the last digit"
