"""The gateway's router, in front of simulated replicas."""

from loadgen.simulate.models import ModelProfile
from services.gateway.routing import Router
from shared.ids import JobId
from shared.messages import Outstanding

UNKNOWN_LENGTH = 1 << 30
"""Tokens. Clients name no max_tokens here: that would be the answer's true length."""


class FleetRouter:
    """Job ids are those of a replica's ledger."""

    def __init__(self, model: ModelProfile, replicas: int, batch: int) -> None:
        self._replicas = range(replicas)
        self._router = Router(batch)
        for replica in self._replicas:
            self._router.report(replica, model.cost, Outstanding())

    def choose(self, prompt: int) -> int:
        """The replica for the next request. prompt: tokens"""
        return self._router.route(self._replicas, prompt, UNKNOWN_LENGTH)

    def assigned(self, replica: int, job_id: JobId, prompt: int) -> None:
        self._router.assigned(self._unique(replica, job_id), replica, prompt, UNKNOWN_LENGTH)

    def progressed(self, replica: int, job_id: JobId, output: int) -> None:
        self._router.progressed(self._unique(replica, job_id), output)

    def ended(self, replica: int, job_id: JobId, output: int) -> None:
        """output: tokens; 0 if it was refused"""
        if output:
            self._router.answered(self._unique(replica, job_id), output)
        else:
            self._router.withdrawn(self._unique(replica, job_id))

    def _unique(self, replica: int, job_id: JobId) -> JobId:
        return JobId(job_id * len(self._replicas) + replica)
