"""The highest rate that meets an SLO, by bisection; every rate sees the same random numbers."""

from collections.abc import Callable

GROWTH = 1.5
MAX_STEPS = 40


def highest_rate(
    latency: Callable[[float], float], slo: float, guess: float, tolerance: float = 0.01
) -> float:
    """Rate (requests/s) at which `latency(rate)` reaches `slo`, interpolated inside the last bracket.

    guess: where to look first; tolerance: width of the last bracket over the rate
    Raises ValueError if no rate within a factor of GROWTH^MAX_STEPS crosses the SLO.
    """
    low = high = guess
    at_low = at_high = latency(guess)
    for _ in range(MAX_STEPS):
        if at_low <= slo < at_high:
            break
        if at_low > slo:
            high, at_high = low, at_low
            low /= GROWTH
            at_low = latency(low)
        else:
            low, at_low = high, at_high
            high *= GROWTH
            at_high = latency(high)
    else:
        raise ValueError(f"latency does not cross {slo} between {low} and {high} requests/s")
    while high - low > tolerance * high:
        middle = (low + high) / 2
        at_middle = latency(middle)
        if at_middle <= slo:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return low + (high - low) * (slo - at_low) / (at_high - at_low)
