"""A picture of the trials: the score of each by each searched option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedproc.figures.style import Picture, colour, picture, plain
from fedproc.sweep.importance import Importance, grouped, shown
from fedproc.sweep.ranking import Trial
from fedproc.sweep.space import Domain


def draw_options(
    rows: Mapping[str, tuple[Mapping[str, Domain], Sequence[Trial], Mapping[str, Importance | None]]],
) -> Picture:
    """One line of panels for each row, one panel for each of its options; the best trial first in `trials`."""
    columns = max(1, *(len(domains) for domains, _, _ in rows.values()))
    made = picture(2.9 * columns + 0.6, 2.3 * len(rows) + 0.5)
    axes = made.figure.subplots(len(rows), columns, squeeze=False, sharey="row")
    for line, (label, (domains, trials, measured)) in zip(axes, rows.items(), strict=True):
        for panel, (option, domain) in zip(line, domains.items(), strict=False):
            _draw(panel, option, domain, trials, measured.get(option))
        for panel in line[len(domains) :]:
            panel.set_axis_off()
        line[0].set_ylabel(plain(f"{label}\nvalidation accuracy, %"), fontsize=8)
    made.explain("a dot is a trial of the first rung, a bar the mean of a value's trials; ringed: the winner")
    return made


def _draw(panel: Axes, option: str, domain: Domain, trials: Sequence[Trial], found: Importance | None) -> None:
    finished = [(trial, score) for trial in trials if (score := trial.mean(0)) is not None]
    labels = grouped([trial.values[option] for trial, _ in finished], domain)
    values = {label: trial.values[option] for label, (trial, _) in zip(labels, finished, strict=True)}
    names = sorted(values, key=lambda name: _order(values[name]))
    for label, (trial, score) in zip(labels, finished, strict=True):
        at = names.index(label)
        panel.plot(at, 100 * score, "o", color=colour(0), alpha=0.7, markersize=4)
        if trial is trials[0]:
            panel.plot(at, 100 * score, "o", markersize=9, markerfacecolor="none", color=colour(1))
    for label in names if found is not None else ():
        mean = 100 * found.means[label][1]  # type: ignore[union-attr]
        panel.hlines(mean, names.index(label) - 0.25, names.index(label) + 0.25, color=colour(0), linewidth=1.5)
    panel.set_xticks(range(len(names)), [plain(shown(name)) for name in names], fontsize=7)
    panel.set_xlim(-0.5, len(names) - 0.5)
    panel.yaxis.set_major_locator(MaxNLocator(5))
    panel.tick_params(axis="y", labelsize=7)
    panel.set_title(plain(f"{option}{_words(found)}"), fontsize=8)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def _order(value: object) -> tuple[int, float, str]:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, str(value))  # type: ignore[arg-type]


def _words(found: Importance | None) -> str:
    if found is None:
        return ""
    share = "" if found.share is None else f"explains {100 * found.share:.0f} %, "
    return f"\n{share}p {found.p:.2f}"
