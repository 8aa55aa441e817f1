"""`skipjoin profile`: coefficients, predicted against measured, errors; and what to do without a profile."""

import argparse
import json
from pathlib import Path

import pytest

from deploy import profile
from deploy.options import DEFAULT_CONFIG
from services.profiler import cache, hardware
from services.profiler.cache import Profile, ProfileKey
from shared.config import load_document, override, parse
from tests.profiler.measured import TRUE, grid_loads, load_of, measured


def run(folder: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    profile.register(parser.add_subparsers())
    options = parser.parse_args(["profile", "--set", f"profiler.cache_dir={folder}", *arguments])
    return options.run(options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a profile of the default configuration on this machine."""
    args, _ = load_document(DEFAULT_CONFIG)
    key = ProfileKey.of(parse(override(args, [])), hardware.describe([]))
    loads = [*grid_loads(), load_of((192, 192), (1, 30), (1, 34))]
    cache.store(tmp_path / "profiles", Profile.of(key, measured(loads)))
    return tmp_path / "profiles"


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "prefill_b 1.000e-03 s/token" in lines
    assert "decode_c 4.000e-03 s/job" in lines
    assert "prefill 64 tokens 2 84.8 84.8 +0.0 %" in lines or "prefill 64 tokens 2 84.8 84.8 -0.0 %" in lines
    assert any(line.startswith("decode 4 jobs at 896 1 49.6 49.6 ") for line in lines)
    assert any(line.startswith("mixed 192 tokens + 2 jobs at 32 1 237.4 237.4 ") for line in lines)
    assert [line for line in lines if line.startswith("relative error")] == ["relative error P50 P95"]
    assert "mixed 0.0 % 0.0 %" in lines


def test_columns_are_aligned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder)
    table = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert (
        len({line.index(word) for line, word in zip(table[1:4], ["16 t", "64 t", "192 t"], strict=True)}) == 1
    )
    assert len({len(line) for line in table}) == 1  # the last column is right-aligned


def test_json_is_the_model_with_units(folder: Path, tmp_path: Path) -> None:
    assert run(folder, "--json", str(tmp_path / "cost.json")) == 0
    content = json.loads((tmp_path / "cost.json").read_text())
    assert content["samples"] == len(grid_loads()) + 1
    assert content["decode_a"] == pytest.approx(TRUE.decode_a)
    assert set(content["units"]) == set(content) - {"samples", "units"}


def test_without_a_profile_it_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "empty") == 1
    assert "start the server once" in capsys.readouterr().err


def test_another_configuration_has_no_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--set", "parallel.pipeline_stages=2") == 1
    assert "no profile of this configuration" in capsys.readouterr().err


def test_plot_or_how_to_get_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        assert run(folder, "--plot", str(tmp_path / "cost.png")) == 1
        assert "pip install matplotlib" in capsys.readouterr().err
    else:
        assert run(folder, "--plot", str(tmp_path / "cost.png")) == 0
        assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
