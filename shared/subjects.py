"""Every NATS subject, built in one place: `sj.v1.<app>.<service>[.<index>].<verb>`."""

import re

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class Subjects:
    """The subjects of one application.

    Raises ValueError if `app` is not a single NATS token.
    """

    def __init__(self, app: str) -> None:
        if not _TOKEN.fullmatch(app):
            raise ValueError(
                f"application name {app!r} must match [A-Za-z0-9_-]+ to be part of a NATS subject"
            )
        self._prefix = f"sj.v1.{app}"

    def _of(self, *tokens: str | int) -> str:
        return ".".join((self._prefix, *map(str, tokens)))

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
        return self._of("gateway", instance, "tokens")

    # life signs and collection, for every service
    def hello(self, service: str) -> str:
        return self._of("hello", service)

    @property
    def hello_all(self) -> str:
        return self._of("hello", "*")

    @property
    def drain(self) -> str:
        """To all gateways, before the application stops."""
        return self._of("drain")

    @property
    def progress(self) -> str:
        return self._of("progress")

    def metrics(self, service: str) -> str:
        """Request it for the metric families of one service (`stage0`, `scheduler`, ...)."""
        return self._of("metrics", service)
