"""Profiles on disk: found again under exactly the same conditions, never trusted blindly, never torn."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.profiler import cache, hardware
from services.profiler.cache import Profile, ProfileKey
from shared.config import Tree, override, parse
from tests.profiler.measured import grid_loads, load_of, measured

LOADS = [*grid_loads(), load_of((64, 64), (1, 9))]


def key_of(*assignments: str, hardware: str = "this machine") -> ProfileKey:
    tree: Tree = override({}, list(assignments))
    return ProfileKey.of(parse(tree), hardware)


KEY = key_of()


def test_what_was_measured_comes_back_exactly(tmp_path: Path) -> None:
    cache.store(tmp_path / "new" / "folder", Profile.of(KEY, measured(LOADS)))
    profile = cache.load(tmp_path / "new" / "folder", KEY)
    assert profile is not None
    assert profile.measurements() == measured(LOADS)


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    cache.store(tmp_path, Profile.of(KEY, measured([load_of((64, 64))])))
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("SmolLM2-135M-Instruct-")
    text = path.read_text()
    assert '  "hardware": "this machine",\n' in text
    assert '      "prefill_tokens": 64,\n' in text


@pytest.mark.parametrize(
    "other",
    [
        key_of("model.dtype=bfloat16"),
        key_of("model.device=cpu"),
        key_of("model.name=else"),
        key_of("model.path=/else"),
        key_of("parallel.pipeline_stages=2"),
        key_of("stage.threads=2"),
        key_of("profiler.prefill_tokens=[16]"),
        key_of("profiler.decode_batches=[1]"),
        key_of("profiler.decode_tokens=3"),
        key_of(hardware="another machine"),
        msgspec.structs.replace(KEY, skipjoin="0"),
        msgspec.structs.replace(KEY, torch="0"),
    ],
)
def test_other_conditions_have_a_profile_of_their_own(tmp_path: Path, other: ProfileKey) -> None:
    cache.store(tmp_path, Profile.of(KEY, measured(LOADS)))
    assert cache.load(tmp_path, other) is None
    cache.store(tmp_path, Profile.of(other, measured(LOADS[:1])))
    for key, loads in ((KEY, LOADS), (other, LOADS[:1])):
        profile = cache.load(tmp_path, key)
        assert profile is not None and profile.measurements() == measured(loads)


def test_a_folder_with_another_model_inside_is_another_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 8}')
    before = key_of(f"model.path={tmp_path}")
    assert key_of(f"model.path={tmp_path}") == before
    config.write_text('{"hidden_size": 16}')
    assert key_of(f"model.path={tmp_path}") != before


def test_refitting_and_tolerance_are_no_part_of_the_key() -> None:
    assert key_of("profiler.refit_every=9", "profiler.cache_tolerance=4", "profiler.cache_dir=/x") == KEY


def broken(text: str, **fields: Any) -> str:
    return msgspec.json.encode({**msgspec.json.decode(text), **fields}).decode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "\xff" + text,
        lambda text: "[]",
        lambda text: '{"somebody": "else\'s"}',
        lambda text: broken(text, samples=[]),
        lambda text: broken(text, samples=[{"seconds": 0.0, "decode_jobs": 1}]),
        lambda text: broken(text, samples=[{"seconds": 1.0, "decode_jobs": -1}]),
        lambda text: broken(text, surprise=1),
        lambda text: text.replace("this machine", "that machine"),
    ],
)
def test_corrupt_and_foreign_files_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    cache.store(tmp_path, Profile.of(KEY, measured(LOADS)))
    path = tmp_path / KEY.file_name
    path.write_text(damage(path.read_text()), encoding="latin-1")
    with caplog.at_level(logging.WARNING, "skipjoin.profiler"):
        assert cache.load(tmp_path, KEY) is None
    assert str(path) in caplog.text and "ignored" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "skipjoin.profiler"):
        cache.store(tmp_path / "file" / "folder", Profile.of(KEY, measured(LOADS)))
    assert "cannot be kept" in caplog.text


def test_concurrent_writers_leave_one_whole_profile_and_no_litter(tmp_path: Path) -> None:
    profiles = [Profile.of(KEY, measured(LOADS[:count])) for count in range(1, len(LOADS) + 1)]

    def write_and_read(profile: Profile) -> int:
        cache.store(tmp_path, profile)
        found = cache.load(tmp_path, KEY)
        assert found is not None
        return len(found.samples)

    with ThreadPoolExecutor(8) as threads:
        lengths = list(threads.map(write_and_read, profiles * 5))
    assert set(lengths) <= set(range(1, len(LOADS) + 1))
    assert os.listdir(tmp_path) == [KEY.file_name]


def test_the_newest_profile_of_any_hardware_is_found(tmp_path: Path) -> None:
    for when, machine in (("2026-01-01", "old"), ("2026-02-01", "new")):
        profile = Profile.of(key_of(hardware=machine), measured(LOADS))
        cache.store(tmp_path, msgspec.structs.replace(profile, measured=when))
    cache.store(tmp_path, Profile.of(key_of("model.dtype=float16"), measured(LOADS)))
    found = cache.of_any_hardware(tmp_path, KEY)
    assert [profile.key.hardware for profile in found] == ["new", "old"]


def test_the_folder_is_below_the_model_cache_unless_it_is_named() -> None:
    assert cache.folder(parse({"model": {"cache_dir": "/a"}})) == Path("/a/profiles")
    assert cache.folder(parse({"profiler": {"cache_dir": "/b"}})) == Path("/b")


CPUINFO = """\
processor	: 0
cpu family	: 25
model		: 17
model name	: AMD EPYC

processor	: 1
model		: 99
"""


def test_hardware_is_what_the_stages_say_or_else_this_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(CPUINFO)
    processor = hardware.cpu(cpuinfo)
    assert processor.startswith("AMD EPYC, family 25, model 17, ")
    assert hardware.describe([], cpuinfo) == hardware.describe(["", ""], cpuinfo) == processor
    assert hardware.describe(["NVIDIA H200", "NVIDIA H200"], cpuinfo) == "NVIDIA H200"
    assert hardware.describe(["NVIDIA L4", "NVIDIA H200"], cpuinfo) == "NVIDIA H200 + NVIDIA L4"
    assert hardware.cpu(tmp_path / "none")
