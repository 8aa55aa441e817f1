"""The application that Ray Serve is given."""

from pathlib import Path

import pytest
import yaml
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from deploy.app import assemble, assemble_pipeline, build
from deploy.options import DEFAULT_CONFIG
from shared.config import Tree, parse
from shared.errors import ConfigError


def deployments_of(application: object) -> dict[str, object]:
    built = build_app(application, name="skipjoin", default_runtime_env=None)  # type: ignore[arg-type]
    return {deployment.name: deployment for deployment in built.deployments}


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ({}, {"gateway", "scheduler", "kvcache", "profiler", "stage-0", "nats"}),
        (
            {"parallel": {"pipeline_stages": 3}, "nats": {"url": "nats://elsewhere:4222"}},
            {"gateway", "scheduler", "kvcache", "profiler", "stage-0", "stage-1", "stage-2"},
        ),
    ],
)
def test_every_service_is_a_deployment_and_an_external_nats_is_not(args: Tree, names: set[str]) -> None:
    assert set(deployments_of(build(args))) == names


def test_every_pipeline_has_deployments_of_its_own_beside_shared_gateways() -> None:
    args: Tree = {"parallel": {"replicas": 2, "pipeline_stages": 2}}
    first = {"scheduler", "kvcache", "profiler", "stage-0", "stage-1"}
    assert set(deployments_of(build(args))) == {
        "gateway", "nats", *first, *(f"{name}-p1" for name in first)
    }  # fmt: skip


def test_a_pipeline_can_be_an_application_of_its_own() -> None:
    overrides: dict[str, Tree] = {"stage-0": {"max_ongoing_requests": 7}, "kvcache-p2": {"num_replicas": 3}}
    built = deployments_of(assemble_pipeline(parse({}), overrides, pipeline=2))
    assert set(built) == {"scheduler-p2", "kvcache-p2", "profiler-p2", "stage-0-p2"}
    assert built["stage-0-p2"].max_ongoing_requests == 7, "said of every pipeline's"  # type: ignore[attr-defined]
    assert built["kvcache-p2"].num_replicas == 3, "said of this one's"  # type: ignore[attr-defined]


def test_deployment_options_of_the_file_win() -> None:
    application = assemble(parse({}), {"gateway": {"num_replicas": 3}}, embedded_nats=False)
    gateway = deployments_of(application)["gateway"]
    assert gateway.num_replicas == 3  # type: ignore[attr-defined]


def test_a_bad_tree_is_refused_before_anything_is_deployed() -> None:
    with pytest.raises(ConfigError, match=r"kv\.device_blocks"):
        build({"kv": {"device_blocks": -1}})


def test_local_yaml_is_what_ray_serve_expects() -> None:
    document = yaml.safe_load(Path(DEFAULT_CONFIG).read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert schema.applications[0].import_path == "deploy.app:build"
