"""Draws what ``gpu.py --out FILE`` measured: ``python plot.py FILE [FILE ...] picture.svg`` (needs matplotlib)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

WAYS = {
    ("one-run", "fused"): ("a block in one run", "#08519c"),
    ("rows", "fused"): ("pools of rows, one launch for all", "#4292c6"),
    ("rows", "launch a pool, bytewise"): ("a launch a pool, byte by byte", "#9ecae1"),
    ("rows", "index_select + index_copy_"): ("index_select, index_copy_", "#c7c7c7"),
}
SIDES = {"alone": ("ratio", "#1f77b4"), "beside a product of 8192³": ("ratio_beside", "#ff7f0e")}


def bars(axes: Axes, labels: list[str], series: dict[str, tuple[str, list[float]]], asked: list[float]) -> None:
    """One group a label, one bar a series; a tick where the target stands."""
    width = 0.8 / len(series)
    for number, (name, (color, values)) in enumerate(series.items()):
        at = [group - 0.4 + width * (number + 0.5) for group in range(len(labels))]
        axes.barh(at, values, width, label=name, color=color)
    for group, target in enumerate(asked):
        if target:
            axes.plot([target, target], [group - 0.42, group + 0.42], color="black", linewidth=1.2)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, frameon=False)


def draw_copies(axes: Axes, rows: list[dict[str, Any]]) -> None:
    cases = sorted({(row["scenario"], row["num_pairs"]) for row in rows if row["num_pairs"] >= 64})
    by = {(row["scenario"], row["num_pairs"], row["layout"], row["path"]): row for row in rows}
    series = {
        label: (color, [by[(*case, *way)]["ratio"] for case in cases])
        for way, (label, color) in WAYS.items()
        if all((*case, *way) in by for case in cases)
    }
    small = [by[(*case, "rows", "fused")]["nbytes"] < 64 << 20 for case in cases]
    bars(axes, [f"{name}, {pairs} pairs" for name, pairs in cases], series, [0.88 if one else 0.95 for one in small])
    axes.set_title("block copy, part of a contiguous copy's rate", fontsize=9)


def draw_swaps(axes: Axes, rows: list[dict[str, Any]]) -> None:
    labels, asked = [], []
    for row in rows:
        way = row["path"]["swap_in" if row["direction"] == "in" else "swap_out"].split(":")[1]
        labels.append(f"{row['scenario']} {row['direction']}, {way}")
        small = row["nbytes"] < 64 << 20
        asked.append((0.78 if small else 0.92) if row["direction"] == "both" else (0.88 if small else 0.96))
    series = {name: (color, [row[key] for row in rows]) for name, (key, color) in SIDES.items()}
    bars(axes, labels, series, asked)
    axes.set_title("swap of 64 blocks, part of the link's rate", fontsize=9)


def main() -> None:
    *files, picture = sys.argv[1:]
    if not files:
        sys.exit(__doc__)
    found = [json.loads(Path(file).read_text()) for file in files]
    rows = [row for one in found for row in one["results"]]
    copies = [row for row in rows if row["what"] == "copy"]
    swaps = [row for row in rows if row["what"] == "swap"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 7), constrained_layout=True)
    draw_copies(left, copies)
    draw_swaps(right, swaps)
    figure.suptitle(f"{found[0]['device']}, {found[0].get('date', '')}; black: what was asked", fontsize=10)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
