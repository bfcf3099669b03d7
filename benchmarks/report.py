"""Result files of comparisons in ``benchmarks/results``: figures, machine and package versions."""

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def write_report(path: Path, packages: Sequence[str], comparisons: Sequence[dict[str, Any]], **settings: Any) -> None:
    """Write comparisons with the machine, the packages' versions and further settings as JSON."""
    document = {
        "machine": machine(),
        "versions": {package: version(package) for package in packages},
        **settings,
        "comparisons": comparisons,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten to {path}")


def machine() -> dict[str, Any]:
    """Return the processor, the number of CPUs, the platform and the version of Python."""
    return {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def processor() -> str:
    """Return vendor, model name, family and model of the processor on Linux, an empty string elsewhere."""
    info = Path("/proc/cpuinfo")
    facts = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line) if info.exists() else {}
    named = {name.strip(): value.strip() for name, value in facts.items()}
    return ", ".join(named[key] for key in ("vendor_id", "model name", "cpu family", "model") if key in named)
