"""What each real site has: predictions of every image, runs beside a federated one, gains and their intervals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import contents, typed
from PIL import Image

from fedproc import Experiment, compare, run
from fedproc.comparison.sites import MEAN, Compared, compared, outcomes, site_rows
from fedproc.errors import InputError
from fedproc.report.gains import draw_gains
from fedproc.report.sites import site_table
from fedproc.runs.lines import append_line

HEADS = ["path", "site", "group", "class", "predicted", "probability"]


def finish(folder: Path) -> None:
    """A folder that says it is a finished run of one round, or stands beside one."""
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"status": "finished", "rounds": 1}')
    (folder / "config.json").write_text('{"epochs": 1, "solo": {"epochs": 1}}')


def write_run(folder: Path, right: dict[str, list[int]], of_a_group: int = 1) -> Path:
    """A run whose model is right where it says 1; images of a site are numbered."""
    finish(folder)
    with (folder / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADS)
        for site, each in right.items():
            for number, good in enumerate(each):
                group = "" if of_a_group == 1 else number // of_a_group
                writer.writerow([f"{site}/{number}", site, group, "a", "a" if good else "b", 0.9])
    return folder


def test_the_interval_is_that_of_a_share(tmp_path: Path) -> None:
    """80 of 100 images: 0.8 with a standard error of 0.04."""
    path = write_run(tmp_path / "run", {"a": [1] * 80 + [0] * 20})
    (row,) = site_rows([Compared("fedavg", {0: path})])
    assert row.federated.value == pytest.approx(0.8) and row.alone is None and row.gain is None
    assert row.federated.low == pytest.approx(0.8 - 1.96 * 0.04, abs=0.012)
    assert row.federated.high == pytest.approx(0.8 + 1.96 * 0.04, abs=0.012)


def test_whole_groups_are_drawn(tmp_path: Path) -> None:
    """Ten images of each of ten patients, all right or all wrong: as certain as ten images."""
    right = {"a": [1] * 80 + [0] * 20}
    by_image = write_run(tmp_path / "images", right)
    by_patient = write_run(tmp_path / "patients", right, of_a_group=10)
    (one,), (other,) = (site_rows([Compared("fedavg", {0: path})]) for path in (by_image, by_patient))
    width, wide = (each.federated.high - each.federated.low for each in (one, other))
    assert wide == pytest.approx(width * np.sqrt(10), rel=0.1)
    assert (one.groups, other.groups) == (100, 10)


def test_gains_are_paired_image_by_image(tmp_path: Path) -> None:
    """The same 70 images right with both, 20 more with one of them: pairs are surer than two shares."""
    together = write_run(tmp_path / "run", {"a": [1] * 90 + [0] * 10})
    write_run(tmp_path / "run" / "alone", {"a": [1] * 70 + [0] * 30})
    write_run(tmp_path / "run" / "fine-tuned", {"a": [1] * 90 + [0] * 10})
    (row,) = site_rows([compared("fedproc", {0: together}, {})])
    assert row.gain is not None and row.gain.value == pytest.approx(0.2)
    error = np.sqrt(0.2 * 0.8 / 100)  # of a share of 0.2
    assert row.gain.low == pytest.approx(0.2 - 1.96 * error, abs=0.012)
    assert row.fine_tuned_gain == row.gain
    told = tmp_path / "told"
    for folder, right in ((told, 90), (told / "alone", 70)):
        finish(folder)
        counts = {"a": {"correct": [right, 0], "total": [100, 0]}}
        append_line(folder / "sites.jsonl", {"round": 1, "sites": counts}, "")
    (apart,) = site_rows([compared("fedproc", {0: told}, {})])
    assert apart.gain is not None and apart.gain.value == pytest.approx(0.2)
    assert apart.gain.high - apart.gain.low > 1.2 * (row.gain.high - row.gain.low)


def test_seeds_share_their_patients(tmp_path: Path) -> None:
    """The same images under two seeds with the same answers are no more certain than under one."""
    right = {"a": [1] * 80 + [0] * 20}
    runs = {seed: write_run(tmp_path / str(seed), right) for seed in (0, 1)}
    (both,), (one,) = site_rows([Compared("x", runs)]), site_rows([Compared("x", {0: runs[0]})])
    assert both.seeds == 2 and both.federated == one.federated


def test_external_sites_and_the_mean(tmp_path: Path) -> None:
    together = write_run(tmp_path / "run", {"a": [1, 1] * 5, "b": [1, 0] * 5, "elsewhere": [0, 1] * 5})
    write_run(tmp_path / "run" / "alone", {"a": [1, 0] * 5, "b": [1, 0] * 5})
    rows = {row.site: row for row in site_rows([compared("fedproc", {0: together}, {})])}
    assert list(rows) == ["a", "b", "elsewhere", MEAN]
    assert rows["elsewhere"].alone is None and rows["elsewhere"].federated.value == 0.5
    assert rows[MEAN].federated.value == 0.75 and rows[MEAN].alone is not None  # of those that train
    table = site_table(list(rows.values()))
    assert [cell.text for cell in table.rows[2]][:3] == ["elsewhere", "fedproc", "10"]
    assert "federated gain low" in table.csv().splitlines()[0]
    assert draw_gains(list(rows.values())) is not None
    assert draw_gains([rows["elsewhere"]]) is None


def test_what_stands_beside_another_state_of_a_run_is_left_out(tmp_path: Path) -> None:
    together = write_run(tmp_path / "run", {"a": [1, 1]})
    write_run(together / "alone", {"a": [1, 0]})
    write_run(together / "fine-tuned", {"a": [1, 0]})
    (row,) = site_rows([compared("fedproc", {0: together}, {})])
    assert row.alone is not None and row.fine_tuned is not None
    (together / "alone" / "config.json").write_text('{"solo": {"epochs": 7}}')  # of other rounds
    (together / "model.safetensors").write_bytes(b"another")
    (row,) = site_rows([compared("fedproc", {0: together}, {})])
    assert row.alone is None and row.fine_tuned is None
    (together / "alone" / "config.json").write_text('{"solo": {"epochs": 1}}')
    (together / "alone" / "result.json").write_text('{"status": "diverged", "round": 1}')
    assert site_rows([compared("fedproc", {0: together}, {})])[0].alone is None


def test_seeds_without_a_run_alone_are_left_out(tmp_path: Path) -> None:
    runs = {seed: write_run(tmp_path / str(seed), {"a": [1, 1, seed]}) for seed in (0, 1, 2)}
    for seed in (1, 2):
        write_run(runs[seed] / "alone", {"a": [1, 0, 0]})
    (row,) = site_rows([compared("fedavg", runs, {})])
    assert row.seeds == 2 and row.gain is not None and row.federated.value == 1.0


def test_kept_models_are_compared_on_test_images(tmp_path: Path) -> None:
    together = write_run(tmp_path / "run", {"a": [1, 1]})
    (together / "config.json").write_text('{"epochs": 1, "val_fraction": 0.2}')
    (row,) = site_rows([compared("fedavg", {0: together}, {})])
    assert row.held_out == "validation" and "validation images" in site_table([row]).title
    (together / "test-predictions.csv").write_text((together / "predictions.csv").read_text().replace(",a,a,", ",a,b,"))
    (row,) = site_rows([compared("fedavg", {0: together}, {})])
    assert row.held_out == "test" and row.federated.value == 0.0


def test_a_handful_of_images_has_no_interval(tmp_path: Path) -> None:
    """Nine that agree would give (0.0 to 0.0), which reads as certainty; together with others they count."""
    together = write_run(tmp_path / "run", {"a": [1] * 9, "b": [1] * 12 + [0] * 12})
    write_run(together / "alone", {"a": [1] * 9, "b": [1] * 24})
    rows = {row.site: row for row in site_rows([compared("fedavg", {0: together}, {})])}
    assert rows["a"].gain is not None and rows["a"].gain.value == 0.0 and not rows["a"].gain.told
    assert rows["b"].gain is not None and rows["b"].gain.told and rows[MEAN].federated.told
    table = site_table(list(rows.values()))
    assert table.rows[0][5].text == "+0.0 (too few)" and "fewer than 10 images" in table.note
    assert table.csv().splitlines()[1] == "a,fedavg,9.0,100.0,,,100.0,,,0.0,,"
    assert draw_gains(list(rows.values())) is not None


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("path,label\nx,y\n")
    with pytest.raises(InputError, match=r"predictions\.csv: expected the columns path, site"):
        outcomes(tmp_path)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """<site>/<class>/*: two sites, of which one has few images of one class."""
    folder = tmp_path_factory.mktemp("sites")
    rng = np.random.default_rng(0)
    for site, counts in (("north", (30, 6)), ("south", (14, 26))):
        for name, level, count in (("dark", 40, counts[0]), ("bright", 170, counts[1])):
            (folder / site / name).mkdir(parents=True)
            for number in range(count):
                pixels = (level + rng.integers(0, 80, (16, 16))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / site / name / f"{number}.png")
    return folder


def test_a_run_says_what_each_site_gained(sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = f"run --data {sites} --method fedavg --rounds 2 --epochs 1 --fine-tune 2 --out {out}"
    code, said, _ = typed(words, capsys)
    assert code == 0 and "fine-tuned gain" in said and "north" in said and "each site by itself" in said
    rows = {row.site: row for row in site_rows([compared("fedavg", {0: out}, {})])}
    counts = json.loads((out / "sites.jsonl").read_text().splitlines()[-1])["sites"]
    for site in ("north", "south"):  # the same answers as those counted while training
        right, total = (sum(counts[site][name]) for name in ("correct", "total"))
        assert rows[site].images == total and rows[site].federated.value == pytest.approx(right / total)
        assert rows[site].alone is not None and rows[site].fine_tuned is not None
    assert json.loads((out / "alone" / "config.json").read_text())["solo"]["epochs"] == 2
    tuned = json.loads((out / "fine-tuned" / "config.json").read_text())
    assert (tuned["method"], tuned["rounds"], tuned["calibrate"]) == ("solo", 2, 0.0)
    before = contents(out)
    assert typed(words, capsys)[0] == 0 and contents(out) == before  # finished runs are left as they are
    code, said, _ = typed(words.replace("--fine-tune 2", "--fine-tune 3"), capsys)
    assert code == 0 and json.loads((out / "fine-tuned" / "config.json").read_text())["rounds"] == 3
    code, _, err = typed(words.replace("--fine-tune 2", "--fine-tune -1"), capsys)
    assert code == 2 and "--fine-tune -1: expected at least 0" in err
    assert typed(f"report {out} --out {tmp_path / 'page'}", capsys)[0] == 0
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    first = page.index("Did it help each site?")
    assert first < page.index("Learning curves") and "solo" not in page[:first]
    assert (tmp_path / "page" / "figures" / "setting-0-gains.png").is_file()
    assert "north" in (tmp_path / "page" / "tables" / "setting-0-sites.csv").read_text()


def test_a_comparison_of_sites_has_them_alone(sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"compare --methods fedavg --seeds 0 1 --data {sites} --rounds 1 --epochs 1 --fine-tune 1"
    code, said, _ = typed(f"{words} --workers 1 --out {tmp_path / 'c'}", capsys)
    assert code == 0 and "solo" in said and "gain" in said and "means over 2 seeds" in " ".join(said.split())
    assert (tmp_path / "c" / "solo" / "seed-1" / "predictions.csv").is_file()
    assert (tmp_path / "c" / "fedavg" / "seed-1" / "fine-tuned" / "result.json").is_file()
    code, said, _ = typed(f"{words} --workers 1 --no-alone --fine-tune 0 --out {tmp_path / 'd'}", capsys)
    assert code == 0 and "solo" not in said and not (tmp_path / "d" / "solo").exists()
    code, _, err = typed(f"compare --methods fedavg --rounds 1 --no-alone --out {tmp_path / 'e'}", capsys)
    assert code == 2 and "--no-alone: has no effect: it is for real sites" in err and not (tmp_path / "e").exists()


def test_sites_that_nobody_can_judge_are_told(sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of south is trained on, and a site elsewhere is tested on: nothing is trained alone for nothing."""
    lines = ["path,label,site,split"]
    for path in sorted(sites.glob("*/*/*.png")):
        site, label = path.relative_to(sites).parts[:2]
        side = "train" if site == "south" else "test"
        lines.append(f"{path},{label},{site},{side}")
    (tmp_path / "all.csv").write_text("\n".join(lines))
    words = f"run --data {tmp_path / 'all.csv'} --method fedavg --rounds 1 --epochs 1 --out {tmp_path / 'run'}"
    code, said, _ = typed(words, capsys)
    assert code == 0 and "1 of 1 sites have no test images of their own (south)" in " ".join(said.split())
    assert "north" in said and not (tmp_path / "run" / "alone").exists()
    code, _, err = typed(f"{words} --test-fraction 0.4 --fresh", capsys)
    assert code == 2 and "--test-fraction 0.4: has no effect" in err


@pytest.mark.slow
def test_kept_models_of_a_comparison_meet_test_images(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SOLO as well, which keeps its last model: not those images by which the federated one was chosen."""
    words = f"compare --methods fedavg --seeds 0 1 --data {sites} --rounds 2 --epochs 1 --fine-tune 1 --workers 1"
    code, said, _ = typed(f"{words} --val-fraction 0.2 --keep best --out {tmp_path / 'c'}", capsys)
    flat = " ".join(said.split())
    assert code == 0 and "accuracy on each site's own test images" in flat
    assert "The federated model is its best round's, by validation images" in flat
    rows = list(csv.DictReader((tmp_path / "c" / "sites.csv").open()))
    images = {row["site"]: float(row["images"]) for row in rows}
    split = list(csv.DictReader((tmp_path / "c" / "fedavg" / "seed-0" / "split.csv").open()))
    assert images["north"] == sum(row["site"] == "north" and row["split"] == "test" for row in split)


def test_a_sites_model_is_found_by_its_name(sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, image = tmp_path / "run", sites / "north" / "dark" / "0.png"
    run(Experiment(method="solo", data=str(sites), rounds=1, epochs=1, device="cpu"), out, progress=False)
    found = []
    for client in ("south", "1"):
        code, _, _ = typed(f"predict {out} {image} --client {client} --out {tmp_path / client}.csv", capsys)
        assert code == 0
        found.append((tmp_path / f"{client}.csv").read_text())
    assert found[0] == found[1]
    code, _, err = typed(f"predict {out} {image} --client sout --out {tmp_path / 'x.csv'}", capsys)
    assert code == 2 and "--client sout: expected a number, or one of north, south; did you mean south?" in err


def test_a_notebook_has_the_same(sites: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": str(sites), "rounds": 1, "epochs": 1, "device": "cpu"}
    done = run(Experiment(method="fedavg", **given), tmp_path / "run", fine_tune=1, progress=False)
    table = done.sites()
    assert table.heads[3:6] == ["alone", "federated", "federated gain"] and "fine-tuned" in table.heads
    assert [row[0].text for row in table.rows][:2] == ["north", "south"]
    with pytest.raises(InputError, match="fedavg: has no sites to compare; expected finished runs in a folder"):
        run(Experiment(method="fedavg", **given), progress=False).sites()
    both = compare(["fedavg"], [0], tmp_path / "both", fine_tune=0, progress=False, **given)
    assert [row.label for row in both.rows] == ["fedavg", "solo"] and "fine-tuned" not in both.sites().heads
    kept = compare(["fedavg"], [0], alone=False, progress=False, **given)
    assert [row.label for row in kept.rows] == ["fedavg"]
    with pytest.raises(InputError, match="alone=False: has no effect: it is for real sites"):
        compare(["fedavg"], [0], alone=False, progress=False, rounds=1)
