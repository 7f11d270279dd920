"""A comparison and some of the paper's exhibits, and the page made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproc.cli.commands import execute

SMALL = ["--data", "fashion-mini", "--clients", "4", "--rounds", "2", "--epochs", "1", "--batch-size", "128"]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    words = ["compare", "--methods", "fedavg", "fedproc", "--seeds", "0", "1", *SMALL, "--device", "cpu"]
    assert execute([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def exhibits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exhibits")
    for name in ("tsne", "rounds", "epochs"):
        assert execute(["paper", name, "--scale", "tiny", "--out", str(out), "--device", "cpu"]) == 0
    return out


@pytest.fixture(scope="session")
def page(compared: Path, exhibits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page")
    folders = [str(compared), *(str(exhibits / "tiny" / name) for name in ("tsne", "rounds", "epochs"))]
    assert execute(["report", *folders, "--out", str(out)]) == 0
    return out / "index.html"
