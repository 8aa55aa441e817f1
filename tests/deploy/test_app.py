"""The application that Ray Serve is given."""

from pathlib import Path

import pytest
import yaml
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from deploy.app import assemble, build
from deploy.options import DEFAULT_CONFIG
from shared.config import Tree, load_document, override, parse
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


def test_deployment_options_of_the_file_win() -> None:
    application = assemble(parse({}), {"gateway": {"num_replicas": 3}}, embedded_nats=False)
    gateway = deployments_of(application)["gateway"]
    assert gateway.num_replicas == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(("device", "resource"), [("cpu", "CPU"), ("cuda", "GPU")])
def test_a_stage_reserves_a_bundle_for_each_rank_on_one_host(device: str, resource: str) -> None:
    parallel = {"pipeline_stages": 2, "tensor_parallel": 3}
    deployments = deployments_of(build({"parallel": parallel, "model": {"device": device}}))
    for name in ("stage-0", "stage-1"):
        config = deployments[name]._replica_config  # type: ignore[attr-defined]
        assert [set(bundle) for bundle in config.placement_group_bundles] == [{resource}] * 3
        assert config.placement_group_strategy == "STRICT_PACK"
    assert deployments["gateway"]._replica_config.placement_group_bundles is None  # type: ignore[attr-defined]
    single = deployments_of(build({}))["stage-0"]._replica_config  # type: ignore[attr-defined]
    assert single.placement_group_bundles is None


def test_a_bad_tree_is_refused_before_anything_is_deployed() -> None:
    with pytest.raises(ConfigError, match=r"kv\.device_blocks"):
        build({"kv": {"device_blocks": -1}})


def test_local_yaml_is_what_ray_serve_expects() -> None:
    document = yaml.safe_load(Path(DEFAULT_CONFIG).read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert schema.applications[0].import_path == "deploy.app:build"


SHRUNK = [
    "model.path=embedded",
    "model.dtype=float32",
    "model.device=cpu",
    "parallel.tensor_parallel=1",
    "kv.device_blocks=32",
    "kv.host_blocks=32",
    "gateway.keys_file=null",
    "nats.tls_ca=null",
    "nats.url=nats://127.0.0.1:4222",
]


def test_the_cluster_file_binds_two_stages_and_no_nats_server() -> None:
    """Shrunk to what a CPU can run: the same graph."""
    args, _ = load_document(DEFAULT_CONFIG.with_name("cluster.yaml"))
    found = deployments_of(build(override(args, SHRUNK)))
    assert set(found) == {"gateway", "scheduler", "kvcache", "profiler", "stage-0", "stage-1"}
    for name in ("stage-0", "stage-1"):
        assert found[name].ray_actor_options["num_gpus"] == 0  # type: ignore[attr-defined]


def test_the_cluster_file_is_what_ray_serve_expects_and_the_application_takes() -> None:
    path = DEFAULT_CONFIG.with_name("cluster.yaml")
    document = yaml.safe_load(path.read_text())
    schema = ServeDeploySchema.model_validate(document)
    assert schema.applications[0].import_path == "deploy.app:build"
    args, overrides = load_document(path)
    found = deployments_of(assemble(parse(args), overrides, embedded_nats=False))
    assert set(overrides) == set(found)
    gateway = found["gateway"]
    assert gateway._deployment_config.autoscaling_config.max_replicas == 8  # type: ignore[attr-defined]
    assert gateway.max_ongoing_requests == 10_000  # type: ignore[attr-defined]


def test_options_of_deployments_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no stage-7 .*has gateway, kvcache, .*stage-0\)"):
        assemble(parse({}), {"stage-7": {"num_replicas": 1}}, embedded_nats=False)


def test_options_that_ray_serve_does_not_take_name_the_deployment() -> None:
    with pytest.raises(ConfigError, match=r"^deployments\.kvcache: .*no_such_option"):
        assemble(parse({}), {"kvcache": {"no_such_option": 1}}, embedded_nats=False)
