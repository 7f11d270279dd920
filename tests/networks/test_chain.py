"""A chain of small layers sent forwards and backwards by hand gives what autograd gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedproc.kernels import cpu
from fedproc.networks import NetworkSpec, build
from fedproc.networks.chain import Chain
from fedproc.networks.flat import Layout
from fedproc.networks.layers import ConvReluPool, Linear
from fedproc.networks.network import Network
from fedproc.protocol.weights import Weights

without = cpu.missing()
pytestmark = pytest.mark.skipif(without is not None, reason=f"no C kernels here: {without}")


def losses(kind: str, z: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    by_class = nn.functional.cross_entropy(logits, labels)
    return {"logits": by_class, "z": (z**3).mean(), "both": by_class + (z**3).mean()}[kind]


@pytest.mark.parametrize("kind", ["logits", "z", "both"])
@pytest.mark.parametrize("normalize_z", [False, True])
@pytest.mark.parametrize(("channels", "side", "batch"), [(3, 32, 10), (1, 28, 7), (3, 20, 1), (1, 16, 70)])
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


def small(*layers: nn.Module, features: int, normalize_z: bool = False) -> Network:
    torch.manual_seed(0)
    return Network(nn.Sequential(*layers), features, 3, normalize_z)


@pytest.mark.parametrize("normalize_z", [False, True])
@pytest.mark.parametrize("batch", [9, cpu.BLOCK + 1, 2 * cpu.BLOCK])
def test_other_chains(normalize_z: bool, batch: int) -> None:
    """No convolution, layers narrower than a vector, a convolution without a second one."""
    for network, shape in (
        (small(nn.Flatten(), Linear(12, 5, relu=True), features=5, normalize_z=normalize_z), (3, 2, 2)),
        (small(ConvReluPool(2, 9, 3), nn.Flatten(), features=81, normalize_z=normalize_z), (2, 8, 8)),
    ):
        layout, images, labels = Layout.of(network), torch.randn(batch, *shape), torch.arange(batch) % 3
        weights, chain = layout.read(network), Chain.of(network, layout, *shape[:2])
        assert chain is not None
        gradient = torch.full_like(weights.params, 7.0)
        chain.gradient(weights.params, gradient, losses("both", *chain.forward(weights.params, images), labels))
        losses("both", *network(images), labels).backward()  # type: ignore[no-untyped-call]
        wanted = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)


def ends_with_relu() -> Network:
    network = small(nn.Flatten(), Linear(12, 5, relu=True), features=5)
    network.head = nn.Sequential(Linear(5, 7, relu=True))
    network.classifier = Linear(7, 3)
    return network


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (build(NetworkSpec("simple-cnn", 64, 1, 28, 3, False), 3), (1, 28, 28)),
        (build(NetworkSpec("simple-cnn", 64, 3, 32, 3, True), 3), (3, 32, 32)),
        (small(nn.Flatten(), Linear(12, 5, relu=True), features=5), (3, 2, 2)),
        (ends_with_relu(), (3, 2, 2)),
    ],
    ids=["raw", "normalised", "small", "relu"],
)
@pytest.mark.parametrize("count", [1, cpu.BLOCK, 2 * cpu.BLOCK + 3])
def test_sums_by_class(network: Network, shape: tuple[int, ...], count: int) -> None:
    """Those of z of the bank's images, by index, for each class: the same as of all z in float64."""
    made = torch.Generator().manual_seed(0)
    bank = torch.randint(0, 256, (200, *shape), generator=made, dtype=torch.uint8)
    index, labels = torch.randint(0, 200, (count,), generator=made), torch.randint(0, 2, (count,), generator=made)
    levels = torch.full((shape[0],), 120.0), torch.full((shape[0],), 0.02)
    layout = Layout.of(network)
    weights, chain = layout.read(network), Chain.of(network, layout, *shape[:2])
    assert chain is not None
    sums, counts = chain.class_sums(weights.params, bank, index, labels, levels)
    z = copy.deepcopy(network).double()((bank[index].double() - 120) * 0.02)[0].detach()
    expected = torch.stack([z[labels == k].sum(0) for k in range(3)])
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(counts, torch.bincount(labels, minlength=3)) and not bool(sums[2].any())
    again, _ = chain.class_sums(weights.params, bank, index, labels, levels)
    assert torch.equal(sums, again)


@pytest.mark.parametrize("classes", [7, 10, 17])
def test_a_sample_is_the_same_in_every_batch(classes: int) -> None:
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, classes, True), 3)
    layout, images = Layout.of(network), torch.randn(133, 1, 28, 28)
    chain, params = Chain.of(network, layout, 1, 28), layout.read(network).params
    assert chain is not None
    whole = chain.outputs(params, images)
    for first, count in ((0, 1), (60, 10), (100, 33)):
        for some, of_all in zip(chain.outputs(params, images[first : first + count]), whole, strict=True):
            assert torch.equal(some, of_all[first : first + count])


def test_images_of_another_size_are_refused() -> None:
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, 10, False), 3)
    layout = Layout.of(network)
    chain = Chain.of(network, layout, 1, 28)
    assert chain is not None
    params = layout.read(network).params
    with pytest.raises(ValueError, match="expected 784 values"):
        chain.forward(params, torch.zeros(2, 1, 20, 20))
    some, levels = torch.zeros(2, dtype=torch.int64), (torch.zeros(1), torch.ones(1))
    with pytest.raises(ValueError, match="expected 784 values"):
        chain.class_sums(params, torch.zeros(2, 1, 20, 20, dtype=torch.uint8), some, some, levels)


def test_images_that_do_not_lie_one_after_the_other() -> None:
    network = build(NetworkSpec("simple-cnn", 64, 3, 20, 10, False), 3)
    layout = Layout.of(network)
    params, chain = layout.read(network).params, Chain.of(network, layout, 3, 20)
    assert chain is not None
    bank = torch.randint(0, 256, (4, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    index, levels = torch.arange(4), (torch.full((3,), 128.0), torch.full((3,), 1 / 64))
    expected = chain.class_sums(params, bank, index, index, levels)
    found = chain.class_sums(params, bank.to(memory_format=torch.channels_last), index, index, levels)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_what_a_step_gave_stays() -> None:
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, 10, False), 3)
    layout, images = Layout.of(network), torch.randn(2, 5, 1, 28, 28)
    chain, params = Chain.of(network, layout, 1, 28), layout.read(network).params
    assert chain is not None
    z, logits = chain.forward(params, images[0])
    held = z.detach().clone(), logits.detach().clone()
    chain.forward(params, images[1])
    assert torch.equal(z, held[0]) and torch.equal(logits, held[1])


def test_a_gradient_of_another_pass_is_refused() -> None:
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, 10, False), 3)
    layout, images = Layout.of(network), torch.randn(5, 1, 28, 28)
    chain, weights = Chain.of(network, layout, 1, 28), layout.read(network)
    assert chain is not None
    gradient = torch.empty_like(weights.params)
    first = chain.forward(weights.params, images)[0].sum()
    second = chain.forward(weights.params, images)[0].sum()
    with pytest.raises(RuntimeError):
        chain.gradient(weights.params, gradient, first)
    chain.gradient(weights.params, gradient, second)
    with pytest.raises(RuntimeError, match="no forward pass waits"):
        chain.gradient(weights.params, gradient, second)
    third = chain.forward(weights.params, images)[0].sum()
    chain.outputs(weights.params, images)  # in the same memory
    with pytest.raises(RuntimeError, match="memory was used again"):
        chain.gradient(weights.params, gradient, third)


def test_hooks() -> None:
    """On logits they change the gradient, once."""
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, 10, False), 3)
    layout, images = Layout.of(network), torch.randn(5, 1, 28, 28)
    chain, weights = Chain.of(network, layout, 1, 28), layout.read(network)
    assert chain is not None
    found = []
    for factor in (1.0, 0.5, 0.5):
        _, logits = chain.forward(weights.params, images)
        logits.register_hook(lambda g, factor=factor: factor * g)
        found.append(torch.empty_like(weights.params))
        chain.gradient(weights.params, found[-1], logits.square().sum())
    torch.testing.assert_close(found[1], 0.5 * found[0])
    assert torch.equal(found[1], found[2])


def test_a_copy_has_layers_of_its_own() -> None:
    network = build(NetworkSpec("simple-cnn", 64, 1, 28, 10, False), 3)
    layout, images = Layout.of(network), torch.randn(5, 1, 28, 28)
    chain, params = Chain.of(network, layout, 1, 28), layout.read(network).params
    assert chain is not None
    expected = chain.outputs(params, images)[0]
    another = copy.deepcopy(chain)
    chain._layers[0].weight = 10**6  # of the first one alone
    assert torch.equal(another.outputs(params, images)[0], expected)


def test_layers_that_are_no_chain_are_left_to_autograd() -> None:
    tied = Linear(4, 4, relu=True)
    hooked, renewed = Linear(4, 4), Linear(4, 4)
    hooked.register_forward_hook(lambda _module, _given, out: 2 * out)
    renewed.forward = lambda x: 2 * x  # type: ignore[method-assign]
    for encoder, features, side in (
        ([ConvReluPool(2, 9, 3), Linear(3, 5), nn.Flatten()], 135, 8),  # acts on the last axis
        ([ConvReluPool(4, 9, 3), nn.Flatten()], 81, 8),  # of images with other channels
        ([nn.Flatten(), tied, tied], 4, 2),
        ([nn.Flatten(), hooked], 4, 2),
        ([nn.Flatten(), renewed], 4, 2),
    ):
        network = small(*encoder, features=features)
        assert Chain.of(network, Layout.of(network), 2 if side == 8 else 1, side) is None


def test_frozen_layers_are_left_to_autograd() -> None:
    simple = build(NetworkSpec("simple-cnn", 64, 3, 32, 10, False), 0)
    next(simple.encoder.parameters()).requires_grad_(False)
    assert Chain.of(simple, Layout.of(simple), 3, 32) is None


def test_other_networks_are_left_to_autograd() -> None:
    resnet = build(NetworkSpec("resnet18", 8, 3, 32, 10, False), 0)
    assert Chain.of(resnet, Layout.of(resnet), 3, 32) is None
    simple = build(NetworkSpec("simple-cnn", 64, 3, 32, 10, False), 0)
    assert isinstance(simple.encoder, nn.Sequential)
    simple.encoder.append(nn.Dropout(0.5))
    assert Chain.of(simple, Layout.of(simple), 3, 32) is None
