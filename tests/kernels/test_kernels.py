"""Every kernel does what the plain torch expression does, forwards and backwards: interpreted, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedproc import kernels, prototypes, streams
from fedproc.data.augment import AUGMENTATIONS, FACTORS, PAD, Normalisation, augmentation
from fedproc.optimizers import Optimizer
from fedproc.optimizers import adam_ as plain_adam_
from fedproc.optimizers import sgd_ as plain_sgd_

pytest.importorskip("triton", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LANES, BATCH = 2, 3


def GPU(test: Callable[[], None]) -> Callable[[], None]:  # noqa: N802
    """The interpreter knows neither nan in a maximum nor products in bfloat16."""
    return pytest.mark.gpu(pytest.mark.skipif(DEVICE == "cpu", reason="no GPU here")(test))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    kernels.set_precision("fp32")
    yield
    kernels.set_precision("fp32")


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    expected = expected.to(found.dtype)
    assert float((found - expected).norm()) <= tolerance * float(expected.norm()) + 1e-7


def same_gradients(
    kernel: Callable[..., Tensor], plain: Callable[..., Tensor], tensors: list[Tensor], tolerance: float = 1e-5
) -> None:
    """Values and gradients of both, for a random direction backwards."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    found, expected = kernel(*leaves), plain(*leaves)
    close(found, expected, tolerance)
    direction = normals(*expected.shape, seed=9).to(expected.dtype)
    backwards = [torch.autograd.grad((out * direction).sum(), leaves) for out in (found, expected)]
    for one, other in zip(*backwards, strict=True):
        assert float(other.norm()) > 0
        close(one, other, tolerance)


@pytest.mark.parametrize(("channels", "side", "out"), [(3, 16, 6), (6, 14, 16), (1, 17, 6)])
@pytest.mark.parametrize("called", ["with lanes", "under vmap"])
def test_conv_relu_pool(channels: int, side: int, out: int, called: str) -> None:
    from fedproc.kernels.conv_pool import conv_relu_pool

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return vmap(lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2))(x, w, b)  # type: ignore[no-any-return]

    def lane(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return conv_relu_pool(x[None], w[None], b[None])[0]

    x, w, b = normals(LANES, BATCH, channels, side, side), normals(LANES, out, channels, 5, 5), normals(LANES, out)
    same_gradients(conv_relu_pool if called == "with lanes" else vmap(lane), plain, [x, 0.2 * w, b])


def test_weights_may_be_slices_of_a_longer_vector() -> None:
    from fedproc.kernels.conv_pool import conv_relu_pool

    flat, x = normals(LANES, 500), normals(LANES, BATCH, 1, 16, 16)
    w, b = flat[:, 7:157].view(LANES, 6, 1, 5, 5), flat[:, 157:163]
    assert torch.equal(conv_relu_pool(x, w, b), conv_relu_pool(x, w.contiguous(), b.contiguous()))


@GPU
def test_nan_is_not_hidden_by_pooling() -> None:
    from fedproc.kernels.conv_pool import conv_relu_pool

    x = normals(1, 1, 1, 8, 8)
    x[..., 0, 0] = torch.nan
    y = conv_relu_pool(x, torch.ones(1, 2, 1, 5, 5, device=DEVICE), torch.zeros(1, 2, device=DEVICE))
    assert y[..., 0, 0].isnan().all() and not y[..., 1, 1].isnan().any()


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("features", "out"), [(70, 40), (400, 120), (256, 10), (7, 3)])
def test_linear(features: int, out: int, relu: bool) -> None:
    from fedproc.kernels.linear import linear

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))
        return F.relu(y) if relu else y

    tensors = [normals(LANES, 5, features), normals(LANES, out, features), normals(LANES, out)]
    same_gradients(lambda x, w, b: linear(x, w, b, relu, False), plain, tensors)


@GPU
def test_bf16_is_close_and_hidden_layers_are_short() -> None:
    from fedproc.kernels.linear import linear

    kernels.set_precision("bf16")
    x, w, b = normals(LANES, 5, 64), normals(LANES, 16, 64), normals(LANES, 16)
    hidden, last = (linear(x, w, b, False, hidden) for hidden in (True, False))
    assert hidden.dtype == torch.bfloat16 and last.dtype == torch.float32
    expected = torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))
    assert 0 < float((last - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize("classes", [1, 10, 100])
def test_cross_entropies(classes: int) -> None:
    from fedproc.kernels.losses import cross_entropies

    labels = torch.arange(LANES * BATCH, device=DEVICE).view(LANES, BATCH) % classes
    logits = 30 * normals(LANES, BATCH, classes)
    found = cross_entropies(logits, labels)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(LANES, BATCH)
    close(found, expected)
    if classes > 1:
        same_gradients(
            lambda x: cross_entropies(x, labels),
            lambda x: F.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="none").view(LANES, BATCH),
            [logits],
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_mean(masked: bool, counted: bool) -> None:
    from fedproc.kernels.losses import mean, weighted_mean

    values = normals(3, 20)
    mask = normals(3, 20, seed=1) > 0 if masked else None
    among = normals(3, 20, seed=2) > 0 if counted else None
    if among is not None:
        among[1] = False  # nobody

    def plain(values: Tensor) -> Tensor:
        keep = torch.ones_like(values, dtype=torch.bool)
        for part in (mask, among):
            keep = keep if part is None else keep & part
        return (values * keep).sum(dim=-1) / keep.sum(dim=-1).clamp(min=1)

    same_gradients(lambda v: mean(v, mask, among), plain, [values])
    weight = normals(3, seed=4)
    same_gradients(lambda v: weighted_mean(v, mask, among, weight)[0], lambda v: weight * plain(v), [values])
    torch.testing.assert_close(weighted_mean(values, mask, among, weight)[1], mean(values, mask, among))


@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_note(terms: int, masked: bool) -> None:
    from fedproc.kernels.losses import note

    lanes = 130
    active = normals(lanes, seed=9) > 0 if masked else None
    losses = [normals(lanes, seed=k) for k in range(terms)]
    sums, count = normals(lanes, terms, seed=5).double(), normals(lanes, seed=6).double()
    on = torch.ones(lanes, dtype=torch.bool, device=DEVICE) if active is None else active
    added = torch.stack(losses, dim=-1).double()
    expected = torch.where(on.unsqueeze(-1), sums + added, sums), torch.where(on, count + 1, count)
    note(sums, count, active, losses)
    assert torch.equal(sums, expected[0]) and torch.equal(count, expected[1])


def test_note_of_a_single_client() -> None:
    from fedproc.kernels.losses import note

    sums, count = (
        torch.zeros(2, dtype=torch.float64, device=DEVICE),
        torch.zeros((), dtype=torch.float64, device=DEVICE),
    )
    note(sums, count, None, [torch.tensor(1.5, device=DEVICE), torch.tensor(2.0, device=DEVICE)])
    assert sums.tolist() == [1.5, 2.0] and count.item() == 1


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_contrasts(offset: bool, tau: float) -> None:
    from fedproc.kernels.losses import contrasts

    z, means = normals(LANES, BATCH, 32), normals(LANES, 5, 32)
    labels = torch.tensor([[0, 1, 2], [4, 4, 3]], device=DEVICE)
    known = torch.ones(LANES, 5, dtype=torch.bool, device=DEVICE)
    known[0, 1] = False  # the class of lane 0's second sample
    shift = normals(LANES, 5, seed=3) if offset else None

    def plain(z: Tensor) -> Tensor:
        among = None if shift is None else shift.double()
        return prototypes.contrast(z.double(), labels, means.double(), tau, known, among)[0]

    same_gradients(lambda z: contrasts(z, labels, means, tau, known, shift)[0], plain, [z])
    losses, counted = contrasts(z, labels, means, tau, known, shift)
    assert float(losses[0, 1]) == 0
    assert counted.tolist() == [[True, False, True], [True, True, True]]


def test_contrast_of_nothing_is_nothing() -> None:
    from fedproc.kernels.losses import contrasts

    z = torch.zeros(1, 2, 16, device=DEVICE, requires_grad=True)
    z.data[0, 1] = 1e30  # squares overflow
    labels, means = torch.zeros(1, 2, dtype=torch.int64, device=DEVICE), normals(1, 3, 16)
    loss, _ = contrasts(z, labels, means, 1.0, torch.ones(1, 3, dtype=torch.bool, device=DEVICE), None)
    (slope,) = torch.autograd.grad(loss.sum(), z)
    assert loss.isfinite().all() and slope.isfinite().all() and not slope[0, 0].any()
    nobody, _ = contrasts(z, labels, means, 1.0, torch.zeros(1, 3, dtype=torch.bool, device=DEVICE), None)
    assert not nobody.any()


WEIGHTS = [None, [0.5, 2.0], [0.0, 1.0]]


def lane_means(losses: Tensor, keep: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Each lane's mean over those that count, and what is minimised."""
    means = torch.where(keep, losses, 0.0).sum(dim=-1) / keep.sum(dim=-1).clamp(min=1)
    return means, means if weight is None else weight * means


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("masked", "offset"), [(True, False), (False, True), (True, True)])
def test_slopes_of_cross_entropy(weights: list[float] | None, masked: bool, offset: bool) -> None:
    """Of a batch that takes more than one block, with a lane that is at rest."""
    from fedproc.kernels.losses import cross_entropy_slopes

    batch, classes = 37, 7
    logits, slope = normals(LANES, batch, classes), normals(LANES, batch, classes, seed=1)
    labels = torch.arange(LANES * batch, device=DEVICE).view(LANES, batch) % classes
    mask = normals(LANES, batch, seed=2) > 0 if masked else None
    shift = normals(LANES, classes, seed=3) if offset else None
    weight = None if weights is None else torch.tensor(weights, device=DEVICE)
    keep = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    leaf = logits.double().requires_grad_()
    added = leaf if shift is None else leaf + shift.unsqueeze(1)
    plain = F.cross_entropy(added.flatten(0, 1), labels.flatten(), reduction="none").view(LANES, batch)
    means, minimised = lane_means(plain, keep, weight)
    share, kept = cross_entropy_slopes(logits, labels, shift, mask, weight, slope)
    assert kept is weight
    close(share.sum(dim=-1), means.detach())
    close(slope, torch.autograd.grad(minimised.sum(), leaf)[0])
    if mask is not None:
        resting = torch.zeros_like(mask)
        logits[0, 0] = torch.nan
        share, _ = cross_entropy_slopes(logits, labels, shift, resting, weight, slope)
        assert not share.any() and not slope.any()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("masked", "offset"), [(True, False), (False, True), (True, True)])
def test_slopes_of_contrast(weights: list[float] | None, masked: bool, offset: bool) -> None:
    from fedproc.kernels.losses import contrast_slopes

    batch, classes = 21, 5
    z, means, slope = normals(LANES, batch, 32), normals(LANES, classes, 32), normals(LANES, batch, 32, seed=1)
    labels = torch.arange(LANES * batch, device=DEVICE).view(LANES, batch) % classes
    known = torch.ones(LANES, classes, dtype=torch.bool, device=DEVICE)
    known[0, 1] = False
    mask = normals(LANES, batch, seed=2) > 0 if masked else None
    shift = normals(LANES, classes, seed=3) if offset else None
    weight = None if weights is None else torch.tensor(weights, device=DEVICE)
    leaf = z.double().requires_grad_()
    among = None if shift is None else shift.double()
    plain, counted = prototypes.contrast(leaf, labels, means.double(), 0.5, known, among)
    assert counted is not None and not counted.all()
    expected, minimised = lane_means(plain, counted if mask is None else counted & mask, weight)
    share, kept = contrast_slopes(z, labels, means, 0.5, known, shift, mask, weight, slope)
    assert kept is weight
    close(share.sum(dim=-1), expected.detach())
    close(slope, torch.autograd.grad(minimised.sum(), leaf)[0])


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_note_shares(terms: int, masked: bool) -> None:
    from fedproc.kernels.losses import note_shares

    lanes, batch = 5, 37
    active = normals(lanes, seed=9) > 0 if masked else None
    shares = [normals(lanes, batch, seed=k) for k in range(terms)]
    shares[0][1, 3] = torch.inf  # a loss that does not count is none
    weights = [torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5], device=DEVICE), None][:terms]
    sums, count = normals(lanes, 1 + terms, seed=5).double(), normals(lanes, seed=6).double()
    means = [share.sum(dim=-1) for share in shares]
    total = torch.where(weights[0] == 0, 0.0, weights[0] * means[0]) + sum(means[1:])
    on = torch.ones(lanes, dtype=torch.bool, device=DEVICE) if active is None else active
    added = torch.stack([total, *means], dim=-1).double()
    expected = torch.where(on.unsqueeze(-1), sums + added, sums), torch.where(on, count + 1, count)
    note_shares(sums, count, active, list(zip(shares, weights, strict=True)))
    torch.testing.assert_close(sums, expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(count, expected[1])


@pytest.mark.parametrize("augment", [*AUGMENTATIONS, "crop-flip-rotate,flip-vertical,colour"])
@pytest.mark.parametrize("channels", [3, 1])
def test_batch(augment: str, channels: int) -> None:
    """The very pixels that the plain augmentation takes, of the step the cursor is at."""
    from fedproc.kernels.batch import batch

    steps, count, side = 2, 6, 20
    rng = torch.Generator().manual_seed(1)
    bank = torch.randint(0, 256, (9, channels, side, side), dtype=torch.uint8, generator=rng).to(DEVICE)
    labels = torch.randint(0, 5, (9,), generator=rng).to(DEVICE)
    moves, levels = augmentation(augment), Normalisation((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
    index = torch.randint(0, 9, (steps, 2, count // 2), generator=rng).to(DEVICE)
    most = {"row": 9, "column": 9, "flip": 2, "flip_vertical": 2, "angle": 3001}
    draws = {
        name: torch.randint(0, most.get(name, FACTORS), index.shape, generator=rng).to(torch.int16).to(DEVICE)
        for name in moves.draw_nothing(torch.device(DEVICE))
    }
    device = torch.device(DEVICE)
    for step in range(steps):
        cursor = torch.tensor([step], device=DEVICE)
        numbers = levels.levels(torch.float32, device)
        turns = moves.turns(device)
        found, found_labels = batch(bank, labels, cursor, index, draws, turns, numbers, moves.pad, PAD, torch.float32)
        flat = index[step].flatten()
        moved = moves.apply(bank[flat], {name: values[step].flatten() for name, values in draws.items()})
        expected = levels.apply(moved, torch.float32).view_as(found)
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(found_labels, labels[index[step]])


def test_update_moves_only_active_lanes() -> None:
    from fedproc.kernels.update import sgd_

    params, gradient, velocity = normals(3, 1500), normals(3, 1500, seed=1), normals(3, 1500, seed=2)
    lr, active = torch.tensor([0.1, 0.2, 0.3], device=DEVICE), torch.tensor([True, False, True], device=DEVICE)
    wide = normals(3, 2000, seed=4)
    wide[:, :1500] = params
    expected = [tensor.double() for tensor in (params, gradient, velocity)]
    plain_sgd_(expected[0], expected[1], expected[2], lr.double(), 0.9, 1e-3, active)
    rest = wide[:, 1500:].clone()
    sgd_(wide[:, :1500], gradient, velocity, lr, 0.9, 1e-3, active)
    close(wide[:, :1500], expected[0])
    close(velocity, expected[2])
    assert torch.equal(wide[1, :1500], params[1]) and torch.equal(wide[:, 1500:], rest)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_moves_only_active_lanes(name: Literal["adam", "adamw"]) -> None:
    """Three steps beside the plain expression in float64; parameters and means are parts of longer vectors."""
    from fedproc.kernels.update import adam_

    numbers = Optimizer(name, weight_decay=0.1)
    wide, means, squares = (normals(3, 2000, seed=seed) for seed in (0, 1, 2))
    squares.abs_()
    start, lr = wide.clone(), torch.tensor([0.1, 0.2, 0.3], device=DEVICE)
    here = slice(0, 1500)
    expected, state = (
        wide[:, here].double(),
        {"velocity": means[:, here].double(), "squares": squares[:, here].double()},
    )
    state["updates"] = torch.tensor([0, 5, 2], device=DEVICE)
    active = torch.tensor([True, False, True], device=DEVICE)
    for step in range(3):
        gradient = normals(3, 1500, seed=3 + step)
        plain_adam_(expected, gradient.double(), state, lr.double(), numbers, active)
        counted = state["updates"].double()
        size, root = (lr / (1 - 0.9**counted)).float(), (1 - 0.999**counted).sqrt().float()
        constants = (0.9, 0.999, 1e-8, 0.1)
        adam_(
            wide[:, here],
            gradient,
            means[:, here],
            squares[:, here],
            lr,
            size,
            root,
            active,
            constants,
            name == "adamw",
        )
    close(wide[:, here], expected)
    close(means[:, here], state["velocity"])
    close(squares[:, here], state["squares"])
    assert torch.equal(wide[1], start[1]) and torch.equal(wide[:, 1500:], start[:, 1500:])
    assert state["updates"].tolist() == [3, 5, 5]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(3, 70, 5, 5), (6, 16, 1, 2), (4, 3, 9, 8)])
def test_norm_relu(shape: tuple[int, ...], added: bool) -> None:
    from fedproc.kernels.norm import norm_relu

    channels = shape[1]
    running = [normals(channels, seed=5), normals(channels, seed=6).abs()]
    after = [[tensor.clone() for tensor in running] for _ in range(2)]

    def last(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=torch.channels_last)

    def kernel(x: Tensor, w: Tensor, b: Tensor, *add: Tensor) -> Tensor:
        return norm_relu(last(x), w, b, last(add[0]) if add else None, *after[0], 0.1, 1e-5)

    def plain(x: Tensor, w: Tensor, b: Tensor, *add: Tensor) -> Tensor:
        return F.relu(sum(add, F.batch_norm(x, *after[1], w, b, True, 0.1, 1e-5)))

    tensors = [2 + 3 * normals(*shape), normals(channels, seed=1), normals(channels, seed=2)]
    same_gradients(kernel, plain, [*tensors, normals(*shape, seed=3)] if added else tensors, 2e-5)
    for one, other in zip(*after, strict=True):
        close(one, other)


def test_hash_gives_the_streams_bits() -> None:
    from fedproc.kernels import hash as kernel

    epochs, positions = torch.arange(3, device=DEVICE), torch.tensor([[5, 0], [7, 1], [2, 9000]], device=DEVICE)
    for at in (0, 1, 2**63 + 12345, 2**64 - 1):
        folded = streams.fold_tensor(at, epochs).unsqueeze(-1)
        drawn = kernel.draws(streams.signed(at), epochs, positions, 3001)
        expected = streams.integers(streams.fold_tensor(folded, positions), 3001)
        assert drawn.dtype == torch.int16 and torch.equal(drawn.long(), expected)
        bits = kernel.bits(streams.signed(at), epochs, 11)
        assert torch.equal(bits, streams.fold_tensor(folded, torch.arange(11, device=DEVICE)))
