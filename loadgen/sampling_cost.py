"""Prints what the request fields cost on the last stage, per step and beside a plain greedy or sampled draw.

    OMP_WAIT_POLICY=passive python -m loadgen.sampling_cost [--batch 1 16] [--output 512] [--vocabulary 49152]

Every row of the batch uses the field; the output so far has `--output` tokens, the prompt as many. For
`response_format` also what happens beside the forward pass, which the draw waits for only if it takes longer:
the masks after one more token, and after a replay of the output (a recomputed or resubmitted job).
"""

import argparse
import time
from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from services.gateway.structured.schemas import json_rule
from services.gateway.tokenizer import Tokenizer
from services.scheduler.job import Job
from services.stage import checkpoint
from services.stage.grammars import Grammars, Masks
from services.stage.logprobs import logprobs_of
from services.stage.penalties import adjust
from services.stage.sampling import sample
from shared.config import ModelConfig
from shared.ids import JobId, StepId
from shared.messages import DefineGrammar, Grammar, GrammarState, Sampling, StepJob, StepPlan, Submit

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
_SCHEMA = {
    "type": "object",
    "properties": {"words": {"type": "array", "items": {"type": "string"}}, "count": {"type": "integer"}},
    "required": ["words", "count"],
    "additionalProperties": False,
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
        _print_row(name, draws, f"{sending:.0f} | {size}")
    _print_masks(options.batch, options.output, options.vocabulary)


def _print_row(name: str, times: Sequence[float], rest: str) -> None:
    print(f"| {name} |{''.join(f' {ms:.2f} |' for ms in times)} {rest} |", flush=True)


def _print_masks(batches: Sequence[int], output: int, vocab: int) -> None:
    folder = checkpoint.resolve(ModelConfig(), lambda text, fraction: None)
    tokenizer = Tokenizer(folder)
    tokens = tokenizer.encode(f'{{"words": ["{" river" * output}')[:output]
    grammar = Grammar(f"start: {json_rule(_SCHEMA, strict=True)}", sorted(tokenizer.eos_ids))
    sampling = Sampling(temperature=0.0)
    job = Job(Submit(JobId(1), "", [1], 2 * output, sampling, output=tokens, grammar=grammar), None, 0.0)
    rows: dict[str, list[float]] = {"JSON schema: draw": [], "its masks": [], "its masks, replayed": []}
    for batch in batches:
        grammars = Grammars(folder, vocab, batch)
        grammars.define(DefineGrammar(1, grammar))
        masks = _masks(grammars, job, batch)
        lengths, first_ids = iter(range(output - 2 * _REPEAT, output)), iter(range(batch, 10**9, batch))
        ready = masks(0, next(lengths))
        logits = torch.randn(batch, vocab, generator=torch.Generator().manual_seed(0))

        def draw(ready: Masks = ready, logits: Tensor = logits) -> object:
            return sample(ready.apply(logits), [sampling] * len(logits), [0] * len(logits))

        rows["JSON schema: draw"].append(_best(draw) * 1e3)
        one_more = lambda masks=masks, lengths=lengths: masks(0, next(lengths))  # noqa: E731
        rows["its masks"].append(_best(one_more) * 1e3)
        replay = lambda masks=masks, ids=first_ids: masks(next(ids), output)  # noqa: E731
        rows["its masks, replayed"].append(_best(replay) * 1e3)
        grammars.close()
    sending = _best(lambda: job.grammar_state(1)) * 1e6
    size = len(msgspec.msgpack.encode(job.grammar_state(1)))
    for name, times in rows.items():
        _print_row(name, times, f"{sending:.0f} | {size}" if name == "JSON schema: draw" else "|")


def _masks(grammars: Grammars, job: Job, batch: int) -> Callable[[int, int], Masks]:
    """Of a batch of copies of `job`, by the id of the first and the output tokens of each."""

    def masks(first: int, length: int) -> Masks:
        state = GrammarState(1, job.grammar_state(1).output[: 4 * length])
        step = [StepJob(JobId(first + i), [1], 0, b"", job.sampling, grammar=state) for i in range(batch)]
        pending = grammars.begin(StepPlan(StepId(1), step))
        assert pending is not None
        return pending.result()

    return masks


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
