"""Stacked lanes that send the simple CNN through its CUDA kernels, here on a CPU, agree with one client at a time."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Train, toy_images, toy_session
from cuda_on_cpu import COMPILER, KERNELS_OF_SIMPLE_CNN, OnCpu
from test_executors import distance

from fedproc.kernels.simple_cnn import SOURCE, SimpleCnn, Sizes
from fedproc.lanes import choose, stacked_net
from fedproc.lanes.setting import Setting
from fedproc.methods import known
from fedproc.simulation.drive import drive

losses = pytest.importorskip("fedproc.kernels.losses", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")


@cache
def kernels(sizes: Sizes) -> SimpleCnn:
    return SimpleCnn(OnCpu(SOURCE, sizes.defined(3), KERNELS_OF_SIMPLE_CNN), sizes, processors=1)


@pytest.fixture(autouse=True)
def through_the_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Sizes]:
    """Every stacked network; which were asked for."""
    asked: list[Sizes] = []

    def found(setting: Setting) -> SimpleCnn:
        spec = setting.spec
        asked.append(Sizes.of(spec.channels, spec.side, spec.classes, setting.layout.params))
        return kernels(asked[-1])

    monkeypatch.setattr(stacked_net, "_kernels_of", found)
    return asked


def know_slopes(monkeypatch: pytest.MonkeyPatch) -> list[list[object]]:
    """Known losses go without autograd here as on a GPU; those that did."""
    noted: list[list[object]] = []
    plain = losses.note_shares

    def watched(*given: Any, terms: Any) -> None:
        noted.append(terms)
        plain(*given, terms=terms)

    monkeypatch.setattr(known, "kernels", SimpleNamespace(usable=lambda tensor: True))
    monkeypatch.setattr(losses, "note_shares", watched)
    return noted


@pytest.mark.parametrize(
    ("method", "slopes"),
    [
        ("fedproc", "known"),
        ("fedproc", "by autograd"),
        ("moon", "by autograd"),
        ("fedsam", "known"),
        pytest.param("fedrep", "by autograd", marks=pytest.mark.slow),
        pytest.param("scaffold+fedproc", "known", marks=pytest.mark.slow),
    ],
)
def test_as_one_client_at_a_time(
    train: Train, monkeypatch: pytest.MonkeyPatch, through_the_kernels: list[Sizes], method: str, slopes: str
) -> None:
    """Frozen networks, a second gradient and phases that train a part are among them."""
    images, given = toy_images(absent=2), {"method": method, "lr": 0.01, "rounds": 2, "epochs": 1, "calibrate": 0.5}
    serial = train(images, "serial", 1, **given)
    assert not through_the_kernels
    noted = know_slopes(monkeypatch) if slopes == "known" else None
    stacked = train(images, "stacked", 4, **given)
    assert through_the_kernels and noted != []
    assert distance(serial, stacked) < 1e-5
    for one, other in zip(serial.records, stacked.records, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)


@pytest.mark.parametrize("slopes", ["known", "by autograd"])
def test_methods_that_share_lanes(monkeypatch: pytest.MonkeyPatch, slopes: str) -> None:
    """MOON's loss is left to autograd beside those that are known."""
    noted = know_slopes(monkeypatch) if slopes == "known" else None
    given = {"lr": 0.01, "rounds": 1, "epochs": 1}
    methods = ("scaffold", "moon", "fedproc")
    pooled, alone = ([toy_session(toy_images(), method=method, **given) for method in methods] for _ in range(2))
    executor = choose("stacked", 6, 1, [each.setting for each in pooled], 15)
    drive(pooled, executor)
    executor.close()
    for one, other in zip(pooled, alone, strict=True):
        serial = choose("serial", 1, 1, [other.setting], other.cohort)
        drive([other], serial)
        serial.close()
        assert distance(one, other) < 1e-5
        assert torch.isfinite(one.state.weights.params).all()
        assert one.records[0]["train_loss"] == pytest.approx(other.records[0]["train_loss"], rel=1e-4)
    assert noted is None or {len(terms) for terms in noted} == {1, 2}
