"""What stages ask Ray for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.placement import compute_environment, on_accelerators, stage_options
from shared.config import parse

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_every_rank_gets_a_gpu_of_its_own_on_one_host() -> None:
    options = stage_options(parse({"model": {"device": "cuda"}, "parallel": {"tensor_parallel": 4}}))
    assert options["ray_actor_options"]["num_gpus"] == 1
    assert [bundle["GPU"] for bundle in options["placement_group_bundles"]] == [1] * 4
    assert options["placement_group_strategy"] == "STRICT_PACK"


def test_a_single_rank_needs_no_group() -> None:
    options = stage_options(parse({"model": {"device": "cuda"}}))
    assert options["ray_actor_options"]["num_gpus"] == 1 and "placement_group_bundles" not in options


def test_auto_asks_for_gpus_only_where_there_is_one_for_each_rank() -> None:
    config = parse({"parallel": {"pipeline_stages": 2, "tensor_parallel": 2}})
    assert on_accelerators(config, 4).model.device == "cuda"
    assert on_accelerators(config, 3).model.device == "auto"
    assert stage_options(on_accelerators(config, 0))["ray_actor_options"]["num_gpus"] == 0


def test_cpu_stays_cpu() -> None:
    config = parse({"model": {"device": "cpu"}})
    assert on_accelerators(config, 8) is config


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="this kernel gives no huge pages"
)
def test_what_a_stage_on_a_cpu_allocates_lies_on_huge_pages() -> None:
    script = "data = b'x' * 2**26; print(open('/proc/self/smaps_rollup').read())"
    environment = compute_environment(parse({"model": {"device": "cpu"}}))
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    (kilobytes,) = re.findall(r"AnonHugePages:\s+(\d+) kB", told.stdout)
    assert int(kilobytes) > 0
