"""What the scheduler looks like to a watcher: O(queues · jobs listed), however many jobs wait."""

from itertools import islice

from services.scheduler.core import Scheduler
from services.scheduler.job import Job
from services.scheduler.recent import RecentJobs
from services.scheduler.tally import state_of
from shared.messages import JobView, QueueView, SchedulerView

LISTED = 100
"""Jobs of one queue; more make a message that is worth nobody's while."""


def view_of(
    core: Scheduler, recent: RecentJobs, busy: list[float], iterations: int, now: float
) -> SchedulerView:
    """busy: seconds by stage; iterations: so far"""
    counts = core.count_jobs()
    queues: list[QueueView] = []
    for level, (quantum, listed) in enumerate(core.policy.queues()):
        waiting, running, preempted = (
            counts.get((state, level), 0) for state in ("waiting", "running", "preempted")
        )
        views = [_job(job, recent, now) for job in islice(listed, LISTED)]
        queues.append(QueueView(level, quantum, waiting, running, preempted, views))
    return SchedulerView(
        now,
        core.policy_name,
        queues,
        core.batches,
        core.max_batch_size,
        iterations,
        recent.tokens,
        recent.ended,
        list(busy),
        recent.first_token.summary(now),
        recent.between_tokens.summary(now),
    )


def _job(job: Job, recent: RecentJobs, now: float) -> JobView:
    waits = 0.0 if job.in_flight else max(0.0, recent.waits(job, now))
    return JobView(job.job_id, state_of(job), len(job.output), len(job.prompt), job.priority, waits)
