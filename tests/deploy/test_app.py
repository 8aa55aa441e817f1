"""The application that Ray Serve is given."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.serve._private.build_app import build_app
from ray.serve.schema import ServeDeploySchema

from deploy.app import assemble, assemble_pipeline, build
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


_ILL = """
import asyncio
from deploy.app import ServiceDeployment
from shared.config import parse
from shared.service import Service

class Ill(Service):
    async def loop(self):
        raise RuntimeError("the reason")

async def main():
    deployment = object.__new__(ServiceDeployment)
    deployment._service = service = Ill(parse({}), "scheduler", 0)
    service.bus = type("Bus", (), {"check": lambda self: None})()
    await deployment.check_health()
    service.supervisor.start("inbox", service.loop())
    await asyncio.sleep(0)
    await deployment.check_health()
    print("it lives")

asyncio.run(main())
"""


def test_a_service_whose_loop_died_ends_its_process_and_says_why() -> None:
    ended = subprocess.run([sys.executable, "-c", _ILL], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "this process ends, to be replaced" in ended.stderr
    assert "RuntimeError: the reason" in ended.stderr
