"""A chain of small layers sent forwards and backwards by hand gives what autograd gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedproc.kernels import cpu
from fedproc.networks import NetworkSpec, build
from fedproc.networks.chain import Chain
from fedproc.networks.flat import Layout
from fedproc.protocol.weights import Weights

without = cpu.missing()
pytestmark = pytest.mark.skipif(without is not None, reason=f"no C kernels here: {without}")


def losses(kind: str, z: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    by_class = nn.functional.cross_entropy(logits, labels)
    return {"logits": by_class, "z": (z**3).mean(), "both": by_class + (z**3).mean()}[kind]


@pytest.mark.parametrize("kind", ["logits", "z", "both"])
@pytest.mark.parametrize("normalize_z", [False, True])
@pytest.mark.parametrize(("channels", "side", "batch"), [(3, 32, 10), (1, 28, 7), (3, 20, 1)])
def test_the_same_gradients(kind: str, normalize_z: bool, channels: int, side: int, batch: int) -> None:
    network = build(NetworkSpec("simple-cnn", 64, channels, side, 10, normalize_z), 3)
    made = torch.Generator().manual_seed(0)
    images = torch.randn(batch, channels, side, side, generator=made)
    labels = torch.randint(0, 10, (batch,), generator=made)
    z, logits = network(images)
    wanted = torch.autograd.grad(losses(kind, z, logits, labels), list(network.parameters()), materialize_grads=True)
    layout = Layout.of(network)
    weights, chain = layout.read(network), Chain.of(network, layout, channels, side)
    assert chain is not None
    gradient = torch.full_like(weights.params, 7.0)  # what is there is replaced
    own_z, own_logits = chain.forward(weights.params, images)
    torch.testing.assert_close(own_z, z, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own_logits, logits, rtol=1e-5, atol=1e-6)
    chain.gradient(weights.params, gradient, losses(kind, own_z, own_logits, labels))
    found = layout.named(Weights(gradient, weights.buffers, weights.counters))
    for (name, _), expected in zip(network.named_parameters(), wanted, strict=True):
        size = float(expected.norm())
        assert float((found[name] - expected).norm()) <= 1e-5 * size, name
        assert size > 0 or (kind == "z" and name.startswith("classifier")), name
    plain = chain.outputs(weights.params, images)
    assert torch.equal(plain[0], own_z) and torch.equal(plain[1], own_logits)


def test_other_networks_are_left_to_autograd() -> None:
    resnet = build(NetworkSpec("resnet18", 8, 3, 32, 10, False), 0)
    assert Chain.of(resnet, Layout.of(resnet), 3, 32) is None
    simple = build(NetworkSpec("simple-cnn", 64, 3, 32, 10, False), 0)
    assert isinstance(simple.encoder, nn.Sequential)
    simple.encoder.append(nn.Dropout(0.5))
    assert Chain.of(simple, Layout.of(simple), 3, 32) is None
