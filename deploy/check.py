"""`skipjoin config --check`: is a Ray Serve config file right, as far as one can say without its cluster?"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import BaseModel
from ray.serve._private.build_app import build_app
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
)

from deploy.app import assemble
from deploy.model_fit import check_model
from deploy.resources import Demand, check_service, check_stage, demand_of, table
from deploy.tls import http_options
from shared.config import Config, Tree, load_document, override, parse
from shared.errors import ConfigError, SkipjoinError

IMPORT_PATH = "deploy.app:build"


@dataclass
class Report:
    """errors: what would fail, or run as nobody wants it; notes: what could not be checked here, and warnings
    summary: what would run where, as lines of text
    """

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)


def check(path: Path, assignments: list[str]) -> Report:
    """assignments: as of `--set`."""
    report = Report()
    try:
        args, overrides = load_document(path)
        document: Tree = yaml.safe_load(path.read_text())
        report.errors += _schema_errors(document)
        config = parse(override(args, assignments))
        demands = _demands(config, overrides)
    except ConfigError as error:
        report.errors.append(str(error))
        return report
    for demand in demands:
        report.errors += check_service(demand)
        if demand.is_stage:
            report.errors += check_stage(config, demand)
    report.errors += _check_http(config, document.get("http_options") or {})
    errors, notes = check_model(config)
    report.errors += errors
    report.notes += notes
    _check_files(config, report)
    if config.nats.url is None:
        report.notes.append("nats.url: the embedded server is for one host, several need an external one")
    if config.model.device == "auto":
        report.notes.append("model.device: auto, so GPUs are asked for only where the cluster has enough")
    report.summary = table(demands)
    return report


def _schema_errors(document: Tree) -> list[str]:
    """What Ray Serve's own schema refuses, and keys that it would ignore."""
    errors: list[str] = []
    try:
        ServeDeploySchema.model_validate(document)
    except pydantic.ValidationError as error:
        errors += [f"{_dotted(item['loc'])}: {item['msg']}, got {item['input']!r}" for item in error.errors()]
    errors += _unknown(document, ServeDeploySchema, "")
    errors += _unknown(document.get("http_options"), HTTPOptionsSchema, "http_options.")
    for i, application in enumerate(document["applications"]):
        where = f"applications[{i}]."
        errors += _unknown(application, ServeApplicationSchema, where)
        if application.get("import_path") != IMPORT_PATH:
            errors.append(
                f"{where}import_path: {application.get('import_path')!r}, Skipjoin's is {IMPORT_PATH!r}"
            )
        for j, deployment in enumerate(application.get("deployments") or []):
            at = f"{where}deployments[{j}]."
            errors += _unknown(deployment, DeploymentSchema, at)
            errors += _unknown(
                deployment.get("ray_actor_options"), RayActorOptionsSchema, f"{at}ray_actor_options."
            )
    return errors


def _unknown(values: Any, schema: type[BaseModel], where: str) -> list[str]:
    if not isinstance(values, dict):
        return []  # the schema has said so
    known = ", ".join(schema.model_fields)
    return [
        f"{where}{key}: unknown key, Ray Serve would ignore it (known here: {known})"
        for key in values
        if key not in schema.model_fields
    ]


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".") or "the file"


def _demands(config: Config, overrides: dict[str, Tree]) -> list[Demand]:
    """Of every deployment, with the file's options in force. Raises ConfigError."""
    said = _bound(config, {})
    return [
        demand_of(deployment, said[name].ray_actor_options or {})
        for name, deployment in _bound(config, overrides).items()
    ]


def _bound(config: Config, overrides: dict[str, Tree]) -> dict[str, Any]:
    application = assemble(config, overrides, embedded_nats=config.nats.url is None)
    built = build_app(application, name=config.app, default_runtime_env=None)
    return {deployment.name: deployment for deployment in built.deployments}


def _check_http(config: Config, options: Tree) -> list[str]:
    """The proxy listens where the file says, Skipjoin warns and answers by its own tree."""
    ours: dict[str, Any] = {"ssl_certfile": None, "ssl_keyfile": None} | http_options(config.gateway)
    defaults = {"host": "127.0.0.1", "port": 8000}
    stated = {key: options.get(key, defaults.get(key)) for key in ours}
    keys = {"ssl_certfile": "tls_cert", "ssl_keyfile": "tls_key"}
    return [
        f"http_options.{key}: {stated[key]}, but gateway.{keys.get(key, key)} is {ours[key]}; "
        "set both to the same"
        for key in ours
        if stated[key] != ours[key]
    ]


def _check_files(config: Config, report: Report) -> None:
    from services.gateway.keys import load

    gateway, nats = config.gateway, config.nats
    files = {"gateway.keys_file": gateway.keys_file, "nats.password_file": nats.password_file}
    files |= {"nats.credentials": nats.credentials, "nats.tls_ca": nats.tls_ca}
    files |= {"nats.tls_cert": nats.tls_cert, "nats.tls_key": nats.tls_key}
    for key, path in files.items():
        if path is not None and not Path(path).expanduser().is_file():
            report.notes.append(f"{key}: {path} is not on this machine, not checked")
        elif path is not None and key == "gateway.keys_file":
            try:
                load(Path(path).expanduser())
            except SkipjoinError as error:
                report.errors.append(str(error))
    if gateway.exposed:
        report.notes.append(
            f"gateway.host: {gateway.host} without gateway.keys_file, so whoever reaches it may ask"
        )
