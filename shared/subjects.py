"""Every NATS subject, built in one place.

sj.v1.<app>.p<pipeline>.<service>[.<index>].<verb>      inside one pipeline
sj.v1.<app>.<service>[.<instance>].<verb>               for gateways, and what all pipelines share
"""

import re

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class Subjects:
    """The subjects of one application, seen from one of its pipelines or, with None, from outside of all.

    Raises ValueError if `app` is not a single NATS token.
    """

    def __init__(self, app: str, pipeline: int | None = None) -> None:
        if not _TOKEN.fullmatch(app):
            raise ValueError(
                f"application name {app!r} must match [A-Za-z0-9_-]+ to be part of a NATS subject"
            )
        self._app = app
        self._pipeline = pipeline

    def pipeline(self, index: int) -> "Subjects":
        """Those of a pipeline."""
        return Subjects(self._app, index)

    @property
    def outside(self) -> "Subjects":
        """Those of services that belong to no pipeline."""
        return Subjects(self._app)

    def _shared(self, *tokens: str | int) -> str:
        return ".".join(("sj.v1", self._app, *map(str, tokens)))

    def _own(self, *tokens: str | int) -> str:
        """For what every service has, in a pipeline or not."""
        return self._shared(*tokens) if self._pipeline is None else self._of(*tokens)

    def _of(self, *tokens: str | int) -> str:
        assert self._pipeline is not None, "a subject of a pipeline: use pipeline()"
        return self._shared(f"p{self._pipeline}", *tokens)

    # scheduler: requests and events that it consumes
    @property
    def scheduler_all(self) -> str:
        return self._of("scheduler", "*")

    @property
    def submit(self) -> str:
        return self._of("scheduler", "submit")

    @property
    def abort(self) -> str:
        return self._of("scheduler", "abort")

    @property
    def explain(self) -> str:
        return self._of("scheduler", "explain")

    @property
    def scheduler_look(self) -> str:
        return self._of("scheduler", "look")

    @property
    def ask_timelines(self) -> str:
        return self._of("scheduler", "timelines")

    @property
    def step_result(self) -> str:
        return self._of("scheduler", "result")

    @property
    def step_passed(self) -> str:
        return self._of("scheduler", "passed")

    @property
    def kv_changed(self) -> str:
        return self._of("scheduler", "kv_changed")

    @property
    def cost_model(self) -> str:
        return self._of("scheduler", "cost_model")

    # KV-cache manager
    @property
    def kvcache_all(self) -> str:
        return self._of("kvcache", "*")

    @property
    def kv_plan(self) -> str:
        return self._of("kvcache", "plan")

    @property
    def kv_look(self) -> str:
        return self._of("kvcache", "look")

    @property
    def transfer_done(self) -> str:
        return self._of("kvcache", "transfer_done")

    # profiler
    @property
    def step_timing(self) -> str:
        return self._of("profiler", "timing")

    # stages
    def stage_step(self, stage: int) -> str:
        return self._of("stage", stage, "step")

    def stage_chunk(self, stage: int) -> str:
        """Activations for `stage` in pieces: apart from its steps, which must not queue behind them."""
        return self._of("stage", stage, "chunk")

    def stage_receipt(self, stage: int) -> str:
        """To the sender `stage`, from the stage after it."""
        return self._of("stage", stage, "receipt")

    def stage_meet(self, stage: int) -> str:
        return self._of("stage", stage, "meet")

    # tokens back to whoever submitted (a gateway or the profiler)
    def tokens(self, instance: str) -> str:
        return self._shared("gateway", instance, "tokens")

    def gateway_metrics(self, instance: str) -> str:
        """Request it for the metric families of one of the gateways, which there may be several of."""
        return self._shared("gateway", instance, "metrics")

    def gateway_requests(self, instance: str) -> str:
        """Request it for the requests of that gateway."""
        return self._shared("gateway", instance, "requests")

    def jobs_ended(self, instance: str) -> str:
        """To the same: what became of its jobs."""
        return self._shared("gateway", instance, "ended")

    @property
    def requests_ended(self) -> str:
        """To all gateways: what became of a request, from the gateway that answered it."""
        return self._shared("requests_ended")

    @property
    def schedulers(self) -> str:
        """Hello of the scheduler of every pipeline."""
        return self._shared("*", "hello", "scheduler")

    @property
    def kept(self) -> str:
        """To all gateways, of every pipeline: prefixes whose KV is kept there."""
        return self._shared("kept")

    # life signs and collection, for every service
    def hello(self, service: str) -> str:
        return self._own("hello", service)

    @property
    def hello_all(self) -> str:
        return self._own("hello", "*")

    @property
    def drain(self) -> str:
        """To all gateways, before the application stops."""
        return self._shared("drain")

    @property
    def progress(self) -> str:
        return self._shared("progress")

    def metrics(self, service: str) -> str:
        """Request it for the metric families of one service (`stage0`, `scheduler`, ...)."""
        return self._own("metrics", service)
