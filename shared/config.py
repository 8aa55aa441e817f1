"""The one configuration tree: every key, its unit and its default, stated once.

Load order: defaults, then the YAML file's `args`, then `--set key=value`. Unknown keys and wrong types
are refused with the path of the key.
"""

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta

from shared.errors import ConfigError

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=1, le=65535)]

Policy = Literal[
    "skip-join",
    "mlfq",
    "fcfs",
    "fixed-priority",
    "srpt",
    "fair",
    "gittins",
    "random-priority",
    "markov-priority",
]

EMBEDDED_MODEL = "embedded"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node of the tree."""


class ModelConfig(Section, frozen=True):
    """path: a local folder with config.json and safetensors, an id on the Hugging Face hub
        (organisation/name), or "embedded" (SmolLM2-135M-Instruct)
    name: what clients call the model; default: the last part of the path
    max_model_len: longest prompt + answer, tokens; default: the model's context
    dtype: of weights, activations and KV cache
    device: where the stages compute; "auto" is cuda where there is one, else cpu
    cache_dir: converted checkpoints are kept here; default: ~/.cache/skipjoin (or $XDG_CACHE_HOME/skipjoin)
    """

    path: str = EMBEDDED_MODEL
    name: str | None = None
    max_model_len: Positive | None = None
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cache_dir: str | None = None

    @property
    def served_name(self) -> str:
        if self.name is not None:
            return self.name
        return "SmolLM2-135M-Instruct" if self.path == EMBEDDED_MODEL else Path(self.path).name

    @property
    def cache_path(self) -> Path:
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser()
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "skipjoin"


class GatewayConfig(Section, frozen=True):
    """host, port: where HTTP listens
    replicas: gateway processes behind the ingress
    max_body_bytes: larger request bodies are refused with 413
    drain_s: seconds that open streams get to finish on shutdown
    max_queued_requests: unfinished requests of one gateway process; more are refused with 429
    max_queued_tokens: the same for their prompt + max_tokens, of all choices
    max_prompt_tokens: longest prompt taken; default: what fits the model
    max_choices: answers that one request may ask for (n, for each of its prompts)
    max_header_bytes: larger request headers get a 431; the HAProxy ingress itself refuses about 15 KB
    max_grammar_bytes: largest grammar that a request's schemas (response_format, tools) may make
    max_timeout_s: longest deadline that a request may name, seconds
    reader_timeout_s: a client that takes nothing of its answer for so long is cut off, seconds
    keys_file: API keys, made by `skipjoin key`; default: everybody may ask
    cors_origins: web pages of these origins may ask from a browser ("*": all); default: none
    tls_cert, tls_key: PEM files of the certificate chain and its key, for HTTPS; default: HTTP
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    replicas: Positive = 1
    max_body_bytes: Positive = 4 * 1024 * 1024
    drain_s: Annotated[float, Meta(ge=0)] = 10.0
    max_queued_requests: Positive = 1024
    max_queued_tokens: Positive = 4_000_000
    max_prompt_tokens: Positive | None = None
    max_choices: Positive = 1024
    max_header_bytes: Annotated[int, Meta(ge=1024)] = 12 * 1024
    max_grammar_bytes: Annotated[int, Meta(ge=1, le=512 * 1024)] = 256 * 1024
    max_timeout_s: Seconds = 3600.0
    reader_timeout_s: Seconds = 60.0
    keys_file: str | None = None
    cors_origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def exposed(self) -> bool:
        """Whether others than this machine reach it without a key."""
        return self.keys_file is None and not _is_loopback(self.host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


class SchedulerConfig(Section, frozen=True):
    """policy: skip-join (preempts at every token), mlfq (the same without skip-join), fcfs (run to
        completion), fixed-priority (shortest prompt first), fair (least served tenant first) or gittins
        (by the distribution of output lengths, learned as it runs); for experiments srpt (simulator only),
        random-priority and markov-priority (priorities that change while jobs run)
    preset: parameters of the queues: skipjoin (the paper's, with a bound on promotions under overload), or as
        in paper-v3, paper-v1 or the authors' artifact
    max_batch_size: jobs in one iteration
    max_batch_tokens: tokens computed in one iteration; a longer prompt is still taken, one at a time
    chunked_prefill: compute such a prompt in parts instead, beside the decodes of others
    levels, quantum_ratio, starvation_s, demotion_levels, promotion_share: override the preset: number of
        queues (the lowest is first come, first served), quantum of a queue over that of the queue above,
        wait after which a job is promoted (alpha, seconds), queues that a job falls when its quantum is used
        up (eta), share of the places in the batches that promoted jobs may take (alpha stretches to keep it)
    trace_frequency, trace_seed: of the changing priorities: updates per plan, and what they are drawn from
    step_timeout_s: a step without result after this time is taken for lost and re-driven, seconds
    batches_in_flight: batches that the stages work on at most; default: one for each stage, and with several
        stages one more whenever the first is free
    """

    policy: Policy = "skip-join"
    preset: Literal["skipjoin", "paper-v3", "paper-v1", "artifact"] = "skipjoin"
    max_batch_size: Positive = 16
    max_batch_tokens: Positive = 2048
    chunked_prefill: bool = False
    levels: Annotated[int, Meta(ge=1, le=64)] | None = None
    quantum_ratio: Annotated[float, Meta(gt=1)] | None = None
    starvation_s: Seconds | None = None
    demotion_levels: Positive | None = None
    promotion_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    trace_frequency: Annotated[float, Meta(gt=0, le=1)] = 0.04
    trace_seed: int = 0
    step_timeout_s: Seconds = 60.0
    batches_in_flight: Positive | None = None


class KVConfig(Section, frozen=True):
    """block_size: tokens in a block
    device_blocks, host_blocks: size of the two tiers, in blocks, the same on every stage
    swap_mode: what happens when device blocks run short: proactive (jobs are swapped out before, those that
        run soon are brought in while others compute), reactive (swap then), recompute (drop and prefill
        again) or defer (new jobs wait until others end)
    reserve_blocks: device blocks kept free for arrivals (proactive); more if recent arrivals took more
    reuse: host copies of jobs that came back are kept while there is room, and need not be written again
    prefix_reuse: full blocks of ended jobs stay on the host while there is room, and jobs that begin with the
        same tokens bring them in instead of computing them (with proactive and reactive)
    prefix_blocks: most host blocks that are used so; default: half of host_blocks
    copy_threads: copy workers per stage
    """

    block_size: Annotated[int, Meta(ge=1, le=256)] = 16
    device_blocks: Positive = 1024
    host_blocks: NonNegative = 1024
    swap_mode: Literal["proactive", "reactive", "recompute", "defer"] = "proactive"
    reserve_blocks: NonNegative = 8
    reuse: bool = True
    prefix_reuse: bool = True
    prefix_blocks: NonNegative | None = None
    copy_threads: Positive = 2

    @property
    def prefix_capacity(self) -> int:
        """Most host blocks that hold prefixes of ended jobs; 0 when none are kept."""
        if not self.prefix_reuse or self.swap_mode not in ("proactive", "reactive"):
            return 0
        return self.host_blocks // 2 if self.prefix_blocks is None else self.prefix_blocks


class ParallelConfig(Section, frozen=True):
    """pipeline_stages: slices of the model's layers, one deployment each
    layer_split: layers of each stage; default: such that the slowest stage is as fast as can be, where the
        output head counts for as many layers as it has weights
    tensor_parallel: ranks per stage, processes on one host that share each layer; must divide the numbers of
        attention heads and of KV heads
    rank_timeout_s: a rank that does not take part in a step for so long is lost, and its stage restarts,
        seconds
    replicas: whole pipelines behind the gateways, each with a scheduler, KV caches and stages of its own
    max_replicas: as many there may be with those that `skipjoin scale` adds
    """

    pipeline_stages: Positive = 1
    layer_split: tuple[Positive, ...] | None = None
    tensor_parallel: Positive = 1
    rank_timeout_s: Seconds = 60.0
    replicas: Positive = 1
    max_replicas: Positive = 8


class StageConfig(Section, frozen=True):
    """threads: CPU threads of one stage's kernels
    transport: how activations go to the next stage: inline (inside the NATS message), shm (shared memory of
        one host), chunked (pieces over NATS) or distributed (torch.distributed, gloo: opens ports without
        authentication); auto is inline for what is small, else shm where the next stage sees this one's
        memory, else `between_hosts`
    inline_bytes: largest activation that travels inside the NATS message though there is shared memory
    inline_bytes_between_hosts: the same without shared memory; with chunked at least `chunk_bytes`
    between_hosts: what auto takes between stages that share no memory
    chunk_bytes: size of a piece; what fits the NATS server's max_payload if that is less
    window_chunks: pieces on their way at most, so that other messages wait for no more than these
    unacknowledged, unacknowledged_bytes: activations on their way to the next stage or waiting there at most;
        a single larger one is sent
    transfer_timeout_s: activations that make no progress for so long are lost, and their step is recomputed
    """

    threads: Positive = 1
    transport: Literal["auto", "inline", "shm", "chunked", "distributed"] = "auto"
    inline_bytes: Positive = 32 * 1024
    inline_bytes_between_hosts: Positive = 256 * 1024
    between_hosts: Literal["chunked", "distributed"] = "chunked"
    chunk_bytes: Annotated[int, Meta(ge=1024)] = 512 * 1024
    window_chunks: Positive = 4
    unacknowledged: Positive = 4
    unacknowledged_bytes: Positive = 64 * 1024 * 1024
    transfer_timeout_s: Seconds = 10.0

    @property
    def wants_process_group(self) -> bool:
        return "distributed" in (self.transport, self.between_hosts)


class ProfilerConfig(Section, frozen=True):
    """prefill_tokens: prompt lengths measured at start, tokens
    decode_batches: batch sizes measured at start, jobs
    decode_tokens: output tokens per measured job
    refit_every: a new fit is published after this many measured iterations
    cache: keep what was measured on disk, so that the next start need not measure again
    cache_dir: where; default: profiles/ in the model's cache
    cache_tolerance: a kept profile is measured anew if iterations differ from it by more than this factor
    """

    prefill_tokens: tuple[Positive, ...] = (16, 64, 192, 384)
    decode_batches: tuple[Positive, ...] = (1, 4, 16)
    decode_tokens: Annotated[int, Meta(ge=2)] = 6
    refit_every: Positive = 64
    cache: bool = True
    cache_dir: str | None = None
    cache_tolerance: Annotated[float, Meta(gt=1)] = 1.5


class NatsConfig(Section, frozen=True):
    """url: external servers, comma separated, such as nats://host:4222 or, of a cluster with TLS,
        tls://nats-0:4222,tls://nats-1:4222; default: an embedded one on loopback
    token, user, password, credentials: how to authenticate there (credentials: path of a .creds file)
    password_file: a file that holds the password, in place of `password`
    tls_ca: PEM file of the authorities that may sign the servers' certificates; default: the system's
    tls_cert, tls_key: PEM files of the certificate to show to servers that ask for one
    max_payload: largest message of the embedded server, bytes
    """

    url: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None
    password_file: str | None = None
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    max_payload: Annotated[int, Meta(ge=64 * 1024, le=64 * 1024 * 1024)] = 8 * 1024 * 1024

    @property
    def servers(self) -> list[str]:
        return [server.strip() for server in self.url.split(",")] if self.url is not None else []

    @property
    def tls(self) -> bool:
        return any(server.startswith("tls://") for server in self.servers)

    def __post_init__(self) -> None:
        for server in self.servers:
            _check_server(server)
        if self.tls and not all(server.startswith("tls://") for server in self.servers):
            raise ValueError("url: some servers are nats:// and some tls://, use the same for all")
        for key in ("tls_ca", "tls_cert", "tls_key"):
            if getattr(self, key) is not None and not self.tls:
                raise ValueError(f"{key}: only used with tls:// servers in nats.url")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"{missing}: a certificate needs its key, set both or none")
        if self.password is not None and self.password_file is not None:
            raise ValueError("password_file: nats.password is set too, use one of them")


def _check_server(server: str) -> None:
    """Raises ValueError for what is no URL of a NATS server; never shows credentials."""
    if "@" in server:
        raise ValueError("url: holds credentials, put them into nats.user and nats.password or nats.token")
    try:
        parts = urlsplit(server)
        complete = parts.scheme in ("nats", "tls") and parts.hostname and parts.port != 0
    except ValueError:  # a port out of range, half an IPv6 address
        complete = False
    if not complete:
        raise ValueError(f"url: expected nats://HOST:PORT or tls://HOST:PORT, got {server!r}")


class TimelineConfig(Section, frozen=True):
    """requests: ended ones whose timelines each gateway keeps
    samples: iterations that each scheduler keeps a sample of
    """

    requests: Positive = 1000
    samples: Positive = 8192


class TracingConfig(Section, frozen=True):
    """otlp_endpoint: collector, such as http://127.0.0.1:4318/v1/traces, or http://127.0.0.1:4317 with grpc;
        default: tracing is off
    protocol: OTLP over http or grpc
    sample_ratio: share of requests traced when the client sends no traceparent
    """

    otlp_endpoint: str | None = None
    protocol: Literal["http", "grpc"] = "http"
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0


class LoggingConfig(Section, frozen=True):
    """level: of the services' logs; DEBUG has requests for anything but answers of the model, too
    format: text, or json: an object a line
    prompts: the text of every prompt is logged; by default none of it is, in no line and in no span
    """

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["text", "json"] = "text"
    prompts: bool = False


class Config(Section, frozen=True):
    """The root. app: name of the application, part of every NATS subject"""

    app: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")] = "skipjoin"
    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    kv: KVConfig = KVConfig()
    parallel: ParallelConfig = ParallelConfig()
    stage: StageConfig = StageConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    nats: NatsConfig = NatsConfig()
    tracing: TracingConfig = TracingConfig()
    logging: LoggingConfig = LoggingConfig()
    timeline: TimelineConfig = TimelineConfig()


Tree = dict[str, Any]
_T = TypeVar("_T")
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]*)`")


def parse(tree: Tree) -> Config:
    """Validate a tree of plain values.

    Raises ConfigError, starting with the path of the bad key.
    """
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), tree)) from None
    _check_layer_split(config.parallel)
    _check_certificate(config.gateway)
    return config


def _check_certificate(gateway: GatewayConfig) -> None:
    """Raises ConfigError for a certificate without its key, and the other way round."""
    for name, value, other in (
        ("tls_cert", gateway.tls_cert, gateway.tls_key),
        ("tls_key", gateway.tls_key, gateway.tls_cert),
    ):
        if value is None and other is not None:
            raise ConfigError(f"gateway.{name}: not set; a certificate and its key go together")


def _check_layer_split(parallel: ParallelConfig) -> None:
    """Raises ConfigError; whether it fits the model is only known where that is read."""
    split, stages = parallel.layer_split, parallel.pipeline_stages
    if split is not None and len(split) != stages:
        raise ConfigError(
            f"parallel.layer_split: {list(split)} is for {len(split)} stages, "
            f"parallel.pipeline_stages is {stages}"
        )


def _explain(text: str, tree: Tree) -> str:
    match = _WHERE.match(text)
    assert match is not None  # the pattern matches any text
    what, path = match["what"], (match["path"] or "").lstrip(".")
    unknown = _UNKNOWN.search(what)
    if unknown:
        key = ".".join(filter(None, (path, unknown["field"])))
        return f"{key}: unknown key ({_known_keys(path)})"
    value = _value_at(tree, path)
    if isinstance(value, dict):  # a section's own check, which starts with the key; the values may be secret
        return f"{path}.{what}" if path else what
    return f"{path or 'configuration'}: {what}, got {value!r}"


def _value_at(tree: Tree, path: str) -> Any:
    value: Any = tree
    for name in re.findall(r"[^.\[\]]+", path):
        value = value[int(name) if name.isdigit() else name]
    return value


def _known_keys(path: str) -> str:
    node: type = Config
    for name in filter(None, path.split(".")):
        node = {field.name: field.type for field in msgspec.structs.fields(node)}[name]
    keys = ", ".join(field.name for field in msgspec.structs.fields(node))
    return f"known here: {keys}"


def override(tree: Tree, assignments: list[str]) -> Tree:
    """`tree` with `key.path=value` assignments applied; values are read as YAML (`null`, numbers, lists).

    Raises ConfigError for an assignment without `=` or a path through a value that is not a section.
    """
    result: Tree = msgspec.to_builtins(tree)
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set {assignment}: write it as key=value, for example kv.device_blocks=64")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{key}: the value {text!r} is not valid YAML ({error})") from None
        *path, leaf = key.strip().split(".")
        node = result
        for name in path:
            if not isinstance(node.setdefault(name, {}), dict):
                raise ConfigError(f"{key}: {name} is a value, not a section")
            node = node[name]
        node[leaf] = value
    return result


class _Application(msgspec.Struct):
    args: Tree | None = None
    deployments: list[Tree] = []


class _Document(msgspec.Struct):
    applications: Annotated[list[_Application], Meta(min_length=1)]


def load_document(path: Path) -> tuple[Tree, dict[str, Tree]]:
    """The `args` tree of Skipjoin's application in a Ray Serve config file, and its deployment options by
    deployment name.

    Raises ConfigError if the file cannot be read or holds no application.
    """
    try:
        document = msgspec.convert(yaml.safe_load(path.read_text()), _Document)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: no Ray Serve config file with an application: {error}") from None
    application = document.applications[0]
    options = {entry.pop("name"): entry for entry in application.deployments}
    return application.args or {}, options


def to_yaml(config: Config) -> str:
    """The effective tree, as it could be written under `args:`."""
    return yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)
