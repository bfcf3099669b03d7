"""Files of results, and what their tables have in common."""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
_PROCESSORS = {"GenuineIntel": "two cores of an Intel Xeon", "AuthenticAMD": "two cores of an AMD EPYC"}

read_so_far: set[str] = set()
"""Names of the results that tables show."""


def read(name: str) -> Any:
    """Return the content of a file of results."""
    read_so_far.add(name)
    return json.loads((RESULTS / f"{name}.json").read_text())


def machine(report: Mapping[str, Any]) -> str:
    """Return the machine of a report in words."""
    processor = str(report.get("machine", {}).get("processor", ""))
    return next((name for word, name in _PROCESSORS.items() if word in processor), "two cores")


def percent(value: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.1f} %"


def lift(mean: Mapping[str, float]) -> tuple[str, str, str]:
    """Return the cells of success before, after, and of the worst seed after training."""
    after = f"**{mean['success_rate_after']:.2f}**"
    return f"{mean['success_rate_before']:.2f}", after, f"{mean['lowest_success_rate_after']:.2f}"


def medians(arm: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the medians before and after training, and the lowest rate after, of an arm's runs."""
    before, after = ([run[f"success_rate_{moment}"] for run in arm["runs"]] for moment in ("before", "after"))
    return f"{median(before):.2f}", f"**{median(after):.2f}**", f"{min(after):.2f}"
