from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedproc import InputError
from fedproc.networks import EMBEDDING, Layout, NetworkSpec, build
from fedproc.networks.batch_norm import MaskedBatchNorm, convert
from fedproc.networks.cost import cost


def spec(
    name: str = "simple-cnn", side: int = 32, channels: int = 3, classes: int = 10, width: int = 64, **more: object
) -> NetworkSpec:
    return NetworkSpec(name, width, channels, side, classes, bool(more.get("normalize_z", False)))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_of_spec() -> None:
    assert parameters(build(spec(), 0)) == 92_626
    assert parameters(build(spec("resnet50", classes=100), 0)) == 28_246_948


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (32, 3), (64, 3)])
@pytest.mark.parametrize("name", ["simple-cnn", "resnet18"])
def test_shapes(name: str, side: int, channels: int) -> None:
    network = build(spec(name, side, channels, width=8), 0)
    z, logits = network(torch.zeros(3, channels, side, side))
    assert z.shape == (3, EMBEDDING) and logits.shape == (3, 10)


def test_normalised_z_enters_the_classifier() -> None:
    torch.manual_seed(0)
    network = build(spec(normalize_z=True), 0)
    z, logits = network(torch.randn(4, 3, 32, 32))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(logits, network.classifier(z))


def test_initial_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (torch.cat([p.flatten() for p in build(spec(), s).parameters()]) for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    # uniform within 1/sqrt(fan-in), as torch's own layers: linear 400-120
    weight = build(spec(), 0).encoder[3].weight  # type: ignore[index,union-attr]
    assert weight.abs().max() <= 1 / 20 and weight.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    torch.manual_seed(99)
    assert torch.equal(first, torch.cat([p.flatten() for p in build(spec(), 3).parameters()]))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (6, 3, 4, 4)), (nn.BatchNorm1d, (6, 3))])
def test_masked_batch_norm_is_batch_norm_of_the_kept(
    kind: type[nn.Module], shape: tuple[int, ...], momentum: float | None
) -> None:
    torch.manual_seed(0)
    plain = kind(3, momentum=momentum).double()  # type: ignore[call-arg]
    masked = convert(kind(3, momentum=momentum).double())  # type: ignore[call-arg]
    assert isinstance(masked, MaskedBatchNorm)
    x = torch.randn(shape, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False, True])
    for _ in range(3):
        expected = plain(x[mask])
        masked.mask = mask
        torch.testing.assert_close(masked(x)[mask], expected)
    torch.testing.assert_close(dict(masked.named_buffers()), dict(plain.named_buffers()))


def test_batch_norm_of_a_single_value_does_not_fail() -> None:
    norm = convert(nn.BatchNorm1d(3))
    assert torch.isfinite(norm(torch.ones(1, 3))).all()


def test_layout_round_trip() -> None:
    network = build(spec("resnet18", width=8), 0)
    layout = Layout.of(network)
    weights = layout.read(network)
    assert (len(weights.params), len(weights.buffers), len(weights.counters)) == layout.sizes
    assert len(weights.params) == parameters(network) and len(weights.counters) == 20
    named = layout.named(weights)
    assert set(named) == set(network.state_dict())
    for name, tensor in network.state_dict().items():
        assert torch.equal(named[name], tensor)


def test_bound_module_writes_through() -> None:
    network = build(spec("resnet18", width=8), 0)
    layout = Layout.of(network)
    weights = layout.read(network).clone()
    layout.bind(network, weights)
    before = weights.buffers.clone()
    network.train()
    network(torch.randn(4, 3, 32, 32))
    assert not torch.equal(weights.buffers, before) and (weights.counters == 1).all()
    weights.params.zero_()
    assert all((p == 0).all() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("toy_networks:WrongShape", "must map"),
        ("toy_networks:Missing", "cannot make the encoder"),
        ("no_such_module:Net", "cannot make the encoder"),
        ("collections:OrderedDict", "expected an nn.Module"),
    ],
)
def test_own_encoders_that_do_not_fit(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(spec(name, 16, 1), 0)


@pytest.mark.parametrize("width", [8, 5, 100])
def test_group_norm_of_any_width(width: int) -> None:
    made = NetworkSpec("resnet18", width, 3, 32, 10, False, norm="group")
    network = build(made, 0)
    assert not dict(network.named_buffers())  # nothing to average but weights
    z, _ = network(torch.zeros(2, 3, 32, 32))
    assert torch.isfinite(z).all()


@pytest.mark.parametrize("name", ["simple-cnn", "resnet18"])
def test_large_images(name: str) -> None:
    z, logits = build(spec(name, 224, 3, width=4), 0)(torch.zeros(2, 3, 224, 224))
    assert z.shape == (2, EMBEDDING) and logits.shape == (2, 10)


@pytest.mark.parametrize("name", ["simple-cnn", "resnet18"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network = build(NetworkSpec(name, 8, 3, 32, 10, False), 0).double().eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network(torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    assert cost(network, 3, 32).operations == counter.get_total_flops()


def test_written_gradients_lie_as_the_parameters_do() -> None:
    """Also where they come in two dtypes, and convolutions' with their channels last."""
    network = build(NetworkSpec("resnet18", 4, 3, 32, 10, False), 0)
    layout = Layout.of(network, channels_last=True)
    given = [p.detach().to(torch.bfloat16 if p.dim() == 4 else p.dtype) for p in network.parameters()]
    flat = torch.zeros(layout.sizes[0])
    layout.write(flat, given)
    read = layout.read(network).params
    rounded = torch.cat([torch.full((p.numel(),), p.dim() == 4) for p in network.parameters()])
    assert torch.equal(flat[~rounded], read[~rounded])
    assert torch.equal(flat[rounded], read[rounded].to(torch.bfloat16).float())


STEPS = """
import torch
from fedproc.networks import Layout, NetworkSpec, build

torch.set_num_threads(2)
for width in (2, 4, 8, 16):
    network = build(NetworkSpec("resnet18", width, 3, 32, 10, False, torch.float32, "batch"), 0)
    layout = Layout.of(network, channels_last=True)
    layout.bind(network, layout.read(network))
    for _ in range(30):
        network(torch.randn(15, 3, 32, 32), None)[1].sum().backward()
print("done")
"""


@pytest.mark.slow
def test_narrow_resnets_with_channels_last_and_odd_batches_do_not_overrun_memory() -> None:
    """As torch's own convolutions did, in a process of its own since that ends it."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-300:]
