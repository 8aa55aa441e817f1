"""Which pipeline a job goes to: the least loaded one, unless another holds its KV and is not far behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.gateway import routing
from services.gateway.routing import FIRST_MEAN, WORTH, Router
from shared.block_hashes import block_hashes, split
from shared.costmodel import CostModel
from shared.ids import JobId
from shared.messages import Outstanding

COST = CostModel(0.01, 1e-3, 1e-7, 0.02, 1e-6, 1e-3, samples=100)
BATCH, BLOCK = 4, 16
PIPELINES = (0, 1, 2)


def router_of(*pipelines: int) -> Router:
    router = Router(BATCH)
    for pipeline in pipelines or PIPELINES:
        router.report(pipeline, COST, Outstanding())
    return router


def hashes_of(tokens: list[int], salt: str = "") -> list[bytes]:
    return split(block_hashes(tokens[:-1], BLOCK, salt))


def keep(router: Router, pipeline: int, tokens: list[int], salt: str = "") -> None:
    router.kept(pipeline, block_hashes(tokens, BLOCK, salt))


def test_equals_take_turns() -> None:
    router = router_of()
    order: list[int] = []
    for number in range(6):
        order.append(router.route(PIPELINES, 10, 20))
        router.assigned(JobId(number), order[-1], 10, 20)
        router.answered(JobId(number), 20)
    assert order == [0, 1, 2, 0, 1, 2]


def test_the_pipeline_with_the_least_work_is_taken_whoever_has_fewer_jobs() -> None:
    router = router_of(0, 1)
    router.assigned(JobId(1), 0, 2000, 100)
    for number in (2, 3):
        router.assigned(JobId(number), 1, 10, 20)
    assert router.route((0, 1), 10, 20) == 1
    router.progressed(JobId(1), 99)  # its prompt is computed and one token is left
    assert router.route((0, 1), 10, 20) == 0


def test_work_of_other_gateways_counts() -> None:
    router = router_of(0, 1)
    router.report(0, COST, Outstanding(jobs=8, prefill=800, context=900, output=4000))
    assert {router.route((0, 1), 10, 20) for _ in range(3)} == {1}
    router.report(0, COST, Outstanding())
    router.assigned(JobId(1), 1, 10, 20)
    assert router.route((0, 1), 10, 20) == 0


def test_a_slower_pipeline_gets_less() -> None:
    router = router_of(0)
    router.report(1, CostModel(0.04, 4e-3, 4e-7, 0.08, 4e-6, 4e-3, samples=9), Outstanding())
    counts = [0, 0]
    for number in range(50):
        pipeline = router.route((0, 1), 10, 20)
        router.assigned(JobId(number), pipeline, 10, 20)
        counts[pipeline] += 1
    assert counts[0] / counts[1] == pytest.approx(4, rel=0.1)


def test_the_next_turn_goes_to_the_pipeline_that_holds_the_first() -> None:
    router = router_of()
    turn = list(range(100))
    keep(router, 2, turn)
    longer = [*turn, *range(500, 540)]
    assert router.route(PIPELINES, len(longer), 64, hashes_of(longer)) == 2
    assert router.route(PIPELINES, len(longer), 64, hashes_of(longer, "another tenant")) != 2
    assert router.route(PIPELINES, len(longer), 64) != 2, "without a salt it takes no part in reuse"
    assert router.route((0, 1), len(longer), 64, hashes_of(longer)) != 2, "it does not serve"


def test_the_longest_beginning_wins() -> None:
    router = router_of()
    turns = list(range(200))
    keep(router, 1, turns[:64])
    keep(router, 2, turns[:160])
    assert router.route(PIPELINES, len(turns), 64, hashes_of(turns)) == 2


def test_a_lost_cache_holds_nobody() -> None:
    router = router_of()
    turn = list(range(100))
    keep(router, 2, turn)
    router.lost(2)
    assert router.route(PIPELINES, len(turn), 64, hashes_of(turn)) == 0


def test_affinity_ends_where_the_pipeline_is_far_more_loaded() -> None:
    router = router_of(0, 1)
    turn = list(range(101))
    keep(router, 1, turn)
    stayed = 0
    while router.route((0, 1), len(turn), 64, hashes_of(turn)) == 1:
        router.assigned(JobId(stayed), 1, len(turn), 64)
        stayed += 1
    assert stayed == pytest.approx(WORTH, abs=1)


def test_the_mean_of_the_answers_is_learned_and_a_refusal_teaches_nothing() -> None:
    router = router_of()
    router.assigned(JobId(1), 0, 10, 500)
    router.withdrawn(JobId(1))
    assert router.mean_output == FIRST_MEAN
    router.assigned(JobId(2), 0, 10, 500)
    router.answered(JobId(2), 20)
    assert router.mean_output == (FIRST_MEAN + 20) / 2
    for number in range(2000):
        router.answered(JobId(number), 300)
    assert router.mean_output == pytest.approx(300, abs=0.1), "what is long ago is forgotten"


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_what_is_remembered_is_bounded_and_of_a_chain_its_beginning(lengths: list[int]) -> None:
    most = 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "MOST_PREFIXES", most)
        router = router_of(0)
        for number, length in enumerate(lengths):
            keep(router, 0, [number] * length)
            load = router._load(0)
            assert len(load.prefixes) <= most
        last = hashes_of([len(lengths) - 1] * (lengths[-1] + 1))[:most]
        assert all(chain_hash in load.prefixes for chain_hash in last)


class Fleet(RuleBasedStateMachine):
    """Against a model that adds everything up anew."""

    def __init__(self) -> None:
        super().__init__()
        self.router = router_of()
        self.jobs: dict[JobId, tuple[int, float, float, float]] = {}  # pipeline, prefill, left, context
        self.most: dict[JobId, int] = {}
        self.alive = set(PIPELINES)
        self.next = 0

    def seconds(self, pipeline: int) -> float:
        total = 0.0
        for place, prompt, left, context in self.jobs.values():
            if place == pipeline:
                total += COST.prefill_b * prompt + COST.prefill_c * prompt**2
                total += left * (COST.decode_a / BATCH + COST.decode_c + COST.decode_b * context)
        return total

    def assign(self, job_id: JobId, prompt: int, most: int) -> None:
        pipeline = self.router.route(self.alive, prompt, most)
        assert pipeline in self.alive
        least = min(self.seconds(each) for each in self.alive)
        assert self.seconds(pipeline) == pytest.approx(least), "the least work, nothing being kept anywhere"
        left = min(self.router.mean_output, float(most))
        self.router.assigned(job_id, pipeline, prompt, most)
        self.jobs[job_id], self.most[job_id] = (pipeline, prompt, left, prompt + left / 2), most

    @rule(prompt=st.integers(1, 3000), most=st.integers(1, 600))
    def arrive(self, prompt: int, most: int) -> None:
        self.next += 1
        self.assign(JobId(self.next), prompt, most)

    @rule(data=st.data(), written=st.integers(1, 600))
    def progress(self, data: st.DataObject, written: int) -> None:
        if self.jobs:
            job_id = data.draw(st.sampled_from(sorted(self.jobs)))
            pipeline, _, left, context = self.jobs[job_id]
            self.router.progressed(job_id, written)
            self.jobs[job_id] = (pipeline, 0.0, min(left, max(0.0, self.most[job_id] - written)), context)

    @rule(data=st.data(), completed=st.booleans())
    def end(self, data: st.DataObject, completed: bool) -> None:
        if self.jobs:
            job_id = data.draw(st.sampled_from(sorted(self.jobs)))
            del self.jobs[job_id]
            if completed:
                self.router.answered(job_id, 50)
            else:
                self.router.withdrawn(job_id)

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Its jobs go elsewhere."""
        if len(self.alive) > 1:
            dead = data.draw(st.sampled_from(sorted(self.alive)))
            self.alive.discard(dead)
            for job_id, (pipeline, *_) in list(self.jobs.items()):
                if pipeline == dead:
                    del self.jobs[job_id]
                    self.router.withdrawn(job_id)
                    self.assign(job_id, 100, 50)

    @rule(pipeline=st.sampled_from(PIPELINES))
    def come_back(self, pipeline: int) -> None:
        self.alive.add(pipeline)

    @invariant()
    def sums_are_right(self) -> None:
        for pipeline in PIPELINES:
            assert self.router.seconds(pipeline) == pytest.approx(self.seconds(pipeline), abs=1e-6)


TestFleet = Fleet.TestCase
