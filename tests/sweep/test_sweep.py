"""A whole search: on validation samples alone, continued where it was killed, and the same again from its seed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import contents
from PIL import Image

from fedproc import InputError, compare
from fedproc.cli.commands import execute
from fedproc.comparison.overrides import read_toml
from fedproc.comparison.own_accuracy import of_global_model
from fedproc.given import flag
from fedproc.methods import METHODS
from fedproc.report.contents import write_report
from fedproc.report.gather import gather
from fedproc.runs.saved import read_run
from fedproc.sweep.cautions import cautions
from fedproc.sweep.outcome import searched_seeds
from fedproc.sweep.plan import Plan, Rung, make_plan
from fedproc.sweep.search import Swept, sweep
from fedproc.sweep.space import read_space

SPACE = "lr = [0.01, 0.05]\n\n[fedproc]\ntau = [0.2, 1.0]\n"
GIVEN: dict[str, Any] = {"clients": 3, "min_size": 5, "epochs": 1, "batch_size": 16, "device": "cpu"}
VARIANTS = {"averaged": {"method": "fedproc", "fedproc": {"of": "averaged"}}}


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "space.toml"
    path.write_text(SPACE)
    return path


def search(space: Path, pictures: Path, out: Path, **more: Any) -> Swept:
    how = {"trials": 3, "rounds": 1, "promote": [(1, 2, [101, 102])], "variants": VARIANTS, **GIVEN, **more}
    return sweep(space, ["fedavg"], [100], out, data=str(pictures), **how)


@pytest.fixture(scope="module")
def swept(space: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    return search(space, pictures, tmp_path_factory.mktemp("swept"))


def test_rungs_and_what_is_left_behind(swept: Swept) -> None:
    homes = sorted(str(path.parent.relative_to(swept.path)) for path in swept.path.rglob("result.json"))
    assert len(homes) == 2 + 3 + 2 * 2  # fedavg has two points; three trials of the variant; one of each goes on
    for label, trials in swept.rows.items():
        best, *others = trials
        assert [trial.reached for trial in trials] == [1] + [0] * len(others)
        assert best.mean(0) == max(trial.mean(0) or 0 for trial in trials)
        assert f"{label}/trial-{best.number}/rung-2/seed-101" in homes
        assert set(best.scores[1]) == {101, 102}
    written = json.loads((swept.path / "ranking.json").read_text())
    assert written["rows"]["averaged"]["winner"] == swept.rows["averaged"][0].number
    assert Image.open(swept.path / "options.png").size[0] > 500


def test_the_page_shows_the_search_and_no_comparison_of_its_runs(swept: Swept, tmp_path: Path) -> None:
    text = write_report([swept.path], tmp_path).read_text(encoding="utf-8")
    assert f"Search: {swept.path.name}" in text and 'id="figure-search-0-options"' in text
    assert 'id="setting-0"' not in text and gather([swept.path]).groups == []


def test_the_test_set_is_not_touched(swept: Swept) -> None:
    for path in swept.path.rglob("metrics.jsonl"):
        for line in path.read_text().splitlines():
            names = set(json.loads(line))
            assert "val_accuracy" in names and not {"test_accuracy", "accuracy", "prototype_accuracy"} & names
    for path in swept.path.rglob("config.json"):
        assert json.loads(path.read_text())["val_fraction"] == 0.1


def test_compare_takes_the_winners(swept: Swept, pictures: Path, tmp_path: Path) -> None:
    winners = read_toml(swept.path / "winners.toml", "--variants")
    assert list(winners) == ["fedavg-tuned", "averaged-tuned"]
    assert winners["averaged-tuned"]["fedproc"]["of"] == "averaged"
    assert all(winner["search_seeds"] == [100, 101, 102] for winner in winners.values())
    with pytest.raises(InputError, match="seeds 102: fedavg-tuned won a search with these seeds"):
        compare([], [0, 102], tmp_path, variants=winners, data=str(pictures), rounds=1, **GIVEN)
    done = compare([], [0], tmp_path, variants=winners, data=str(pictures), rounds=1, **GIVEN)
    config = json.loads((tmp_path / "averaged-tuned" / "seed-0" / "config.json").read_text())
    best = swept.rows["averaged"][0]
    assert [row.label for row in done.rows] == list(winners)
    assert (config["lr"], config["fedproc"]["tau"]) == (best.values["lr"], best.values["fedproc.tau"])


def test_winners_that_are_searched_again_keep_the_seeds_of_both(swept: Swept, space: Path) -> None:
    found = read_toml(swept.path / "winners.toml", "--variants")
    plan = planned(space, {label: found[label] for label in ("fedavg-tuned",)}, [Rung(1, (5,))])
    (row,) = plan.rows
    assert "search_seeds" not in row.fixed and searched_seeds(plan, row) == [5, 100, 101, 102]


def planned(space: Path, rows: dict[str, dict[str, Any]], rungs: list[Rung], score: str | None = "final") -> Plan:
    return make_plan(read_space(space, METHODS), rows, rungs, 2, "random", 0, 4, score, {"clients": 3})


def test_rows_with_own_models_are_ranked_by_own_accuracy(pictures: Path, tmp_path: Path) -> None:
    """Values that leave none have what the global model has by the same rule."""
    (tmp_path / "space.toml").write_text("[fine-tuning]\ntune_epochs = [1, 0]\n\n[moon]\nmu = [1.0]\n")
    said: list[str] = []
    how = {"trials": 2, "rounds": 1, "promote": [(5, 1, [101])], "data": str(pictures), **GIVEN}
    variants = {"tuned": {"method": "fine-tuning"}}
    done = sweep(tmp_path / "space.toml", (), [100], tmp_path / "out", caution=said.append, variants=variants, **how)
    assert said == [
        f"{tmp_path / 'space.toml'}: [moon]: no row is of moon; nothing in this table is searched",
        "--promote 5:1:101: all trials go on, of tuned with 2 trials; none is left behind",
    ]
    assert done.plan.score == "own" and "own accuracy on validation" in (tmp_path / "out" / "ranking.md").read_text()
    for trial in done.rows["tuned"]:
        saved = read_run(tmp_path / "out" / "tuned" / f"trial-{trial.number}" / "rung-1" / "seed-100")
        assert saved is not None
        tuned = bool(trial.values["fine-tuning.tune_epochs"])
        assert ("val_final_own_accuracy" in saved.result) == tuned
        assert trial.scores[0][100] == (saved.result["val_final_own_accuracy"] if tuned else of_global_model(saved))


def test_own_accuracy_is_not_asked_of_rows_without_own_models(space: Path) -> None:
    rows = {name: {"method": name} for name in ("fedavg", "fedbn", "ditto", "fedper")}  # fedbn finds no batch-norm
    rungs = [Rung(1, (100,)), Rung(1, (101,), 2)]
    with pytest.raises(InputError, match=r"score own: fedavg, fedbn without models of clients' own; search it apart"):
        planned(space, rows, rungs, "own")
    mixed = planned(space, rows, rungs, None)
    assert mixed.score == "final" and mixed.apart == ("ditto", "fedper")
    assert cautions(mixed)[1:] == [
        "ditto, fedper: ranked by final accuracy, not by that of clients' own models, which fedavg, fedbn has none of; "
        "a search without that ranks by own accuracy"
    ]
    assert planned(space, {"ditto": rows["ditto"]}, rungs, None).score == "own"
    asked = planned(space, rows, rungs, "final")
    assert asked.score == "final" and not asked.apart


@pytest.mark.slow
def test_called_again_nothing_is_run_and_more_trials_go_on(
    swept: Swept, space: Path, pictures: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.path.rglob("metrics.jsonl")}
    again = search(space, pictures, swept.path)
    assert again.rows == swept.rows
    assert {path: path.stat().st_mtime_ns for path in swept.path.rglob("metrics.jsonl")} == before
    few = search(space, pictures, tmp_path, trials=2)
    assert {label: len(trials) for label, trials in few.rows.items()} == {"fedavg": 2, "averaged": 2}
    more = search(space, pictures, tmp_path)
    first = {label: {t.number: t.scores[0] for t in trials} for label, trials in swept.rows.items()}
    assert {label: {t.number: t.scores[0] for t in trials} for label, trials in more.rows.items()} == first


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"search_seed": 1}, r"search_seed 1: .* was begun with 0; take that, or another out"),
        ({"rounds": 2}, r"rounds 2: fedavg in .* has 1"),
        ({"epochs": 2}, r"epochs 2: fedavg in .* has 1"),
        ({"promote": [(1, 3, [101, 102])]}, r"promote: 3 rounds: .*rung-2.* has 2"),
        ({"val_fraction": 0}, "val_fraction 0: a search needs validation samples"),
        ({"lr": 0.1}, r"lr 0\.1: is searched; leave it out"),
        ({"promote": [(1, 2, [100])]}, "seeds 100 100: expected each seed once"),
        ({"trials": None}, "search random: needs trials"),
        ({"variants": {"fedavg": {"method": "moon"}}}, "variant fedavg: is a row already"),
        ({"variants": {"moon": {"method": "fedavg"}}}, "variant moon: expected a name"),
    ],
)
def test_what_cannot_be_continued_or_searched_is_refused(
    swept: Swept, space: Path, pictures: Path, more: dict[str, Any], words: str
) -> None:
    before = (swept.path / "sweep.json").read_bytes()
    with pytest.raises(InputError, match=words):
        search(space, pictures, swept.path, **more)
    assert (swept.path / "sweep.json").read_bytes() == before


def test_a_trial_that_diverges_comes_last(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("lr = [1e30]\n")
    done = search(tmp_path / "space.toml", pictures, tmp_path / "out", trials=2, rounds=2, promote=(), variants={})
    assert [trial.number for trial in done.rows["fedavg"]] == [1, 2] and done.rows["fedavg"][1].broken
    assert "diverged" in (tmp_path / "out" / "ranking.md").read_text()


def test_the_command(space: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", str(space), "--methods", "fedavg", "--trials", "2", "--promote", "1:2:101", "--rounds", "1"]
    flags = [word for name, value in GIVEN.items() for word in (flag(name), str(value))]
    flags += ["--search", "tpe", "--batch", "1"]
    assert execute([*words, *flags, "--data", str(pictures), "--out", str(tmp_path / "its folder")]) == 0
    shown = capsys.readouterr().out
    winners = shlex.quote(str(tmp_path / "its folder" / "winners.toml"))
    assert "which option mattered" in shown and f"fedproc compare --variants {winners} " in shown
    with pytest.raises(InputError, match="promote 1:2: expected K:ROUNDS:SEED,SEED"):
        execute([*words[:6], "--promote", "1:2"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["--search tpe --batch 2", "--search random --workers 2"])
def test_killed_and_continued(space: Path, pictures: Path, tmp_path: Path, how: str) -> None:
    flags = f"--methods fedavg fedproc --trials 4 --seeds 100 --rounds 30 --promote 2:40:101,102 {how}"
    problem = "--clients 3 --min-size 5 --epochs 1 --batch-size 16 --device cpu --checkpoint-every 3 --data"

    def words(out: str) -> list[str]:
        line = [sys.executable, "-m", "fedproc", "sweep", str(space), *flags.split(), *problem.split(), str(pictures)]
        return [*line, "--out", str(tmp_path / out)]

    subprocess.run(words("whole"), check=True, stdout=subprocess.DEVNULL)
    total = len(list((tmp_path / "whole").rglob("result.json")))
    kills = []
    for target in (1, total // 3, (3 * total) // 4):
        process = subprocess.Popen(words("killed"), stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        begun = "*/trial-*/rung-*/seed-*/metrics.jsonl"
        while len(list((tmp_path / "killed").glob(begun))) < target and time.monotonic() < deadline:
            assert process.poll() is None, f"ended by itself after {kills}"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills.append(target)
        time.sleep(1.0)  # workers of a killed driver end at once, not at the same moment
    subprocess.run(words("killed"), check=True, stdout=subprocess.DEVNULL)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for name in ("ranking.json", "trials.json", "winners.toml", "ranking.md", "options.csv"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), (name, kills)
    homes = sorted(path.parent.relative_to(whole) for path in whole.rglob("result.json"))
    assert homes == sorted(path.parent.relative_to(killed) for path in killed.rglob("result.json"))
    for home in homes:
        assert contents(whole / home) == contents(killed / home), (home, kills)
