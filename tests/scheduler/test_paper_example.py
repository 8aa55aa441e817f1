"""The worked example of the FastServe paper: three jobs at t=0, first iterations 5, 1, 2, two tokens each."""

import pytest

from tests.cores import Cores, create_config, create_submit


@pytest.mark.parametrize(
    ("policy", "completions", "mean_per_token"),
    [
        ("fcfs", [6, 8, 11], 25 / 6),
        ("mlfq", [9, 10, 11], 5.0),
        ("skip-join", [11, 4, 5], 20 / 6),
        ("srpt", [11, 2, 5], 3.0),
    ],
)
def test_completion_times(policy: str, completions: list[float], mean_per_token: float) -> None:
    config = create_config(
        scheduler={"policy": policy, "max_batch_size": 1, "levels": 4, "starvation_s": 1e9}
    )
    cores = Cores(config)
    cores.submit(
        *(
            create_submit(number, prompt=tokens, predicted_output=2)
            for number, tokens in enumerate((50, 10, 20))
        )
    )
    cores.run()
    assert cores.completion_times() == pytest.approx(completions)
    assert sum(cores.completion_times()) / 3 / 2 == pytest.approx(mean_per_token)
