"""Who holds what, as a picture: clients by classes, darker where there is more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedproc.report.style import figure, save

MOST_NUMBERS = 400  # cells in which a number can still be read


def draw_holdings(counts: npt.NDArray[np.int64], class_names: Sequence[str], title: str, path: Path) -> None:
    """`counts` (clients, classes) as a heatmap, with the clients' sizes as bars beside it."""
    clients, classes = counts.shape
    made = figure(min(4.5 + 0.55 * classes, 16), min(2.2 + 0.32 * clients, 14))
    heat, bars = made.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    heat.imshow(counts, cmap="Blues", aspect="auto", vmin=0)
    heat.set_ylabel("client")
    if classes <= 40:
        heat.set_xticks(range(classes), class_names, rotation=45, ha="right", fontsize=8)
    else:
        heat.set_xlabel(f"{classes} classes")
    if clients <= 40:
        heat.set_yticks(range(clients))
    if counts.size <= MOST_NUMBERS:
        for (client, k), count in np.ndenumerate(counts):
            shade = "white" if count > 0.55 * counts.max() else "#555555"
            heat.text(k, client, f"{count:,}" if count else "·", ha="center", va="center", fontsize=7, color=shade)
    sizes = counts.sum(axis=1)
    bars.barh(range(clients), sizes, color="#0072B2", height=0.7)
    bars.set_xlabel("samples")
    bars.spines[["top", "right"]].set_visible(False)
    bars.tick_params(axis="x", labelsize=8)
    made.suptitle(title, fontsize=11)
    save(made, path)
