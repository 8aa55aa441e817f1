"""Bad configuration is refused with the path, the value and the limit."""

from pathlib import Path

import pytest
import yaml

from deploy.cli import main
from deploy.options import DEFAULT_CONFIG
from shared.config import Config, Tree, load_document, override, parse, to_yaml
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"kv": {"device_block": 5}}, r"^kv\.device_block: unknown key \(known here: .*device_blocks"),
        ({"nothing": 1}, r"^nothing: unknown key \(known here: app"),
        ({"kv": {"device_blocks": "many"}}, r"^kv\.device_blocks: Expected `int`, got `str`, got 'many'"),
        ({"kv": {"device_blocks": 0}}, r"^kv\.device_blocks: Expected `int` >= 1, got 0"),
        ({"scheduler": {"policy": "best"}}, r"^scheduler\.policy: .*'best'"),
        ({"profiler": {"decode_batches": [1, -4]}}, r"^profiler\.decode_batches\[1\]: .* >= 1, got -4"),
        ({"parallel": {"tensor_parallel": 0}}, r"^parallel\.tensor_parallel: Expected `int` >= 1, got 0"),
        ({"app": "two words"}, r"^app: .*'two words'"),
        ({"gateway": 5}, r"^gateway: Expected `object`, got `int`"),
    ],
)
def test_refusals(tree: Tree, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(tree)


@pytest.mark.parametrize(
    ("nats", "message"),
    [
        ({"url": "nats://a,tls://b:4222"}, r"^nats\.url: some servers are nats:// and some tls://"),
        ({"url": "http://a"}, r"^nats\.url: expected nats://HOST:PORT .* got 'http://a'"),
        ({"url": "a:4222"}, r"^nats\.url: expected .* got 'a:4222'"),
        ({"url": "nats://a:70000"}, r"^nats\.url: expected .* got 'nats://a:70000'"),
        ({"url": "tls://[::1"}, r"^nats\.url: expected .* got 'tls://\[::1'"),
        ({"url": "tls://a,"}, r"^nats\.url: expected .* got ''"),
        ({"url": "nats://a", "tls_ca": "x"}, r"^nats\.tls_ca: only used with tls://"),
        ({"url": "tls://a", "tls_cert": "x"}, r"^nats\.tls_key: a certificate needs its key"),
        ({"password": "p", "password_file": "x"}, r"^nats\.password_file: nats\.password is set too"),
    ],
)
def test_nats_refusals(nats: Tree, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({"nats": nats})


@pytest.mark.parametrize(
    "nats", [{"url": "nats://me:s3cret@a"}, {"url": "nats://a,tls://b", "password": "s3cret"}]
)
def test_a_refusal_shows_no_secret(nats: Tree) -> None:
    with pytest.raises(ConfigError, match=r"^nats\.url: ") as caught:
        parse({"nats": nats})
    assert "s3cret" not in str(caught.value)


def test_overrides_reach_nested_keys_and_keep_their_neighbours() -> None:
    tree = override({"kv": {"host_blocks": 7}}, ["kv.device_blocks=64", "nats.url=null", "model.path=a=b"])
    assert tree == {
        "kv": {"host_blocks": 7, "device_blocks": 64},
        "nats": {"url": None},
        "model": {"path": "a=b"},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("kv.device_blocks", "write it as key=value"),
        ("kv.x.y=1", "kv.x.y: x is a value, not a section"),
        ("kv.x=[1", "is not valid YAML"),
    ],
)
def test_bad_overrides(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override({"kv": {"x": 3}}, [assignment])


def test_printed_configuration_reads_back() -> None:
    config = parse({"kv": {"device_blocks": 3}, "nats": {"url": "nats://h:1"}})
    assert parse(yaml.safe_load(to_yaml(config))) == config


def test_local_yaml_is_valid_and_every_section_can_be_defaulted() -> None:
    args, overrides = load_document(DEFAULT_CONFIG)
    assert parse(args).model.path == "embedded" and overrides == {}
    assert parse({}) == Config()


@pytest.mark.parametrize("text", ["[1, 2", "just text", "applications: []", "applications: 7"])
def test_files_that_are_no_serve_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load_document(path)


def test_the_command_prints_the_effective_tree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "kv.device_blocks=64"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["kv"]["device_blocks"] == 64 and printed["gateway"]["port"] == 8000


def test_the_command_names_the_bad_key_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--set", "scheduler.max_batch_size=0"]) == 2
    assert "scheduler.max_batch_size: Expected `int` >= 1, got 0" in capsys.readouterr().err
