"""Stacked lanes that send the simple CNN through its CUDA kernels, here on a CPU, agree with one client at a time."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from conftest import Train, toy_images, toy_session
from cuda_on_cpu import COMPILER, KERNELS_OF_SIMPLE_CNN, OnCpu
from test_executors import distance

from fedproc.kernels.simple_cnn import SOURCE, SimpleCnn, Sizes
from fedproc.lanes import choose, stacked_net
from fedproc.lanes.setting import Setting
from fedproc.simulation.drive import drive

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


@pytest.mark.parametrize("method", ["fedproc", "moon", "fedsam", pytest.param("fedrep", marks=pytest.mark.slow)])
def test_as_one_client_at_a_time(train: Train, through_the_kernels: list[Sizes], method: str) -> None:
    """Frozen networks, a second gradient and phases that train a part are among them."""
    images, given = toy_images(absent=2), {"method": method, "lr": 0.01, "rounds": 2, "epochs": 1}
    serial = train(images, "serial", 1, **given)
    assert not through_the_kernels
    stacked = train(images, "stacked", 4, **given)
    assert through_the_kernels
    assert distance(serial, stacked) < 1e-5
    for one, other in zip(serial.records, stacked.records, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)


def test_methods_that_share_lanes() -> None:
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
