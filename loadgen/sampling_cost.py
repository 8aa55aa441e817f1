"""Prints what the request fields cost on the last stage, per step and beside a plain greedy or sampled draw.

    OMP_WAIT_POLICY=passive python -m loadgen.sampling_cost [--batch 1 16] [--output 512] [--vocabulary 49152]

Every row of the batch uses the field; the output so far has `--output` tokens, the prompt as many.
"""

import argparse
import time
from collections.abc import Callable

import msgspec
import torch

from services.scheduler.job import Job
from services.stage.logprobs import logprobs_of
from services.stage.penalties import adjust
from services.stage.sampling import sample
from shared.ids import JobId
from shared.messages import Sampling, Submit

_REPEAT = 20
_FIELDS: dict[str, Sampling] = {
    "nothing (greedy)": Sampling(temperature=0.0),
    "logprobs 0": Sampling(temperature=0.0, logprobs=0),
    "top_logprobs 20": Sampling(temperature=0.0, logprobs=20),
    "presence + frequency penalty": Sampling(temperature=0.0, presence_penalty=1.0, frequency_penalty=1.0),
    "repetition penalty": Sampling(temperature=0.0, repetition_penalty=1.2),
    "logit_bias, 300 entries": Sampling(temperature=0.0, logit_bias={7 * i: 1.0 for i in range(300)}),
    "temperature alone": Sampling(),
    "temperature and min_p": Sampling(min_p=0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--output", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = "".join(f" batch {batch}, ms |" for batch in options.batch)
    print(
        f"| field |{heads} scheduler, µs per job | bytes per job |\n|---|{'---|' * (len(options.batch) + 2)}"
    )
    for name, sampling in _FIELDS.items():
        job = _job(sampling, options.output, options.vocabulary)
        draws = [_best(_draw(job, batch, options.vocabulary)) * 1e3 for batch in options.batch]
        sending = _best(job.history) * 1e6
        size = len(msgspec.msgpack.encode((job.sampling, job.history())))
        print(f"| {name} |{''.join(f' {ms:.2f} |' for ms in draws)} {sending:.0f} | {size} |", flush=True)


def _job(sampling: Sampling, output: int, vocabulary: int) -> Job:
    tokens = torch.randint(vocabulary, (2, output), generator=torch.Generator().manual_seed(0)).tolist()
    return Job(Submit(JobId(1), "", tokens[0], 2 * output, sampling, output=tokens[1]), None, 0.0)


def _draw(job: Job, batch: int, vocabulary: int) -> Callable[[], object]:
    logits = torch.randn(batch, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    samplings, histories, positions = [job.sampling] * batch, [job.history()] * batch, list(range(batch))

    def draw() -> object:
        with torch.inference_mode():
            tokens = sample(adjust(logits, samplings, histories), samplings, positions)
            return logprobs_of(logits, tokens, samplings)

    return draw


def _best(call: Callable[[], object]) -> float:
    """Fastest of several calls after a warm one, seconds."""
    call()
    times: list[float] = []
    for _ in range(_REPEAT):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
