"""Weight gradients are written where they belong in the flat gradient, whoever else uses the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedproc import kernels
from fedproc.kernels import flat_gradient
from fedproc.kernels.flat_gradient import FlatGradient

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LANES = 2
SIZES = [54, 6, 96, 4, 20, 5, 7]  # a convolution, a linear layer, one of torch's, and what nobody uses
Use = Callable[..., Tensor]


def layers(x: Tensor, conv: Tensor, conv_bias: Tensor, w: Tensor, b: Tensor, last: Tensor, *_: Tensor) -> Tensor:
    from fedproc.kernels.conv_pool import conv_relu_pool
    from fedproc.kernels.linear import linear

    hidden = conv_relu_pool(x[None], conv.view(1, 6, 1, 3, 3), conv_bias[None])[0].flatten(1)
    z = linear(hidden[None], w.view(1, 4, 24), b[None], False, False)[0]
    return (z @ last.view(4, 5)).square().sum()


def once(x: Tensor, parts: Any) -> Tensor:
    return vmap(layers)(x, *parts)  # type: ignore[no-any-return]


def twice(x: Tensor, parts: Any) -> Tensor:
    return once(x, parts) + once(x.flip(1) * 0.5, parts)


def beside(x: Tensor, parts: Any) -> Tensor:
    """A loss that looks at the weights of a layer as well."""
    return once(x, parts) + parts[2].square().sum(dim=-1) + parts[0].sum(dim=-1)


def torchs_own(x: Tensor, parts: Any) -> Tensor:
    return sum((k + 1) * part.pow(3).sum(dim=-1) for k, part in enumerate(parts[:-1]))  # type: ignore[return-value]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("use", [once, twice, beside, torchs_own])
def test_the_flat_gradient_is_that_of_torch(use: Use) -> None:
    kernels.set_precision("fp32")
    params, x = random(LANES, sum(SIZES)).requires_grad_(), random(LANES, 3, 1, 6, 6)
    (expected,) = torch.autograd.grad(use(x, torch.split(params, SIZES, dim=-1)).sum(), params)
    flat = FlatGradient(params)
    for _ in range(2):  # nothing of a pass is left in the next
        found = flat.of(use(x, flat.split(params, SIZES, -1)).sum())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        found.fill_(7.0)  # the caller may overwrite it
    assert not flat_gradient._open


def test_kernels_write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    params, x = random(LANES, sum(SIZES)).requires_grad_(), random(LANES, 3, 1, 6, 6)
    flat, copied = FlatGradient(params), []
    same = flat_gradient._same
    monkeypatch.setattr(flat_gradient, "_same", lambda place, part: same(place, part) or copied.append(place))
    flat.of(once(x, flat.split(params, SIZES, -1)).sum())
    assert [place.shape[-1] for place in copied] == [20, 5, 7]


def test_a_failed_pass_leaves_nothing_open() -> None:
    params = random(LANES, sum(SIZES)).requires_grad_()
    flat = FlatGradient(params)
    with pytest.raises(RuntimeError):
        flat.of(random(1).sum())
    assert not flat_gradient._open
