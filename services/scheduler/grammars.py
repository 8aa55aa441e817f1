"""Which grammars unfinished jobs have, and which of them the last stage knows.

    first step of a job       ──> DefineGrammar, then the step that names it
    its last job has ended    ──> `forgotten` of the next step
    new epoch, or failed step ──> the last stage may have lost it: defined again

Numbers are never used twice: a definition goes straight to the last stage and may arrive before an earlier
step, which goes through all of them.
"""

from services.scheduler.job import Job
from shared.messages import DefineGrammar, Grammar, GrammarState


class _Entry:
    __slots__ = ("defined", "grammar", "grammar_id", "jobs")

    def __init__(self, grammar_id: int, grammar: Grammar) -> None:
        self.grammar_id = grammar_id
        self.grammar = grammar
        self.jobs = 0
        self.defined = False


class Grammars:
    """Jobs with the same grammar share its entry."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, tuple[int, ...]], _Entry] = {}
        self._last_id = 0
        self._undefined: list[DefineGrammar] = []
        self._forgotten: list[int] = []

    def acquire(self, job: Job) -> None:
        """At the job's arrival."""
        if job.grammar is not None:
            key = _key(job.grammar)
            if key not in self._entries:
                self._last_id += 1
                self._entries[key] = _Entry(self._last_id, job.grammar)
            self._entries[key].jobs += 1

    def release(self, job: Job) -> None:
        """At the job's end."""
        if job.grammar is not None:
            key = _key(job.grammar)
            entry = self._entries[key]
            entry.jobs -= 1
            if not entry.jobs:
                del self._entries[key]
                self._forgotten.append(entry.grammar_id)  # ignored where it was never heard of

    def state(self, job: Job) -> GrammarState | None:
        """For a step that draws a token of the job; its definition is due before that step."""
        if job.grammar is None:
            return None
        entry = self._entries[_key(job.grammar)]
        if not entry.defined:
            entry.defined = True
            self._undefined.append(DefineGrammar(entry.grammar_id, entry.grammar))
        return job.grammar_state(entry.grammar_id)

    def take_definitions(self) -> list[DefineGrammar]:
        """To be sent before the step that was planned last."""
        taken, self._undefined = self._undefined, []
        return taken

    def take_forgotten(self) -> list[int]:
        """To go with the next step that has jobs: others overtake it on its way through the stages."""
        taken, self._forgotten = self._forgotten, []
        return taken

    def failed(self, job: Job) -> None:
        """A step of the job failed, perhaps for want of the grammar."""
        if job.grammar is not None:
            self._entries[_key(job.grammar)].defined = False

    def lost(self) -> None:
        """A new epoch: the stages know nothing any more."""
        self._undefined, self._forgotten = [], []
        for entry in self._entries.values():
            entry.defined = False


def _key(grammar: Grammar) -> tuple[str, tuple[int, ...]]:
    return grammar.source, tuple(grammar.ends)
