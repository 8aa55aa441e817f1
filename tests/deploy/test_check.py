"""`skipjoin config --check`: mistakes are found without a cluster, and named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli import main
from deploy.options import DEFAULT_CONFIG
from shared.config import Tree

CLUSTER = DEFAULT_CONFIG.with_name("cluster.yaml")
OPT_66B = {
    "hidden_size": 9216, "num_hidden_layers": 64, "num_attention_heads": 72, "ffn_dim": 36864,
    "max_position_embeddings": 2048,
}  # fmt: skip


@pytest.fixture
def document() -> Tree:
    return yaml.safe_load(CLUSTER.read_text())


class Check:
    """Runs the command over a changed copy of cluster.yaml."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "changed.yaml"
        self._capsys = capsys

    def __call__(self, document: Tree, *assignments: str) -> tuple[int, str, str]:
        """Status, standard output, standard error."""
        self._file.write_text(yaml.safe_dump(document))
        status = main(["config", "--check", str(self._file), *(f"--set={each}" for each in assignments)])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(tmp_path, capsys)


def deployment(document: Tree, name: str) -> dict[str, Any]:
    (found,) = (entry for entry in document["applications"][0]["deployments"] if entry["name"] == name)
    return found


def model_folder(folder: Path, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(OPT_66B | changes))
    return f"model.path={folder}"


def test_the_cluster_file_is_right_and_shows_what_would_run_where(check: Check, document: Tree) -> None:
    status, out, err = check(document)
    assert (status, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert rows["stage-0"] == ["stage-0", "1", "16", "8", "8", "bundles,", "one", "host"]
    assert rows["stage-1"][1:4] == ["1", "16", "8"]
    assert rows["gateway"][1:] == ["2", "to", "8", "1", "0"]
    assert rows["together"] == ["together", "13", "42", "16"]
    assert "note: model.path: no config.json of /models/opt-66b on this machine; not checked" in out


def test_the_local_file_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--check", str(DEFAULT_CONFIG)]) == 0
    assert "nats " in capsys.readouterr().out


def test_a_model_that_is_there_is_checked_and_its_kv_counted(
    check: Check, document: Tree, tmp_path: Path
) -> None:
    status, out, _ = check(document, model_folder(tmp_path / "model"))
    assert status == 0
    assert "a block takes 2304 KiB on each rank, so 22500 MiB of the device and 36000 MiB of host" in out


def test_an_mlp_need_not_come_out_even(check: Check, document: Tree, tmp_path: Path) -> None:
    assert check(document, model_folder(tmp_path / "model", ffn_dim=36860))[0] == 0


@pytest.mark.parametrize(
    ("model", "assignment", "error"),
    [
        (
            {"num_attention_heads": 71},
            None,
            "parallel.tensor_parallel: 8 ranks cannot share the model's 71 attention heads",
        ),
        (
            {"num_key_value_heads": 4},
            None,
            "72 attention heads and 4 KV heads evenly, set it to 1, 2 or 4",
        ),
        ({}, "parallel.pipeline_stages=65", "parallel.pipeline_stages: 65 stages cannot share 64 layers"),
        ({}, "parallel.layer_split=[40, 40]", "parallel.layer_split: [40, 40] gives 80 layers to 2 stages"),
        (
            {},
            "model.max_model_len=4096",
            "model.max_model_len: 4096 is more than the model's context of 2048",
        ),
        ({"num_hidden_layers": "many"}, None, "num_hidden_layers is 'many'"),
    ],
)
def test_a_model_that_cannot_be_cut_so(
    check: Check, document: Tree, tmp_path: Path, model: Tree, assignment: str | None, error: str
) -> None:
    assignments = [model_folder(tmp_path / "model", **model), *([assignment] if assignment else [])]
    status, _, err = check(document, *assignments)
    assert status == 1 and error in err


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("stage-1", {"placement_group_strategy": "PACK"},
         "deployments.stage-1.placement_group_strategy: PACK, it must be STRICT_PACK"),
        ("stage-0", {"placement_group_bundles": [{"CPU": 2, "GPU": 1}] * 4},
         "deployments.stage-0: asks for 4 GPUs, parallel.tensor_parallel is 8"),
        ("stage-0", {"placement_group_bundles": [{"CPU": 2, "GPU": 2}] * 4},
         "deployments.stage-0.placement_group_bundles: 4, parallel.tensor_parallel is 8"),
        ("stage-0", {"placement_group_bundles": [{"CPU": 2}] * 8}, "deployments.stage-0: .* `num_gpus` .* 1"),
        ("scheduler", {"num_replicas": 2}, "deployments.scheduler: 2 replicas, it must be 1"),
        ("kvcache", {"autoscaling_config": {"min_replicas": 1, "max_replicas": 3}},
         "deployments.kvcache: 1 to 3 replicas, it must be 1"),
        ("gateway", {"ray_actor_options": {"num_cpus": 1}},
         "deployments.gateway.ray_actor_options: .* RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD; repeat"),
        ("gateway", {"placement_group_bundels": []},
         r"applications\[0\].deployments\[0\].placement_group_bundels: unknown key"),
        ("gateway", {"max_ongoing_requests": 0},
         r"applications\[0\].deployments\[0\].max_ongoing_requests: .*greater than 0, got 0"),
        ("gateway", {"name": "front"}, "deployments: there is no front .* has gateway, kvcache, profiler"),
    ],
)  # fmt: skip
def test_mistakes_in_deployments(check: Check, document: Tree, name: str, change: Tree, error: str) -> None:
    deployment(document, name).update(change)
    status, _, err = check(document)
    assert status == 1
    assert any(re.match(f"error: {error}", line) for line in err.splitlines()), err


def test_stages_on_a_cpu_ask_for_no_gpu(check: Check, document: Tree) -> None:
    status, _, err = check(document, "model.device=cpu")
    assert status == 1
    assert "error: deployments.stage-0: asks for 8 GPUs, model.device is cpu; it must be 0" in err


def test_one_place_to_listen(check: Check, document: Tree) -> None:
    status, _, err = check(document, "gateway.port=9000")
    assert status == 1 and "error: http_options.port: 8000, but gateway.port is 9000" in err


def test_a_bad_key_of_the_tree(check: Check, document: Tree) -> None:
    status, _, err = check(document, "kv.device_blocks=0")
    assert status == 1 and "error: kv.device_blocks: Expected `int` >= 1, got 0" in err


def test_another_application(check: Check, document: Tree) -> None:
    document["applications"][0]["import_path"] = "elsewhere:app"
    status, _, err = check(document)
    assert status == 1 and "applications[0].import_path: 'elsewhere:app'" in err


def test_no_keys_file_and_an_open_address_are_pointed_out(check: Check, document: Tree) -> None:
    status, out, _ = check(document, "gateway.keys_file=null")
    assert status == 0 and "note: gateway.host: 0.0.0.0 without gateway.keys_file" in out


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--check", str(tmp_path / "nowhere.yaml")]) == 1
    assert "nowhere.yaml: cannot be read" in capsys.readouterr().err
