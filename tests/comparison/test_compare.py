from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedproc import Experiment, InputError, compare, run
from fedproc.cli.commands import execute
from fedproc.comparison.overrides import merged, read_toml, read_variants
from fedproc.methods import METHODS

GIVEN = {"preset": "paper", "clients": 3, "min_size": 5, "rounds": 2, "epochs": 1, "batch_size": 16, "device": "cpu"}


def test_rows_table_and_picture(pictures: Path, tmp_path: Path) -> None:
    done = compare(["fedavg", "fedproc"], [0, 1], tmp_path, data=str(pictures), **GIVEN)
    assert [row.label for row in done.rows] == ["fedavg", "fedproc"]
    finals = []
    for seed in (0, 1):
        folder = tmp_path / "fedavg" / f"seed-{seed}"
        config = json.loads((folder / "config.json").read_text())
        assert (config["data_seed"], config["model_seed"]) == (seed, seed)
        finals.append(json.loads((folder / "result.json").read_text())["final_accuracy"])
    spread = done.rows[0].spread("final_accuracy")
    assert spread == (statistics.fmean(finals), statistics.stdev(finals))
    written = json.loads((tmp_path / "comparison.json").read_text())["rows"]["fedavg"]["final_accuracy"]
    assert written == {"mean": spread[0], "deviation": spread[1]}
    against = json.loads((tmp_path / "comparison.json").read_text())
    assert against["reference"] == "fedavg" and against["rows"]["fedavg"]["difference"] == {}
    found = against["rows"]["fedproc"]["difference"]["final_accuracy"]
    assert found["difference"] == pytest.approx(
        statistics.fmean(done.rows[1].by_seed("final_accuracy").values()) - spread[0]
    )
    assert found["seeds"] == [0, 1] and found["low"] is None and len(found["values"]) == 2
    assert Image.open(tmp_path / "differences.png").size[0] > 500
    assert Image.open(tmp_path / "curves.png").size[0] > 500


def test_more_seeds_methods_and_variants_continue_the_folder(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures)}
    compare(["fedavg"], [0], tmp_path, **given)
    before = (tmp_path / "fedavg" / "seed-0" / "metrics.jsonl").read_bytes()
    variants = {"sharp": {"method": "fedproc", "fedproc": {"tau": 0.2}}}
    done = compare(["fedavg", "fedproc"], [0, 1], tmp_path, variants=variants, **given)
    assert (tmp_path / "fedavg" / "seed-0" / "metrics.jsonl").read_bytes() == before
    assert [row.label for row in done.rows] == ["fedavg", "fedproc", "sharp"]
    assert json.loads((tmp_path / "sharp" / "seed-1" / "config.json").read_text())["fedproc"]["tau"] == 0.2
    with pytest.raises(InputError, match=r"lr 0\.5: the run in .* has"):
        compare(["fedavg", "fedproc"], [0, 1], tmp_path, variants=variants, lr=0.5, **given)


def test_what_is_in_the_folder_takes_part(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "out": tmp_path}
    compare(["fedavg"], [0, 1], **given)
    done = compare(["fedproc"], [1, 2], **given)
    assert [row.label for row in done.rows] == ["fedavg", "fedproc"] and done.reference == "fedavg"
    assert compare(["fedproc"], [3], reference="fedproc", **given).reference == "fedproc"
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert written["seeds"] == [0, 1, 2, 3] and written["rows"]["fedproc"]["seeds"] == 3
    assert written["rows"]["fedavg"]["seeds"] == 2
    with pytest.raises(InputError, match="reference moon: expected one of fedavg, fedproc"):
        compare(["fedproc"], [3], reference="moon", **given)


@pytest.mark.parametrize("how", [{"methods": ["fedavg"], "seeds": [2]}, {"methods": ["moon"], "seeds": [0]}])
@pytest.mark.parametrize(
    "other", [{"lr": 0.5}, {"clients": 4}, {"rounds": 3}, {"partition": "iid"}, {"data": "fashion-mini"}]
)
def test_runs_of_other_settings_are_not_put_beside_those_that_stay(
    how: dict[str, Any], other: dict[str, Any], pictures: Path, tmp_path: Path
) -> None:
    given = {**GIVEN, "data": str(pictures), "out": tmp_path}
    compare(["fedavg"], [0, 1], **given)
    (name,) = other
    with pytest.raises(InputError, match=rf"{name} .*fedavg.seed-0 has .*; take that, or another out"):
        compare(**how, **{**given, **other})
    assert not (tmp_path / "moon").exists() and not (tmp_path / "fedavg" / "seed-2").exists()


def test_rows_that_follow_other_rules_stand_beside_the_rest(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "out": tmp_path, "seeds": [0]}
    compare(["fedavg"], **given)
    sharp = {"sharp": {"method": "fedproc", "lr": 0.5, "fedproc": {"tau": 0.2}}}
    compare(["solo"], eval_every=2, **given)
    done = compare(["fedproc"], variants=sharp, fedproc={"tau": 0.5}, **given)
    assert {row.label for row in done.rows} == {"fedavg", "solo", "sharp", "fedproc"}


def test_a_run_folder_and_a_file_are_no_place_for_a_comparison(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "methods": ["fedavg"], "seeds": [0]}
    compare(out=tmp_path / "cmp", **given)
    with pytest.raises(InputError, match=r"out .*seed-0: is a run's own folder"):
        compare(out=tmp_path / "cmp" / "fedavg" / "seed-0", **given)
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="a file is in the way"):
            compare(out=place, **given)


def test_a_refused_command_changes_nothing(pictures: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(pictures), "seeds": [0, 1], "out": tmp_path}
    compare(["fedavg", "fedproc"], **given)
    before = {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    with pytest.raises(InputError, match=r"rounds 4: the run in .*fedproc.seed-0 has 2 and cannot be continued"):
        compare(["fedavg", "fedproc"], **{**given, "seeds": [0, 1, 2], "rounds": 4})
    assert before == {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    (tmp_path / "fedproc" / "seed-1" / "metrics.jsonl").write_text("[]\n")
    with pytest.raises(
        InputError, match=r"seed-1.metrics.jsonl: line 1: .*; remove .*seed-1 to have this run made again"
    ):
        compare(["fedavg", "fedproc"], **given)
    assert (tmp_path / "fedavg" / "seed-0" / "result.json").is_file()


def test_a_pooled_run_is_the_run_alone(pictures: Path, tmp_path: Path) -> None:
    done = compare(["fedavg", "fedproc"], [3], tmp_path, data=str(pictures), **GIVEN)
    for row in done.rows:
        alone = run(Experiment(method=row.label, seed=3, data=str(pictures), **GIVEN))
        assert alone.result["final_accuracy"] == row.runs[0].result["final_accuracy"]
        assert [r["train_loss"] for r in alone.metrics] == [r["train_loss"] for r in row.runs[0].metrics]


def test_a_diverged_run_is_marked_and_the_others_go_on(pictures: Path, tmp_path: Path) -> None:
    variants = {"wild": {"method": "fedavg", "lr": 1e30}}
    done = compare(["fedavg"], [0, 1], tmp_path, variants=variants, data=str(pictures), **GIVEN)
    assert [len(row.runs) for row in done.rows] == [2, 0]
    assert done.rows[1].diverged == [0, 1] and done.rows[1].spread("final_accuracy") is None
    assert json.loads((tmp_path / "comparison.json").read_text())["rows"]["wild"]["diverged"] == [0, 1]


def test_with_a_validation_split_the_test_set_is_not_touched(pictures: Path, tmp_path: Path) -> None:
    done = compare(["fedproc"], [0], tmp_path, data=str(pictures), val_fraction=0.2, **GIVEN)
    result = done.rows[0].runs[0].result
    assert "val_final_accuracy" in result and "final_accuracy" not in result
    assert all("test_accuracy" not in r and "val_accuracy" in r for r in done.rows[0].runs[0].metrics)


def test_variants_from_toml(tmp_path: Path) -> None:
    (tmp_path / "v.toml").write_text('[sharp]\nmethod = "fedproc"\nfedproc.tau = 0.2\n')
    assert read_toml(tmp_path / "v.toml", "--variants") == {"sharp": {"method": "fedproc", "fedproc": {"tau": 0.2}}}


def test_the_reference_must_take_part(pictures: Path) -> None:
    with pytest.raises(InputError, match="reference moon: expected one of fedavg, fedproc"):
        compare(["fedavg", "fedproc"], [0, 1], reference="moon", data=str(pictures), **GIVEN)


def test_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="methods and seeds"):
        compare([], [0])


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ({"fedavg": {"method": "fedproc"}}, "variant fedavg: is the name of a method, but its method is fedproc"),
        ({"sharp": {"method": "fedavg", "fedproc": {"tau": 0.2}}}, "variant sharp: options of fedproc, but its method"),
        ({"sharp": {"method": "fedproc", "fedproc": {"tua": 0.2}}}, r"variant sharp: fedproc\.tua"),
        ({"sharp": {"method": "fedprok"}}, "variant sharp: method fedprok"),
    ],
)
def test_a_variant_that_is_not_what_it_says_is_refused(variants: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare([], [0], variants=variants, **GIVEN)


def test_a_method_counts_once() -> None:
    with pytest.raises(InputError, match="methods fedavg fedavg: expected each method once"):
        compare(["fedavg", "fedavg"], [0], **GIVEN)


def test_rows_that_cannot_be_compared_are_refused(pictures: Path) -> None:
    given = {**GIVEN, "data": str(pictures)}
    fixed = {"fixed": {"method": "fedavg", "data_seed": 0, "model_seed": 0}}
    with pytest.raises(InputError, match="data_seed and model_seed: both are fixed"):
        compare(["fedavg"], [0, 1], variants=fixed, **given)
    with pytest.raises(InputError, match=r"val_fraction 0 for fedavg, 0\.2 for held: expected all rows with"):
        compare(["fedavg"], [0], variants={"held": {"method": "fedavg", "val_fraction": 0.2}}, **given)


def test_what_a_search_chose_is_not_tested_on_its_seeds(pictures: Path) -> None:
    won: dict[str, dict[str, Any]] = {"won": {"method": "fedavg", "search_seeds": [100, 101]}}
    with pytest.raises(InputError, match=r"seeds 100 101: won won a search .*; take seeds that .* or remove search_se"):
        compare([], [100, 7, 101], variants=won, data=str(pictures), **GIVEN)
    with pytest.raises(InputError, match="seeds 101: won won a search"):
        compare([], [7, 8], variants=won, data=str(pictures), data_seed=101, **GIVEN)
    for wrong in (101, ["101"], [True]):
        with pytest.raises(InputError, match=r"variant won: search_seeds .*: expected a list of whole numbers"):
            compare([], [7], variants={"won": {**won["won"], "search_seeds": wrong}}, **GIVEN)


def test_options_of_a_method_are_joined_however_it_is_written() -> None:
    joined = merged({"two-stage": {"split": 0.3}}, {"two_stage": {"tau": 0.5}})
    assert joined == {"two_stage": {"split": 0.3, "tau": 0.5}}
    with pytest.raises(InputError, match="variant odd: options of two-stage, but its method is fedavg"):
        compare([], [0], variants={"odd": {"method": "fedavg", "two_stage": {"split": 0.3}}})


def test_a_fresh_start_keeps_what_is_finished_with_these_settings(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a change of one's own method: its runs are started over, those of others are not."""
    plugin = tmp_path / "mine.py"
    text = "from fedproc.methods.fedavg import FedAvg\n\nclass Mine(FedAvg):\n    name = 'mine'\n"
    plugin.write_text(text)
    words = ["compare", "--plugin", plugin, "--methods", "fedavg", "mine", "--seeds", 0, "--data", pictures]
    words += ["--clients", 3, "--rounds", 2, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "cmp"]

    def made(*more: object) -> tuple[int, dict[str, float], str]:
        code = execute([str(word) for word in (*words, *more)])
        files = {name: tmp_path / "cmp" / name / "seed-0" / "result.json" for name in ("fedavg", "mine")}
        return code, {name: file.stat().st_mtime_ns for name, file in files.items()}, capsys.readouterr().out

    _, before, _ = made()
    plugin.write_text(text + "    summary = 'another'\n")
    with pytest.raises(InputError, match=r"plugin: the file has changed .*; fresh starts over"):
        made()
    code, after, said = made("--fresh")
    assert code == 0 and after["fedavg"] == before["fedavg"] and after["mine"] > before["mine"]
    assert "finished with these settings, and kept: fedavg/seed-0; --fresh all starts them over, too" in said
    code, again, said = made("--fresh")
    assert code == 0 and again == after and "kept: fedavg/seed-0, mine/seed-0" in said
    code, all_over, said = made("--fresh", "all")
    assert code == 0 and all(all_over[name] > again[name] for name in again) and "kept" not in said


def test_an_unquoted_dot_in_the_name_of_a_variant_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "v.toml"
    file.write_text('[tau-0.2]\nmethod = "fedproc"\nfedproc.tau = 0.2\n')
    with pytest.raises(InputError, match=r"\[tau-0\.2\]: an unquoted dot begins a table .* write \[\"tau-0\.2\"\]"):
        read_variants(file, METHODS)
    file.write_text('["tau-0.2"]\nmethod = "fedproc"\n"fedproc.tau" = 0.2\n[sharp.fedproc]\ntau = 0.5\n')
    found = read_variants(file, METHODS)
    assert found == {"tau-0.2": {"method": "fedproc", "fedproc.tau": 0.2}, "sharp": {"fedproc": {"tau": 0.5}}}
    assert merged({"fedproc": {"tau": 1.0, "floor": 0.1}}, found["tau-0.2"])["fedproc"] == {"tau": 0.2, "floor": 0.1}


def test_options_of_another_method_are_refused_under_their_flags_names_too(pictures: Path) -> None:
    with pytest.raises(InputError, match="variant odd: options of moon, but its method is fedproc"):
        compare(variants={"odd": {"moon.mu": 1.0}}, data=str(pictures), **GIVEN)


def test_a_reference_that_is_misspelt() -> None:
    with pytest.raises(InputError, match=r"reference fedavgs: expected one of fedavg, fedproc; did you mean fedavg\?"):
        compare(["fedavg", "fedproc"], [0], reference="fedavgs", **GIVEN)
