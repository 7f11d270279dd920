"""The campaign's pieces: how many runs they have, that their commands are understood, and what comes back of them."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from fedproc.cli.commands import build_parser
from fedproc.comparison.overrides import read_variants
from fedproc.methods import METHODS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import campaign as script
import leaderboard
from campaign import TOY, Campaign, Scale

BOTH = ("search-0.1", "search-0.5")
PROTOCOL = Scale(("--data", "cifar10"))
BEST = ["scaffold", "fedetf", "feddyn", "moon", "fedproc-averaged"]


def made(place: Path, scale: Scale = PROTOCOL, best: list[str] = BEST) -> Campaign:
    """With nothing kept yet."""
    return Campaign(place / "out", scale, "auto", place / "kept", [], best, None)


def won(place: Path, beta: str) -> None:
    """A search of all rows that is over."""
    home = place / "kept" / leaderboard.setting(beta) / "search"
    home.mkdir(parents=True)
    lines = [f'["{row}-tuned"]\nmethod = "{row.removesuffix("-averaged")}"\n' for row in leaderboard.ROWS]
    (home / "winners.toml").write_text("\n".join(lines), encoding="utf-8")


def count(campaign: Campaign, piece: str) -> int:
    return sum(step.left for step in campaign.steps(piece))


def test_how_many_runs_there_are(tmp_path: Path) -> None:
    campaign = made(tmp_path)
    assert [count(campaign, piece) for piece in BOTH] == [16 * (8 + 2 * 2)] * 2
    assert count(campaign, "test-0.1") == 0 and count(campaign, "again-0.1") == 0  # of no winner
    for beta in leaderboard.BETAS:
        won(tmp_path, beta)
    assert [count(campaign, piece) for piece in BOTH] == [0, 0]
    rest = {"test-0.1": 160, "test-0.5": 160, "anchors": 2, "ceiling": 12, "again-0.1": 10}
    rest |= {f"{kind}-{beta}": 30 for kind in ("many", "small") for beta in leaderboard.BETAS}
    assert {piece: count(campaign, piece) for piece in rest} == rest
    there = tmp_path / "kept" / "cifar10-beta0.1" / "runs" / "fedetf-tuned" / "seed-40"
    there.mkdir(parents=True)
    (there / "result.json").write_text("{}", encoding="utf-8")
    assert count(campaign, "test-0.1") == 159
    steps = campaign.steps("test-0.1")
    assert len(steps) == 6 and all(len(step.runs) <= 30 for step in steps)  # three rows each
    (beside,) = [step.beside for step in steps if step.beside]
    assert beside == ((there, tmp_path / "out" / "test-0.1" / "fedetf-tuned" / "seed-40"),)
    for setting in ("clients100", "images2000"):
        further = tmp_path / "kept" / f"cifar10-{setting}-beta0.1" / "runs" / "fedavg-tuned" / "seed-41"
        further.mkdir(parents=True)
        (further / "result.json").write_text("{}", encoding="utf-8")
    assert [count(campaign, f"{kind}-0.1") for kind in ("many", "small")] == [29, 29]
    assert [further] == [kept for step in campaign.steps("small-0.1") for kept, _ in step.beside]


@pytest.mark.parametrize("scale", [PROTOCOL, TOY], ids=["protocol", "toy"])
def test_commands_are_understood(tmp_path: Path, scale: Scale) -> None:
    campaign = made(tmp_path, scale)
    searches = [step for piece in BOTH for step in campaign.steps(piece)]
    campaign.write()
    assert set(tomllib.loads((tmp_path / "out" / "search-0.1.rows.toml").read_text())) == {
        "fedetf", "fedlc", "fedproc-averaged",
    }  # fmt: skip
    for beta in leaderboard.BETAS:
        won(tmp_path, beta)
    rest = [step for piece in script.PIECES if piece not in BOTH for step in campaign.steps(piece)]
    for step in (*searches, *rest):
        build_parser([], step.words[0]).parse_strictly(list(step.words), lambda: build_parser([]))
    words = searches[0].words
    if scale is not TOY:
        asked = "--trials 8 --seeds 100 --rounds 50 --search-seed 1 --promote 2:100:101,102 --eval-every 5 --beta 0.1"
        assert asked in " ".join(words)


def test_winners_take_along_which_seeds_chose_them(tmp_path: Path) -> None:
    """The campaign's tests have others, and `compare` refuses those."""
    home = tmp_path / "kept" / leaderboard.setting("0.1") / "search"
    home.mkdir(parents=True)
    (home / "winners.toml").write_text('[moon-tuned]\nmethod = "moon"\nsearch_seeds = [100, 101]\nmoon.mu = 0.1\n')
    campaign = made(tmp_path)
    (step,) = campaign.steps("test-0.1")
    campaign.write()
    variants = read_variants(Path(step.words[step.words.index("--variants") + 1]), METHODS)
    assert variants["moon-tuned"]["search_seeds"] == [100, 101] and not {100, 101} & set(leaderboard.SEEDS)


def test_the_best_are_chosen_by_a_betas_tests(tmp_path: Path) -> None:
    """Paired: a row's seeds are compared with FedAvg's of the same seeds."""
    for beta, sign in (("0.1", 1), ("0.5", -1)):
        for place, row in enumerate(leaderboard.ROWS):
            for seed in (40, 41) if row == "fedavg" else (40,):
                run = tmp_path / "kept" / leaderboard.setting(beta) / "runs" / f"{row}-tuned" / f"seed-{seed}"
                run.mkdir(parents=True)
                final = 0.9 if seed == 41 else 0.5 + 0.01 * sign * place
                (run / "result.json").write_text(json.dumps({"final_accuracy": final}), encoding="utf-8")
    campaign = made(tmp_path, best=[])
    assert campaign.five("0.1") == list(leaderboard.ROWS)[:-6:-1]
    assert campaign.five("0.5") == list(leaderboard.ROWS)[1:6]


def test_what_is_packed_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts: finished runs without weights, and unfinished ones with their last checkpoint."""
    monkeypatch.setattr(script, "PART", 500)
    campaign = made(tmp_path)
    home = tmp_path / "out" / "anchors"
    for label, files in {
        "fedavg": ("config.json", "result.json", "metrics.jsonl", "model.safetensors", "checkpoint/round-000100/a"),
        "fedproc": ("config.json", "metrics.jsonl", "checkpoint/round-000005/a", "checkpoint/round-000010/a"),
        "moon": ("config.json", "checkpoint/round-000000/a"),  # not one round
    }.items():
        for name in files:
            (home / label / "seed-0" / name).parent.mkdir(parents=True, exist_ok=True)
            (home / label / "seed-0" / name).write_text(f"{label} {name}\n", encoding="utf-8")
    archives = script.packed(campaign, "anchors", tmp_path / "pack", most=9)
    assert {path.name.partition(".tar")[0] for path in archives} == {"anchors", "anchors.unfinished"}
    assert all(path.stat().st_size <= 500 for path in archives)
    script.restore(archives, tmp_path / "there")
    found = {str(path.relative_to(tmp_path / "there" / "anchors")) for path in (tmp_path / "there").rglob("*.*")}
    assert {name for name in found if "." in Path(name).name} == {
        "fedavg/seed-0/config.json", "fedavg/seed-0/result.json", "fedavg/seed-0/metrics.jsonl",
        "fedproc/seed-0/config.json", "fedproc/seed-0/metrics.jsonl",
    }  # fmt: skip
    rounds = (tmp_path / "there" / "anchors" / "fedproc" / "seed-0" / "checkpoint").iterdir()
    assert [path.name for path in rounds] == ["round-000010"]
    (tmp_path / "there" / "anchors" / "fedavg" / "seed-0" / "metrics.jsonl").write_text("new", encoding="utf-8")
    script.restore(archives, tmp_path / "there")  # what is finished there stays
    assert (tmp_path / "there" / "anchors" / "fedavg" / "seed-0" / "metrics.jsonl").read_text() == "new"
