"""Which tokens the jobs with a grammar may draw next, found out while the model computes.

    step ──> layers … ──────────────────────────> logits ──> masked ──> draw
      └────> mask thread: catch up, then masks ────────────────^

What a job may draw follows from its grammar and its output alone, and the step carries the output. A matcher
that is kept from the step before only saves the replay: a job that was recomputed, resubmitted by its gateway
or drawn twice after a failed step gets the same masks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from shared.errors import GrammarError, SkipjoinError
from shared.grammar import check, compile_grammar, vocabulary
from shared.ids import JobId
from shared.messages import DefineGrammar, Grammar, GrammarState, StepPlan

_LEAST_KEPT = 256
"""Matchers; one that was given up is replayed, about 1 ms for 1,000 tokens."""


class UnknownGrammar(SkipjoinError):
    """A step names a grammar that was not defined in this epoch; the scheduler defines it again."""


@dataclass(frozen=True, slots=True)
class Masks:
    """For the draws of a step that have a grammar.

    rows: their places among the plan's sampling jobs
    allowed: [rows, vocab] bool
    refused: for each of them, why its grammar cannot be followed any further, or None
    """

    rows: list[int]
    allowed: np.ndarray
    refused: list[str | None]

    def apply(self, logits: Tensor) -> Tensor:
        """[draws, vocab] with minus infinity for what may not be drawn; `logits` stays as it is."""
        allowed = torch.from_numpy(self.allowed).to(logits.device)
        nothing = torch.full((), -torch.inf, dtype=logits.dtype, device=logits.device)
        if len(self.rows) == len(logits):
            return torch.where(allowed, logits, nothing)
        masked = logits.clone()
        masked[self.rows] = torch.where(allowed, logits[self.rows], nothing)
        return masked

    def refusals(self, draws: int) -> list[str | None]:
        """One for each of the step's draws; empty if there is none."""
        if not any(self.refused):
            return []
        out: list[str | None] = [None] * draws
        for row, reason in zip(self.rows, self.refused, strict=True):
            out[row] = reason
        return out


class _Known:
    """A grammar and, from its first use on, a matcher at its beginning, or why there can be none."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.beginning: LLMatcher | None = None
        self.error: GrammarError | None = None


@dataclass(slots=True)
class _Kept:
    """A job's matcher and the output that it has consumed (as in GrammarState)."""

    grammar_id: int
    matcher: LLMatcher
    output: bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    """row: its place among the plan's sampling jobs"""

    row: int
    job_id: JobId
    state: GrammarState
    known: _Known


class Grammars:
    """Matchers belong to the mask thread. All methods but `define` are for the compute thread.

    folder: has the tokenizer.json; vocab: logits per token
    batch: most jobs in a step
    """

    def __init__(self, folder: Path, vocab: int, batch: int) -> None:
        self._folder = folder
        self._vocab = vocab
        self._most_kept = max(_LEAST_KEPT, 2 * batch)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._vocabularies: dict[tuple[int, ...], LLTokenizer] = {}
        self._known: dict[int, _Known] = {}
        self._kept: OrderedDict[JobId, _Kept] = OrderedDict()

    def define(self, definition: DefineGrammar) -> None:
        """Ahead of the steps that name it. It is compiled when the first of them comes."""
        self._known[definition.grammar_id] = _Known(definition.grammar)

    def forget(self, grammar_ids: Sequence[int]) -> None:
        """They will not be named again."""
        if grammar_ids:
            for grammar_id in grammar_ids:
                self._known.pop(grammar_id, None)
            self._thread.submit(self._drop, frozenset(grammar_ids))

    def reset(self) -> None:
        """A new epoch: every grammar will be defined again."""
        self._known.clear()
        self._thread.submit(self._kept.clear)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def begin(self, plan: StepPlan) -> Future[Masks] | None:
        """Find out in the background; None if no job of the plan needs it. Raises UnknownGrammar."""
        drawing = [job for job in plan.jobs if job.sampling is not None]
        asked = [
            _Asked(row, job.job_id, job.grammar, self._grammar(job.grammar.grammar_id))
            for row, job in enumerate(drawing)
            if job.grammar is not None
        ]
        return self._thread.submit(self._masks, asked) if asked else None

    def _grammar(self, grammar_id: int) -> _Known:
        known = self._known.get(grammar_id)
        if known is None:
            raise UnknownGrammar(f"grammar {grammar_id} was not defined in this epoch")
        return known

    # ------------------------------------------------------------ in the mask thread

    def _masks(self, asked: Sequence[_Asked]) -> Masks:
        allowed = np.zeros((len(asked), self._vocab), np.bool_)
        refused: list[str | None] = []
        for mask, each in zip(allowed, asked, strict=True):
            try:
                self._fill(mask, self._matcher(each), each.state)
                refused.append(None)
            except GrammarError as error:
                self._kept.pop(each.job_id, None)
                mask[:] = True  # something must be drawn; it is not used
                refused.append(str(error))
        return Masks([each.row for each in asked], allowed, refused)

    def _fill(self, mask: np.ndarray, matcher: LLMatcher, state: GrammarState) -> None:
        """Raises GrammarError."""
        packed = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        check(matcher)
        bits = np.unpackbits(packed, count=min(8 * len(packed), len(mask)), bitorder="little")
        mask[: len(bits)] = bits
        if state.barred:
            barred = mask[state.barred]
            mask[state.barred] = False
            if not mask.any():
                mask[state.barred] = barred  # a complete answer ends, however short it is
        if not mask.any():
            raise GrammarError("no token of the vocabulary continues the answer as the grammar asks")

    def _matcher(self, asked: _Asked) -> LLMatcher:
        """The job's matcher after its output. Raises GrammarError."""
        state = asked.state
        kept = self._kept.get(asked.job_id)
        if kept is None or kept.grammar_id != state.grammar_id or not state.output.startswith(kept.output):
            kept = _Kept(state.grammar_id, self._beginning(asked.known).deep_copy(), b"")
        new = np.frombuffer(state.output, "<i4", offset=len(kept.output)).tolist()
        if new:
            kept.matcher.consume_tokens(new)
            check(kept.matcher)
        kept.output = state.output
        self._kept[asked.job_id] = kept
        self._kept.move_to_end(asked.job_id)
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)
        return kept.matcher

    def _beginning(self, known: _Known) -> LLMatcher:
        """Raises GrammarError."""
        if known.error is not None:
            raise known.error
        if known.beginning is None:
            try:
                tokens = self._vocabulary(known.grammar.ends)
                known.beginning = compile_grammar(tokens, known.grammar.source)
            except GrammarError as error:
                known.error = error
                raise
        return known.beginning

    def _vocabulary(self, ends: Sequence[int]) -> LLTokenizer:
        key = tuple(ends)  # the model's own, the same for every request
        if key not in self._vocabularies:
            self._vocabularies[key] = vocabulary(self._folder, ends)
        return self._vocabularies[key]

    def _drop(self, grammar_ids: frozenset[int]) -> None:
        for job_id in [job_id for job_id, kept in self._kept.items() if kept.grammar_id in grammar_ids]:
            del self._kept[job_id]
