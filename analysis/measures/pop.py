"""The efficiencies of the POP Centre of Excellence, from the parts of a step.

Source: https://co-design.pop-coe.eu/metrics/ and its pages `load_balance_efficiency`, `communication_efficiency`,
`parallel_efficiency`, `computation_efficiency` and `global_efficiency`. POP measures useful computation with hardware
counters; here a rank's useful computation is its step without synchronisation, U, on a cached batch. A factor may be
above 1: the parts are not clamped. C is the step on a cached batch, F the full one, both on the slowest rank and as
sums of their parts; unexplained time is in none of the factors.
"""

from __future__ import annotations

from analysis.measures.breakdown import BUCKETING, COMPUTE, DATA, IMBALANCE, SYNCHRONISATION, UNEXPLAINED, Parts

# In the order of the report.
EFFICIENCIES = {
    "load_balance": "load balance",
    "communication_efficiency": "communication",
    "parallel_efficiency": "parallel",
    "data_efficiency": "data",
    "computation_scaling": "computation scaling",
    "global_efficiency": "global",
}


def efficiencies(parts: Parts, base: Parts | None, work: float | None) -> dict[str, float | None]:
    """Return the efficiencies by the names of EFFICIENCIES; None if unknown. work: as in `lost_parts`.

    load balance = mean(U) / max(U) over the ranks.
    communication = max(U) / C: the slowest rank's computation relative to the step on a cached batch.
    parallel = load balance x communication = mean(U) / C, as POP defines it, for a step that does not wait for data.
    data = C / F: a factor that POP lacks; 1 if no step waits for data.
    computation scaling = mean(U) of the base x work / mean(U): 1 if a sample costs a rank as much as in the base.
    global = parallel x data x computation scaling = mean(U) of the base x work / F. If no step waits for data, this is
    POP's parallel x computation. Divided by that of the base, it is the report's efficiency, except for unexplained
    time.
    """
    seconds = {name: part.estimate for name, part in parts.seconds.items()}
    full = sum(value for name, value in seconds.items() if name != UNEXPLAINED)
    cached = full - seconds.get(DATA, 0.0)
    found: dict[str, float | None] = dict.fromkeys(EFFICIENCIES)
    if DATA in seconds:
        found["data_efficiency"] = _ratio(cached, full)
    if not parts.divided:
        return found
    exposed = seconds[SYNCHRONISATION] + seconds.get(BUCKETING, 0.0)
    found["communication_efficiency"] = _ratio(cached - exposed, cached)
    if IMBALANCE not in seconds:  # no rank waits for another
        return found
    found["load_balance"] = _ratio(seconds[COMPUTE], seconds[COMPUTE] + seconds[IMBALANCE])
    found["parallel_efficiency"] = _ratio(seconds[COMPUTE], cached)
    if base is not None and work is not None and base.divided:
        useful = base.seconds[COMPUTE].estimate * work
        found["computation_scaling"] = _ratio(useful, seconds[COMPUTE])
        found["global_efficiency"] = _ratio(useful, full)
    return found


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
