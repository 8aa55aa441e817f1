"""What a profile is valid for, read without torch: the profiler's process never imports it."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path


def describe(stage_details: Iterable[str], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The hardware that the stages compute on.

    stage_details: `Hello.detail` of the stages; a stage on an accelerator names it there ("NVIDIA H200"), one
        on a CPU may leave it empty and is taken to run on this host's
    """
    names = {detail or cpu(cpuinfo) for detail in stage_details}
    return " + ".join(sorted(names)) or cpu(cpuinfo)


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name and numbers of the processor, for virtual machines often have only "AMD EPYC" for a name."""
    fields: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text().splitlines():
            name, separator, value = line.partition(":")
            if separator:
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # not Linux
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = [
        f"{short} {fields[field]}"
        for short, field in (("family", "cpu family"), ("model", "model"))
        if field in fields
    ]
    return ", ".join([name, *numbers, f"{os.cpu_count()} cores"])
