"""The whole simple CNN in a few kernels computes what the layers do, forwards and backwards: on a CPU, or on a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from cuda_on_cpu import COMPILER, KERNELS_OF_SIMPLE_CNN, OnCpu
from torch import Tensor
from torch.func import functional_call, vmap

from fedproc.kernels import cuda
from fedproc.kernels.cuda import CudaError, Module
from fedproc.kernels.simple_cnn import SOURCE, SimpleCnn, Sizes
from fedproc.networks import NetworkSpec, build
from fedproc.networks.flat import Layout
from fedproc.networks.network import Network
from fedproc.protocol.weights import Weights

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SHAPES = [(3, 32, 10), (1, 28, 10), (3, 33, 7)]
NVRTC = next(iter(Path(torch.__file__).parent.parent.glob("nvidia/*/lib/libnvrtc.so.*")), None)  # which needs no GPU


def network(channels: int, side: int, classes: int) -> Network:
    spec = NetworkSpec("simple-cnn", 0, channels, side, classes, normalize_z=False, dtype=torch.float64)
    return build(spec, 3).to(DEVICE)


def sizes(channels: int, side: int, classes: int) -> Sizes:
    return Sizes.of(channels, side, classes, Layout.of(network(channels, side, classes)).params)


@cache
def kernels(channels: int, side: int, classes: int, processors: int = 1) -> SimpleCnn:
    of = sizes(channels, side, classes)
    module = Module(SOURCE, of.defined(3)) if GPU else OnCpu(SOURCE, of.defined(3), KERNELS_OF_SIMPLE_CNN)
    return SimpleCnn(module, of, processors)


def problem(lanes: int, batch: int, channels: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    """Weights that differ from lane to lane, and images."""
    start = Layout.of(network(channels, side, classes)).read(network(channels, side, classes)).params.float()
    draws = torch.Generator().manual_seed(5)
    params = start + 0.05 * torch.randn(lanes, len(start), generator=draws).to(DEVICE)
    return params, torch.randn(lanes, batch, channels, side, side, generator=draws).to(DEVICE)


def plain(channels: int, side: int, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The layers themselves, in float64."""
    net = network(channels, side, classes)
    layout = Layout.of(net)
    empty = layout.read(net)

    def lane(params: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        named = layout.named(Weights(params, empty.buffers, empty.counters))
        found: tuple[Tensor, Tensor] = functional_call(net, named, (images, None))
        return found

    return lambda params, images: vmap(lane)(params.double(), images.double())


def close(found: Tensor, expected: Tensor) -> None:
    """Three products of tf32 are some 2^-20 off, and tensor cores round sums towards zero."""
    assert found.shape == expected.shape
    assert float((found - expected).detach().norm()) <= 1e-5 * float(expected.detach().norm())


@pytest.mark.skipif(not GPU and COMPILER is None, reason="neither a GPU nor a C++ compiler here")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [5, *(pytest.param(batch, marks=pytest.mark.slow) for batch in (1, 34))])
def test_there_and_back(shape: tuple[int, int, int], batch: int) -> None:
    lanes = 2
    params, images = problem(lanes, batch, *shape)
    z, logits, last = kernels(*shape).forward(params, images, keep=True)
    leaf = params.double().requires_grad_()
    expected = plain(*shape)(leaf, images)
    close(z, expected[0])
    close(logits, expected[1])
    of_z, of_logits = (
        torch.randn(one.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE) for one in (z, logits)
    )
    for given in ((of_z, of_logits), (None, of_logits), (of_z, None)):
        whole = torch.full((lanes, params.shape[1] + 2), torch.nan, device=DEVICE)[:, : params.shape[1]]
        assert last is not None
        kernels(*shape).backward(last, *given, whole)
        pairs = [(out, g.double()) for out, g in zip(expected, given, strict=True) if g is not None]
        (wanted,) = torch.autograd.grad([out for out, _ in pairs], leaf, [g for _, g in pairs], retain_graph=True)
        for name, (first, last_) in spans(*shape).items():
            if given[1] is None and name.startswith("classifier"):
                assert not whole[:, first:last_].any()
            else:
                close(whole[:, first:last_], wanted[:, first:last_])


def spans(channels: int, side: int, classes: int) -> dict[str, tuple[int, int]]:
    found, at = {}, 0
    for name, parameter in network(channels, side, classes).named_parameters():
        found[name] = (at, at + parameter.numel())
        at += parameter.numel()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("products", [1, 3])
def test_the_source_compiles_for_gpus_that_are_not_here(
    monkeypatch: pytest.MonkeyPatch, architecture: str, products: int
) -> None:
    if NVRTC is None and os.environ.get("FEDPROC_NVRTC") != "required":
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc-cu12")
    monkeypatch.setattr(cuda, "_nvrtc", lambda: ctypes.CDLL(str(NVRTC)))
    text, first = SOURCE.read_text(encoding="utf-8"), [f"--gpu-architecture={architecture}", "--std=c++17"]
    for shape in SHAPES:
        defined = [f"-D{name}={value}" for name, value in sizes(*shape).defined(products).items()]
        binary = cuda._compile(text, SOURCE.name, [*first, *defined])
        assert all(name.encode() in binary for name in KERNELS_OF_SIMPLE_CNN)
    with pytest.raises(CudaError, match=r"simple_cnn\.cu does not compile: simple_cnn\.cu\(\d+\): error"):
        cuda._compile(text, SOURCE.name, first)  # without its sizes
