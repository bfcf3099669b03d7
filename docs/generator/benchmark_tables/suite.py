"""Tables of the suite of quick comparisons."""

from collections.abc import Mapping
from typing import Any

from docs.generator.benchmark_tables import results
from docs.generator.benchmark_tables.results import machine, read
from docs.generator.markdown import table


def suite() -> str:
    """Return the comparisons in their quick forms, with the date and the machine of their measurement."""
    if not (results.RESULTS / "suite.json").exists():
        return "No results of the suite are committed yet; `make bench` measures them and writes `suite.json`."
    rows = read("suite")["rows"]
    machines = sorted({machine(row) for row in rows})
    dates = sorted({row["measured"] for row in rows})
    when = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    header = ("Comparison", "Case", "Peer", "Ours", "Its", "Unit", "Ratio", "Spread", "Machine")
    figures = table(header, [(*_suite_cells(row), machine(row)) for row in rows])
    return f"Measured {when} on {' and on '.join(machines)}.\n\n{figures}"


def _suite_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row of the suite; one without figures has the reason in place of its ratio."""
    names = (row["title"], row["case"] or "–", row["peer"] or "–")
    spread = "–" if row["spread"] is None else f"{row['spread']:.0%}"
    if row["status"] != "measured":
        return (*names, "–", "–", row["unit"] or "–", f"{row['status']}: {row['note']}", spread)
    figures = (f"{row[who]:,.0f}" if row[who] >= 100 else f"{row[who]:.3g}" for who in ("ours", "theirs"))
    return (*names, *figures, row["unit"], f"**{row['ratio']:.2f}**", spread)


TABLES = (suite,)
