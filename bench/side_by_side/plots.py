"""Draw what `make bench` measured: `python -m bench.side_by_side.plots` writes SVG files to docs/pictures/.

Ratio by row, from results/latest.json; seconds per GB by size, from results/sweep.json if there is one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pygal
from pygal.style import CleanStyle

RESULTS = Path(__file__).parents[1] / "results"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_LOOK: dict[str, Any] = {"style": CleanStyle, "js": [], "height": 400, "disable_xml_declaration": True}


def ratios(rows: list[dict[str, Any]]) -> pygal.HorizontalBar:
    """How many times as long the rival takes, by wall and by processor time, and the goal for the former, by row."""
    chart = pygal.HorizontalBar(title="Seconds of HBase's tool / seconds of walferry", x_title="ratio", **_LOOK)
    chart.x_labels = [row["name"] for row in rows]
    chart.add("wall time", [row["ratio"] for row in rows])
    chart.add("processors", [round(row["rival_cpu_s"] / row["walferry_cpu_s"], 2) for row in rows])
    chart.add("goal", [row["goal"] for row in rows])
    return chart


def by_size(rows: list[dict[str, Any]]) -> pygal.XY:
    """Seconds per GB of log, by its size; start-up included."""
    chart = pygal.XY(title="Replay of sealed WALs", x_title="GB of WALs", y_title="seconds per GB", **_LOOK)
    for name, key in (("walferry", "walferry_s"), ("WALPlayer", "rival_s")):
        points = sorted((row["megabytes"] / 1000, row[key] * 1000 / row["megabytes"]) for row in rows)
        chart.add(name, points)
    return chart


def main() -> None:
    """Write the pictures of the results that there are."""
    for source, picture, draw in (("latest", "bench-ratios", ratios), ("sweep", "bench-sizes", by_size)):
        path = RESULTS / f"{source}.json"
        if path.exists():
            rows = json.loads(path.read_text())["rows"]
            draw(rows).render_to_file(str(PICTURES / f"{picture}.svg"))
            print(f"docs/pictures/{picture}.svg")


if __name__ == "__main__":
    main()
