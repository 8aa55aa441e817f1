"""When requests arrive. Gaps are drawn at one request a second and divided by the rate: the same seed gives
the same pattern at every rate, so that curves over the rate compare like with like.
"""

import numpy as np
import numpy.typing as npt

ARRIVALS = 1
"""Stream of the seed that gaps are drawn from; lengths have their own."""


def gamma(count: int, rate: float, cv: float, seed: int) -> npt.NDArray[np.float64]:
    """Arrival times, seconds, shape [count]. rate: requests a second

    cv: coefficient of variation of the gaps: 1 is Poisson, more is burstier, 0 is evenly spaced.
    Raises ValueError for a rate that is not positive or a negative cv.
    """
    if rate <= 0 or cv < 0:
        raise ValueError(f"rate {rate} must be positive and cv {cv} not negative")
    if cv == 0:
        return np.arange(1, count + 1) / rate
    draw = np.random.default_rng([seed, ARRIVALS])
    gaps = draw.gamma(1 / cv**2, cv**2, count)
    return np.cumsum(gaps) / rate


def poisson(count: int, rate: float, seed: int) -> npt.NDArray[np.float64]:
    """Arrival times of independent users, seconds, shape [count]."""
    return gamma(count, rate, 1.0, seed)
