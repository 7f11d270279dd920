"""Differences that the prose of docs/results tells are those of the kept runs."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import median

import pytest
from results_pages import ALL, FIVE, RESULTS, found, mean, number, numbers, plain

from fedproc.statistics import compare

TEXT = plain(ALL)

# What the page says, and what it is said of: runs as FOLDER/LABEL, with plus and minus between them where it is a
# difference, seed by seed. Of a run it is the final accuracy, or what stands after the colon: a number of its result,
# or of its metrics in a round, or the mean over rounds (`test_accuracy@91-100`). `over five`: seeds 0 to 4 alone.
IN_TITLE: list[tuple[str, str]] = [
    # CIFAR-10, 10 clients, beta 0.5
    ("a difference of {seen:.2f} points between FedProc and FedAvg", "main/fedproc - main/fedavg"),
    # the best of each method
    ("{d:.1f} (FedAvg 3 against 1, {low:.1f} to {high:.1f})", "search/fedavg-3:val - search/fedavg-1:val"),
    ("{d:.1f} (FedProc 4 against 3, {low:.1f} to {high:.1f})", "search/fedproc-4:val - search/fedproc-3:val"),
    ("{d:.1f} points (MOON 3 against 1, {low:.1f} to {high:.1f})", "search/moon-3:val - search/moon-1:val"),
    ("calibration {d:.1f} (FedAvg 3 against 2)", "search/fedavg-3:val - search/fedavg-2:val"),
    ("(FedAvg 3 against 2) and {d:.1f} (MOON)", "search/moon-3:val - search/moon-2:val"),
    (
        "no difference was seen ({d:+.1f}, {low:.1f} to {high:+.1f}, and",
        "search/fedavg-4:val_final_averaged_accuracy - search/fedavg-4:val",
    ),
    (", {low:.1f} to {high:+.1f}). The best", "search/moon-4:val_final_averaged_accuracy - search/moon-4:val"),
    ("ten seeds would have shown {seen:.2f};", "best/fedproc-best - best/fedavg-best"),
    ("{d:.1f} ahead of MOON's best in the last round ({low:.1f} to {high:.1f};", "best/fedproc-best - best/moon-best"),
    ("FedAvg gained {d:.1f} points ({low:.1f} to {high:.1f})", "best/fedavg-best - main/fedavg"),
    ("FedProc {d:.1f} ({low:.1f} to {high:.1f}), MOON 1.9", "best/fedproc-best - main/fedproc"),
    ("MOON {d:.1f} ({low:.1f} to {high:.1f}). SCAFFOLD,", "best/moon-best - main/moon"),
    ("(FedProc's {d:+.1f}, {low:.1f} to {high:+.1f}, seeds 0 to 4)", "best/fedproc-best - main/scaffold"),
    (
        "is {d:.1f} points ahead of FedAvg's ({low:.1f} to {high:.1f})",
        "best/fedproc-best:prototype - best/fedavg-best:prototype",
    ),
    (
        "{d:.1f} ahead of MOON's ({low:.1f} to {high:.1f})",
        "best/fedproc-best:prototype - best/moon-best:prototype",
    ),
    (
        "(trials 6 of both) FedProc was ahead by {d:.1f} ({low:.1f} to {high:+.1f})",
        "search/fedproc-6:val-prototype - search/fedavg-6:val-prototype",
    ),
    # what each choice is worth
    ("after 10 rounds tau 0.2 is at {d:.1f}", "ablation/tau-0.2:test_accuracy@10"),
    ("the paper's tau of 1 is at {d:.1f}", "ablation/fedproc:test_accuracy@10"),
    ("normalised z at {d:.1f} (FedAvg: 60.0)", "ablation/normalised-z:test_accuracy@10"),
    ("two stages end at {d:.2f} ± 2.53", "two/two-stage"),
    ("{d:.1f} points higher ({low:.1f} to {high:.1f})", "two/two-stage - main/two-stage"),
    ("as the paper has it is {d:+.1f} ({low:.1f} to {high:+.1f}), with tau 0.2 as", "main/fedproc - two/two-stage"),
    ("with tau 0.2 as well {d:+.1f} ({low:.1f} to {high:+.1f})", "ablation/tau-0.2 - two/two-stage"),
    ("four seeds would have shown {seen:.1f} and", "main/fedproc - two/two-stage"),
    ("four seeds would have shown 4.0 and {seen:.1f}.", "ablation/tau-0.2 - two/two-stage"),
    ("nearest prototype counts: {d:.1f} with tau 0.2", "two/two-stage:prototype_accuracy@50"),
    # local epochs
    ("From 5 to 10 epochs: FedAvg {d:+.2f} ({low:.2f} to {high:+.2f})", "main/fedavg - epochs5/fedavg"),
    ("FedProc {d:+.2f} ({low:.2f} to {high:+.2f}), MOON +0.84", "main/fedproc - epochs5/fedproc"),
    ("MOON {d:+.2f} ({low:+.2f} to {high:+.2f}).", "main/moon - epochs5/moon"),
    ("From 10 to 20: FedAvg {d:.2f} ({low:.2f} to {high:.2f};", "epochs20/fedavg - main/fedavg"),
    (
        "in the mean of the last ten {d:.2f}, {low:.2f} to {high:+.2f}), FedProc",
        "epochs20/fedavg:last10_accuracy - main/fedavg:last10_accuracy",
    ),
    ("FedProc {d:+.2f} ({low:.2f} to {high:+.2f}), MOON -0.55", "epochs20/fedproc - main/fedproc"),
    ("MOON {d:.2f} ({low:.2f} to {high:+.2f}). With one epoch", "epochs20/moon - main/moon"),
    (
        "from 1 to 5 FedProc gains {d:.1f} points more than FedAvg ({low:.1f} to {high:.1f})",
        "epochs5/fedproc - epochs1/fedproc - epochs5/fedavg + epochs1/fedavg",
    ),
    (
        "from 1 to 20 {d:.1f} ({low:.1f} to {high:.1f})",
        "epochs20/fedproc - epochs1/fedproc - epochs20/fedavg + epochs1/fedavg",
    ),
    (
        "from 5 to 20 {d:.1f} ({low:.1f} to {high:+.1f})",
        "epochs20/fedproc - epochs5/fedproc - epochs20/fedavg + epochs5/fedavg",
    ),
    ("five seeds would have shown {seen:.1f}, no difference is seen", "epochs20/fedproc - epochs20/fedavg"),
    ("at each: {d:.2f} at E = 1 ({low:.2f} to {high:.2f})", "epochs1/fedproc - epochs1/moon"),
    ("{d:.2f} at E = 5 ({low:.2f} to {high:.2f}),", "epochs5/fedproc - epochs5/moon"),
    ("{d:.2f} at E = 10 ({low:.2f} to {high:.2f}, not after Holm;", "main/fedproc - main/moon over five"),
    ("with ten seeds {d:.2f}, {low:.2f} to {high:.2f})", "main/fedproc - main/moon"),
    ("and {d:.2f} at E = 20 ({low:.2f} to {high:.2f};", "epochs20/fedproc - epochs20/moon"),
    (
        "in the mean of the last ten {d:.2f}, {low:.2f} to {high:.2f}).",
        "epochs20/fedproc:last10_accuracy - epochs20/moon:last10_accuracy",
    ),
    (
        "in the mean of the last ten {d:.2f}, {low:.2f} to {high:+.2f})",
        "epochs5/fedproc:last10_accuracy - epochs5/fedavg:last10_accuracy",
    ),
    # skew
    ("From beta 0.5 to 0.1 FedAvg loses {d:.1f} points", "main/fedavg - beta0.1/fedavg"),
    ("loses 9.1 points, FedProc {d:.1f}", "main/fedproc - beta0.1/fedproc"),
    ("FedProc 8.9, MOON {d:.1f}:", "main/moon - beta0.1/moon"),
    ("{d:.1f} behind MOON ({low:.1f} to {high:.1f}, not after Holm)", "beta0.1/moon - beta0.1/fedproc"),
    (
        "{d:.1f} ahead by the nearest prototype ({low:.1f} to {high:.1f})",
        "beta0.1/fedproc:prototype - beta0.1/moon:prototype",
    ),
    ("where MOON is at {d:.1f}.", "beta0.1/moon:prototype"),
    ("would have been seen from {seen:.1f} points on", "beta5/fedproc - beta5/fedavg"),
    # more clients
    ("to 50 clients FedAvg loses {d:.1f} points ({low:.1f} to {high:.1f})", "main/fedavg - clients50/fedavg"),
    ("FedProc {d:.1f} ({low:.1f} to {high:.1f}) and MOON 4.1", "main/fedproc - clients50/fedproc"),
    ("and MOON {d:.1f} ({low:.1f} to {high:.1f}): no", "main/moon - clients50/moon"),
    ("From 10 to 100 it is {d:.1f} ({low:.1f} to {high:.1f})", "main/fedavg - clients100/fedavg"),
    ("{d:.1f} ({low:.1f} to {high:.1f}) and 10.8", "main/fedproc - clients100/fedproc"),
    ("and {d:.1f} ({low:.1f} to {high:.1f}), for FedProc", "main/moon - clients100/moon"),
    (
        "for FedProc {d:.1f} more than for FedAvg ({low:.1f} to {high:.1f})",
        "main/fedproc - clients100/fedproc - main/fedavg + clients100/fedavg",
    ),
    ("FedProc is {d:.1f} with 50 clients ({low:.1f} to {high:.1f}, not", "clients50/fedproc - clients50/moon"),
    ("and {d:.1f} with 100 ({low:.1f} to {high:.1f}; in", "clients100/fedproc - clients100/moon"),
    (
        "last ten rounds {d:.1f}, {low:.1f} to {high:.1f})",
        "clients100/fedproc:last10_accuracy - clients100/moon:last10_accuracy",
    ),
    (
        "by {d:.1f} (FedAvg, {low:.1f} to {high:.1f})",
        "clients50/fedavg:test_accuracy@91-100 - clients50/fedavg:test_accuracy@81-90",
    ),
    (
        "{d:.1f} (FedProc, {low:.1f} to {high:.1f})",
        "clients50/fedproc:test_accuracy@91-100 - clients50/fedproc:test_accuracy@81-90",
    ),
    (
        "{d:.1f} (MOON, {low:.1f} to {high:.1f})",
        "clients50/moon:test_accuracy@91-100 - clients50/moon:test_accuracy@81-90",
    ),
    ("FedAvg {d:.2f}, MOON 60.08", "clients100/fedavg:last10_accuracy"),
    ("MOON {d:.2f}, FedProc 55.85", "clients100/moon:last10_accuracy"),
    ("MOON 60.08, FedProc {d:.2f}", "clients100/fedproc:last10_accuracy"),
    # CIFAR-100
    (
        "At 0.01 FedProc is {d:.1f} points behind after 10",
        "cifar100-0.01/fedavg:test_accuracy@10 - cifar100-0.01/fedproc:test_accuracy@10",
    ),
    ("after 10 rounds and {d:.1f} at the end", "cifar100-0.01/fedavg - cifar100-0.01/fedproc"),
    (
        "at 0.1 {d:.1f} and",
        "cifar100-0.1/fedavg:test_accuracy@10 - cifar100-0.1/fedproc:test_accuracy@10",
    ),
    ("at 0.1 30.0 and {d:.1f}.", "cifar100-0.1/fedavg - cifar100-0.1/fedproc"),
    ("has FedAvg {d:.1f} points higher", "cifar100-0.1/fedavg - cifar100-0.01/fedavg"),
    ("and FedProc {d:.1f} lower", "cifar100-0.01/fedproc - cifar100-0.1/fedproc"),
    ("both higher, by {d:.1f} and", "cifar100-0.1/fedavg:prototype - cifar100-0.01/fedavg:prototype"),
    ("by 7.6 and {d:.1f})", "cifar100-0.1/fedproc:prototype - cifar100-0.01/fedproc:prototype"),
    ("raised FedAvg by {d:.1f} points", "cifar100-0.1/fedavg - cifar100-0.01/fedavg"),
    # the claims
    ("best rival, MOON, by {d:.1f} points (10 seeds, {low:.1f} to {high:.1f})", "main/moon - main/fedproc"),
    ("behind SCAFFOLD by {d:.1f} (5 seeds, {low:.1f} to {high:.1f};", "main/scaffold - main/fedproc"),
    (
        "{d:.1f} behind in the mean of the last ten ({low:.1f} to {high:.1f};",
        "main/fedavg:last10_accuracy - main/fedproc:last10_accuracy",
    ),
    ("authors' code has it: to MOON {d:.1f} ({low:.1f} to {high:+.1f})", "main/author-code - main/moon"),
    ("to SCAFFOLD {d:.1f} ({low:.1f} to {high:.1f}).", "main/author-code - main/scaffold"),
    ("**holds**: round 10: {d:.1f} against", "main/fedproc:test_accuracy@10"),
    ("against FedAvg's {d:.1f}, or", "main/fedavg:test_accuracy@10"),
    (
        "or {d:.1f} ({low:.1f} to {high:.1f}); 60 %",
        "main/fedproc:test_accuracy@10 - main/fedavg:test_accuracy@10",
    ),
    ("Better in the end **fails**: ({d:.1f} against", "main/fedproc"),
    (
        "is {d:.1f} above that of 81 to 90 ({low:.1f} to {high:.1f})",
        "main/fedproc:test_accuracy@91-100 - main/fedproc:test_accuracy@81-90",
    ),
    (
        "to FedAvg {d:.1f} after 10 rounds ({low:.1f} to {high:.1f})",
        "main/fedproc:prototype_accuracy@10 - main/fedavg:prototype_accuracy@10",
    ),
    (
        "{d:.1f} after 50 ({low:.1f} to {high:.1f})",
        "main/fedproc:prototype_accuracy@50 - main/fedavg:prototype_accuracy@50",
    ),
    ("{d:.1f} at the end ({low:.1f} to {high:+.1f}). CIFAR-100", "main/fedproc:prototype - main/fedavg:prototype"),
    ("to FedAvg {d:.1f} at beta 0.1 ({low:.1f} to {high:+.1f})", "beta0.1/fedproc - beta0.1/fedavg"),
    ("and {d:.1f} at beta 5 ({low:.1f} to {high:+.1f});", "beta5/fedproc - beta5/fedavg"),
    ("to MOON {d:.1f} at 0.1 ({low:.1f} to {high:.1f}, not after Holm)", "beta0.1/fedproc - beta0.1/moon"),
    ("and {d:.1f} at 5 ({low:.1f} to {high:+.1f}).", "beta5/fedproc - beta5/moon"),
    ("4.4 is ruled out (ours {low:.1f} to {high:+.1f})", "main/fedproc - main/alpha-0.5"),
    ("by {d:.1f} points (5 seeds, {low:.1f} to {high:.1f}), though", "main/fedproc - main/two-stage"),
    ("is seen (4 seeds, {low:.1f} to {high:+.1f})", "main/fedproc - two/two-stage"),
    ("one seed: to FedAvg {d:.1f} at learning rate 0.01", "cifar100-0.01/fedproc - cifar100-0.01/fedavg"),
    ("at learning rate 0.01 and {d:.1f} at 0.1;", "cifar100-0.1/fedproc - cifar100-0.1/fedavg"),
    ("the paper's pair of learning rates, {d:.1f} (", "cifar100-0.1/fedproc - cifar100-0.01/fedavg"),
    ("(after 10 rounds {d:.1f} against", "cifar100-0.01/fedproc:test_accuracy@10"),
    ("29.8 against {d:.1f} at learning rate 0.01", "cifar100-0.01/fedavg:test_accuracy@10"),
    ("0.01, {d:.1f} against 45.0", "cifar100-0.1/fedproc:test_accuracy@10"),
    ("15.0 against {d:.1f} at 0.1)", "cifar100-0.1/fedavg:test_accuracy@10"),
    ("one seed, after 10 rounds: {d:.1f} against", "cifar100-0.01/fedproc:prototype_accuracy@10"),
    ("26.9 against {d:.1f} at learning rate 0.01", "cifar100-0.01/fedavg:prototype_accuracy@10"),
    ("0.01, {d:.1f} against 47.1", "cifar100-0.1/fedproc:prototype_accuracy@10"),
    ("18.6 against {d:.1f} at 0.1. [All", "cifar100-0.1/fedavg:prototype_accuracy@10"),
    ("FedProc's is {d:.1f} higher at 20", "epochs20/fedproc - main/fedproc"),
    ("to MOON {d:.1f} with 50 clients ({low:.1f} to {high:.1f}, not after Holm)", "clients50/fedproc - clients50/moon"),
    ("and {d:.1f} with 100 ({low:.1f} to {high:.1f}), to FedAvg", "clients100/fedproc - clients100/moon"),
    ("to FedAvg {d:.1f} ({low:.1f} to {high:+.1f}) and", "clients50/fedproc - clients50/fedavg"),
    ("(-2.2 to +0.7) and {d:.1f} ({low:.1f} to {high:.1f}).", "clients100/fedproc - clients100/fedavg"),
    ("FedProc loses {d:.1f} points with 50 clients ({low:.1f} to {high:.1f})", "main/fedproc - clients50/fedproc"),
    ("and {d:.1f} with 100, 20 per round ({low:.1f} to {high:.1f})", "main/fedproc - clients100/fedproc"),
    ("is {d:.1f} points ahead of FedProc as the paper", "main/author-code - main/fedproc"),
    ("as the paper has it (5 seeds, {low:.1f} to {high:+.1f};", "main/author-code - main/fedproc"),
    (
        "mean of the last ten {d:.1f}, {low:.1f} to {high:.1f})",
        "main/author-code:last10_accuracy - main/fedproc:last10_accuracy",
    ),
    (
        "After 10 rounds FedProc with tau 0.2 is {d:.0f} points ahead",
        "ablation/tau-0.2:test_accuracy@10 - ablation/fedproc:test_accuracy@10",
    ),
    (
        "with a constant alpha {d:.0f}, at the end",
        "main/alpha-0.5:test_accuracy@10 - main/fedproc:test_accuracy@10",
    ),
    ("at the end {d:.1f} ({low:.1f} to {high:+.1f}) and 1.0", "ablation/tau-0.2 - ablation/fedproc"),
    ("and {d:.1f} ({low:.1f} to {high:+.1f}).", "main/alpha-0.5 - main/fedproc"),
]
PAPER = "solo fedavg fedprox scaffold moon"
PAGE = f"{PAPER} fednova fedavgm author-code alpha-0.5 two-stage central"
# What the page says after Holm's correction, of which row against which, which others were corrected for, and by what.
CORRECTED: list[tuple[str, str, str, str, str]] = [
    ("FedAvgM's lag is not (p {c:.3f})", "main/fedavgm", "fedavg", f"fedproc {PAGE}", "last10_accuracy"),
    ("(0.1 to 1.0; p {c:.3f} corrected for its two", "best/moon-best", "fedproc-best", "fedavg-best", ""),
    ("is at the edge (p {p:.3f}, corrected", "epochs5/fedproc", "fedavg", "moon", ""),
    ("corrected {c:.3f} beside MOON's difference to FedAvg", "epochs5/fedproc", "fedavg", "moon", ""),
    ("{c:.3f} beside FedProc's to MOON", "epochs5/fedavg", "fedproc", "moon", ""),
    ("p {c:.2f} corrected for the paper's five rivals", "main/scaffold", "fedproc", PAPER, ""),
    ("{c:.2f} for our table's eleven", "main/scaffold", "fedproc", PAGE, ""),
    ("p {c:.3f} of five,", "main/fedavg", "fedproc", PAPER, "last10_accuracy"),
    ("of five, {c:.2f} of eleven", "main/fedavg", "fedproc", PAGE, "last10_accuracy"),
    ("SCAFFOLD is ahead of FedAvg after Holm too", "main/scaffold", "fedavg", f"fedproc {PAGE}", "last10_accuracy"),
    ("and FedNova's and FedProc's leave it out (not", "main/fednova", "fedavg", f"fedproc {PAGE}", "last10_accuracy"),
    ("and FedProc's leave it out (not after Holm)", "main/fedproc", "fedavg", PAGE, "last10_accuracy"),
    ("behind MOON (0.1 to 2.9, not after Holm)", "beta0.1/moon", "fedproc", "fedavg", ""),
    ("to MOON -1.5 at 0.1 (-2.9 to -0.1, not after Holm)", "beta0.1/moon", "fedproc", "fedavg", ""),
    ("with 50 clients (-3.5 to -0.2, not after Holm)", "clients50/moon", "fedproc", "fedavg", ""),
]


@pytest.mark.parametrize(("told", "of"), IN_TITLE, ids=[told for told, _ in IN_TITLE])
def test_the_prose_tells_what_the_runs_come_to(told: str, of: str) -> None:
    one = found(of)
    shown = told.format(d=one.difference, low=one.low, high=one.high, seen=one.detectable)
    assert TEXT.count(shown) >= 1, f"{shown!r} is not on the page"


@pytest.mark.parametrize(("told", "row", "reference", "others", "what"), CORRECTED, ids=[c[0] for c in CORRECTED])
def test_what_holds_after_correction(told: str, row: str, reference: str, others: str, what: str) -> None:
    folder, label = row.split("/")
    values = {name: numbers(f"{folder}/{name}:{what}") for name in {label, reference, *others.split()}}
    one = compare(values, reference)[label]
    shown = told.format(p=one.p, c=one.corrected)
    assert shown in TEXT
    assert one.low > 0 or one.high < 0  # or there would be nothing to correct
    assert ("not after Holm" in TEXT[TEXT.index(shown) :][:80]) <= (one.corrected > 0.05)
    assert ("after Holm too" in shown) <= (one.corrected < 0.05)


def test_what_is_said_of_some_seeds_alone() -> None:
    first, second = ({s: v for s, v in numbers("main/fedavg").items() if s in some} for some in (FIVE, range(5, 10)))
    assert f"(FedAvg: {mean(first):.1f} and {mean(second):.1f})" in TEXT
    early = numbers("main/fedavg:test_accuracy@10")
    assert f"(FedAvg: {mean({s: early[s] for s in FIVE}):.1f})" in TEXT
    two = numbers("main/two-stage:prototype_accuracy@50")
    assert f"{mean({s: two[s] for s in range(4)}):.1f} with tau 1, and the classifier" in TEXT


def test_what_epochs_are_worth() -> None:
    of = {1: "epochs1", 5: "epochs5", 10: "main", 20: "epochs20"}
    methods = ("fedavg", "fedproc", "moon")
    worst = [found(f"{of[e]}/{m} - epochs1/{m} over five").difference for e in (5, 10, 20) for m in methods]
    assert f"E = 1 is worst, by {min(worst):.1f} to {max(worst):.1f} points" in TEXT
    between = {
        (m, one, two): found(f"{of[two]}/{m} - {of[one]}/{m} over five")
        for m in methods
        for one, two in ((5, 10), (5, 20), (10, 20))
    }
    assert f"which are at most {max(abs(d.difference) for d in between.values()):.1f}, only two leave 0 out" in TEXT
    out = [key for key, d in between.items() if d.verdict != "no difference seen"]
    assert out == [("fedavg", 10, 20), ("moon", 5, 10)]
    for m, one, two in out:
        late = found(f"{of[two]}/{m}:last10_accuracy - {of[one]}/{m}:last10_accuracy over five")
        assert late.verdict == "no difference seen"
    seen = [d.detectable for d in between.values() if d.detectable is not None]
    assert f"five seeds would have shown {min(seen):.1f} to {max(seen):.1f}." in TEXT


def test_steps_from_round_to_round_with_few_clients_of_many() -> None:
    steps = []
    for label in ("fedavg", "fedproc", "moon"):
        by_round = [numbers(f"clients100/{label}:test_accuracy@{t}") for t in range(80, 101)]
        steps.append(mean({t: mean({s: abs(b[s] - a[s]) for s in b}) for t, (a, b) in enumerate(pairwise(by_round))}))
    assert f"({min(steps):.1f} to {max(steps):.1f} on average over the last 20 rounds)" in TEXT


def test_cifar100_by_round() -> None:
    lines = TEXT[TEXT.index("| accuracy after round, % |") :]
    climbs = []
    for lr in ("0.01", "0.1"):
        for shown, label in (("FedAvg", "fedavg"), ("FedProc", "fedproc")):
            run = f"cifar100-{lr}/{label}"
            of = [f"test_accuracy@{number}" for number in (3, 5, 10, 15, 20)] + ["prototype_accuracy@20"]
            cells = [f"{mean(numbers(f'{run}:{what}')):.1f}" for what in of]
            assert f"| {shown} | {lr} | {' | '.join(cells)} |" in lines
            climbs.append(found(f"{run}:test_accuracy@20 - {run}:test_accuracy@15").difference / 5)
    said = "by {:.1f} (FedAvg) and {:.1f} points (FedProc) per round at 0.01, by {:.1f} and {:.1f} at 0.1"
    assert said.format(*climbs) in TEXT


def test_forty_rounds_of_cifar100() -> None:
    run = RESULTS / "leaderboard" / "cifar100-rounds40" / "fedavg" / "seed-0"
    by_round = [100 * number(run, f"test_accuracy@{t}") for t in (10, 20, 30, 40)]
    shown = [f"{value:.1f}" for value in (*by_round, 100 * number(run, "prototype_accuracy@40"))]
    assert f"| FedAvg | {' | '.join(shown)} |" in TEXT
    assert by_round[-1] > 67.5 and f"{74.6 - by_round[-1]:.1f} points below FedProc's 74.6" in TEXT


def test_seconds_of_cifar100() -> None:
    took = []
    for lr in ("0.01", "0.1"):
        for label in ("fedavg", "fedproc"):
            path = RESULTS / f"cifar100-lr{lr}/runs" / label / "seed-0/metrics.jsonl"
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            took.append(median(sum(line["seconds"].values()) for line in lines))
    ratios = (took[1] / took[0], took[3] / took[2])
    said = "a round took {:.1f} s with FedAvg and {:.1f} s with FedProc at 0.01, and {:.1f} s and {:.1f} s at 0.1"
    assert said.format(*took) in TEXT
    assert "takes {:.2f} and {:.2f} times FedAvg's (two pairs,".format(*ratios) in TEXT
    speed = " ".join((RESULTS.parent / "speed.md").read_text(encoding="utf-8").split())
    for fedavg, fedproc, between in ((*took[:2], ": "), (*took[2:], ", ")):
        said = f"{fedavg:.1f} s with FedAvg and {fedproc:.1f} s with FedProc{between}{fedproc / fedavg:.2f}."
        assert said in speed
