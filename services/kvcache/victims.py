"""Which jobs give up their device blocks: those that run last."""

from collections.abc import Iterable, Iterator, Mapping

from services.kvcache.jobs import JobKV
from services.kvcache.planning import PlanInProgress
from shared.ids import JobId


def victims(jobs: Mapping[JobId, JobKV], plan: PlanInProgress) -> Iterator[JobKV]:
    """Largest ENST first. None that has begun: one that was brought in, or whose prompt is computed in part,
    gets on before it can be sent out again; else two could displace each other for ever.

    All of one plan share one order: each is looked at once, however many candidates need room.
    """
    if plan.victims is None:
        plan.victims = _in_order(jobs, plan)
    for job in plan.victims:
        if job.may_leave and job.job_id not in plan.seen and jobs.get(job.job_id) is job:
            yield job


def _in_order(jobs: Mapping[JobId, JobKV], plan: PlanInProgress) -> Iterator[JobKV]:
    """The scheduler names those that run last; only when they do not suffice are all looked at."""
    named = [entry.job_id for entry in (*plan.request.holders, *plan.request.candidates)]
    yield from _last_first(jobs[job_id] for job_id in named if job_id in jobs)
    yield from _last_first(jobs.values())


def later_than(due: float, jobs: Mapping[JobId, JobKV], plan: PlanInProgress) -> Iterator[JobKV]:
    """Jobs on the device that run after `due` seconds, the last first; no candidate is among them."""
    for holder in plan.request.holders:
        job = jobs.get(holder.job_id)
        if job is not None and holder.enst > due and job.may_leave:
            yield job


def _last_first(jobs: Iterable[JobKV]) -> list[JobKV]:
    return sorted((job for job in jobs if job.may_leave), key=lambda job: job.enst, reverse=True)
