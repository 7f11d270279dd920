"""The C kernels do what torch's layers do, and torch does the work where there is no compiler."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc import prototypes, streams
from fedproc.data.augment import AUGMENTATIONS, FACTORS, PAD, Normalisation, augmentation
from fedproc.kernels import cpu
from fedproc.methods.fedavg import cross_entropies
from fedproc.networks.layers import ConvReluPool

without = cpu.missing()
pytestmark = pytest.mark.skipif(without is not None, reason=f"no C kernels here: {without}")


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("channels", "side", "out", "kernel"),
    [
        *[(3, 32, 6, 5), (6, 14, 16, 5), (1, 28, 6, 5), (2, 11, 20, 5), (3, 13, 33, 3), (4, 9, 1, 7), (5, 6, 3, 1)],
        *[(1, 45, 8, 5), (2, 75, 7, 3), (6, 31, 17, 5), (1, 6, 2, 5)],
    ],
)
def test_conv_relu_pool(channels: int, side: int, out: int, kernel: int) -> None:
    x, bias = normals(3, channels, side, side).requires_grad_(), normals(out).requires_grad_()
    w = (0.2 * normals(out, channels, kernel, kernel, seed=1)).requires_grad_()
    found, expected = cpu.conv_relu_pool(x, w, bias), F.max_pool2d(F.relu(F.conv2d(x, w, bias)), 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(cpu.conv_relu_pool(x, w, bias), found)
    direction = normals(*expected.shape, seed=2)
    both = [torch.autograd.grad((y * direction).sum(), (x, w, bias)) for y in (found, expected)]
    for one, other in zip(*both, strict=True):
        assert float(other.norm()) > 0
        assert float((one - other).norm()) <= 1e-5 * float(other.norm())


def test_nan_is_not_hidden_by_pooling() -> None:
    x = normals(1, 1, 8, 8)
    x[..., 3, 3] = torch.nan
    y = cpu.conv_relu_pool(x, torch.ones(2, 1, 3, 3), torch.zeros(2))
    assert torch.equal(y.isnan(), F.max_pool2d(F.conv2d(x, torch.ones(2, 1, 3, 3)), 2).isnan())


@pytest.mark.parametrize("augment", [*AUGMENTATIONS, "crop-flip-rotate,flip-vertical,colour"])
@pytest.mark.parametrize("channels", [1, 3])
def test_batch_takes_the_very_pixels(augment: str, channels: int) -> None:
    rng = torch.Generator().manual_seed(1)
    bank = torch.randint(0, 256, (9, channels, 20, 18), dtype=torch.uint8, generator=rng)
    index = torch.randint(0, 9, (50,), generator=rng)
    moves, levels = augmentation(augment), Normalisation((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
    here = torch.device("cpu")
    most = {"row": 9, "column": 9, "flip": 2, "flip_vertical": 2, "angle": 3001}
    draws = {
        name: torch.randint(0, most.get(name, FACTORS), (50,), generator=rng).to(torch.int16)
        for name in moves.draw_nothing(here)
    }
    numbers = levels.levels(torch.float32, here)
    by_step = {name: drawn.view(2, 25) for name, drawn in draws.items()}
    batches = cpu.Batches(bank, index.view(2, 25), by_step, moves.turns(here), numbers, moves.pad, PAD)
    found = torch.cat([batches[step].clone() for step in range(2)])
    assert torch.equal(found, levels.apply(moves.apply(bank[index], draws), torch.float32))


@pytest.mark.parametrize(("samples", "classes", "features", "calibrated"), [(32, 10, 256, False), (7, 3, 19, True)])
def test_contrast_is_the_plain_expression(samples: int, classes: int, features: int, calibrated: bool) -> None:
    z, weights = normals(samples, features), normals(samples, seed=1)
    z[1], z[2] = 0.0, 1e30  # without a direction; squares past float32
    own, known = normals(classes, features, seed=2), torch.arange(classes) != 1
    own[0] = 0.0
    labels, offset = torch.arange(samples) % classes, normals(classes, seed=3) if calibrated else None

    def found() -> tuple[Tensor, Tensor, Tensor]:
        at = z.clone().requires_grad_()
        losses, counted = prototypes.contrast(at, labels, own, 0.5, known, offset)
        (slope,) = torch.autograd.grad((losses * weights).sum(), at)
        return losses.detach(), counted, slope

    ours = found()
    with cpu.torch_only():
        theirs = found()
    assert torch.equal(ours[1], theirs[1]) and not bool(ours[1].all())
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-4, atol=1e-7)
    assert float(theirs[2].norm()) > 0 and not bool(ours[2][1].any())


@pytest.mark.parametrize(("samples", "classes"), [(32, 10), (1, 2), (7, 33)])
def test_cross_entropies(samples: int, classes: int) -> None:
    logits, weights = (30 * normals(samples, classes)).requires_grad_(), normals(samples, seed=1)
    labels = torch.arange(samples) % classes
    found, expected = cpu.cross_entropies(logits, labels), F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad((losses * weights).sum(), logits)[0] for losses in (found, expected)]
    torch.testing.assert_close(*slopes)
    sums = torch.tensor([1.0, 7.0, 2.0], dtype=torch.float64)
    offset = normals(classes, seed=2)
    slope = cpu.cross_entropy_mean(logits.detach(), labels, offset, 0.3, sums, 2)
    whole = cpu.cross_entropies(logits + offset, labels).mean()
    (wanted,) = torch.autograd.grad(0.3 * whole, logits)
    assert torch.equal(slope, wanted)
    mean = whole.item()
    assert sums.tolist() == pytest.approx([1 + 0.3 * mean, 7, 2 + mean], rel=1e-6)


@pytest.mark.parametrize("known", [[True, True, True], [True, False, True], [False, False, False]])
def test_the_mean_of_contrasts_that_count(known: list[bool]) -> None:
    z, own, labels = normals(7, 19).requires_grad_(), normals(3, 19, seed=1), torch.arange(7) % 3
    among, offset, sums = torch.tensor(known), normals(3, seed=2), torch.zeros(2, dtype=torch.float64)
    slope = cpu.contrast_mean(z.detach(), labels, own, 0.5, among, offset, 0.3, sums, 1)
    losses, counted = prototypes.contrast(z, labels, own, 0.5, among, offset)
    mean = losses.sum() / max(1, int(among[labels].sum()))
    (wanted,) = torch.autograd.grad(0.3 * mean, z)
    assert counted is None or counted.tolist() == among[labels].tolist()
    torch.testing.assert_close(slope, wanted)
    assert sums.tolist() == pytest.approx([0.3 * mean.item(), mean.item()], rel=1e-6)


def test_without_its_weight_a_loss_moves_nothing() -> None:
    logits, sums = torch.full((2, 3), torch.nan), torch.zeros(2, dtype=torch.float64)
    assert not bool(cpu.cross_entropy_mean(logits, torch.tensor([0, 1]), None, 0.0, sums, 1).any())
    assert float(sums[0]) == 0 and bool(sums[1].isnan())


@pytest.mark.parametrize("masked", [False, True])
def test_class_sums(masked: bool) -> None:
    z, labels = normals(23, 19), torch.arange(23) % 4
    mask = torch.arange(23) % 3 != 0 if masked else None
    if mask is not None:
        z[~mask] = torch.nan
    found = cpu.class_sums(z, labels, 5, mask)
    with cpu.torch_only():
        expected = prototypes.class_sums(z, labels, 5, mask)
    torch.testing.assert_close(found, expected)
    assert found[1].tolist()[4] == 0 and found[0].dtype == torch.float64


def test_a_steps_images_lie_where_the_last_ones_did() -> None:
    bank = torch.arange(4 * 2, dtype=torch.uint8).view(4, 1, 2, 1)
    levels = (torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    batches = cpu.Batches(bank, torch.tensor([[0, 1], [3, 2]]), {}, None, levels, None, PAD)
    first = batches[0]
    assert first.flatten().tolist() == [0, 1, 2, 3]
    assert batches[1].flatten().tolist() == [6, 7, 4, 5] and batches[1].data_ptr() == first.data_ptr()


def test_contrast_hands_nan_on() -> None:
    z, known = normals(2, 8), torch.ones(3, dtype=torch.bool)
    z[0, 3] = torch.nan
    losses, _ = prototypes.contrast(z, torch.tensor([0, 1]), normals(3, 8, seed=1), 1.0, known)
    assert losses.isnan().tolist() == [True, False]


def test_update_is_torchs_to_the_bit() -> None:
    params, velocity = normals(1003), torch.zeros(1003)
    theirs = torch.nn.Parameter(params.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.05, momentum=0.9, weight_decay=1e-3)
    for step in range(5):
        gradient = normals(1003, seed=step)
        theirs.grad = gradient.clone()
        optimizer.step()
        cpu.sgd_(params, gradient, velocity, 0.05, 0.9, 1e-3)
    assert torch.equal(params, theirs.data)


def test_hash_gives_the_streams_bits() -> None:
    epochs, positions = torch.arange(3), torch.tensor([[5, 0], [7, 1], [2, 9000]])
    for at in (0, 1, 2**63 + 12345, 2**64 - 1):
        folded = streams.fold_tensor(at, epochs).unsqueeze(-1)
        expected = streams.integers(streams.fold_tensor(folded, positions), 3001)
        assert torch.equal(cpu.draws(at, epochs, positions, 3001).long(), expected)
        assert torch.equal(cpu.bits(at, epochs, 11), streams.fold_tensor(folded, torch.arange(11)))


def test_float64_and_vmap_are_torchs() -> None:
    assert cpu.usable(torch.zeros(1)) and not cpu.usable(torch.zeros(1, dtype=torch.float64))
    with cpu.torch_only():
        assert not cpu.usable(torch.zeros(1))
    assert cpu.usable(torch.zeros(1))


@pytest.fixture
def afresh() -> Iterator[None]:
    cpu._library.cache_clear()
    yield
    cpu._library.cache_clear()


@pytest.mark.usefixtures("afresh")
def test_without_a_compiler_torch_does_the_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in (cpu.missing() or "") and not cpu.usable(torch.zeros(1))


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo broken >&2\nexit 3\n", "broken"),
        ("echo >&2\nexit 3\n", "returned non-zero exit status 3"),
        ("printf '\\377'\n", "can't decode byte 0xff"),  # of its version
    ],
)
def test_a_compiler_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\n{script}")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    missing = cpu.missing() or ""
    assert missing.startswith("cc cannot compile here (") and said in missing


def test_a_fresh_cache_is_filled_once(tmp_path: Path) -> None:
    """By two processes at the same time, as two runs that start together."""
    code = "from fedproc.kernels import cpu; assert cpu.missing() is None, cpu.missing()"
    made = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "FEDPROC_CACHE": str(tmp_path)})
        for _ in range(2)
    ]
    assert [process.wait() for process in made] == [0, 0]
    assert len(list((tmp_path / "kernels").iterdir())) == 2  # the library, and its hash


@pytest.mark.parametrize("damage", ["cut", "a byte", "no hash"])
def test_a_damaged_library_is_compiled_again_and_never_loaded(tmp_path: Path, damage: str) -> None:
    """A cut one that is loaded ends the process by SIGBUS, without a word."""
    code = "import torch; from fedproc.kernels import cpu; assert cpu.missing() is None, cpu.missing(); "
    code += "print(cpu.bits(1, torch.zeros(1, dtype=torch.int64), 3))"

    def said() -> str:
        env = {**os.environ, "FEDPROC_CACHE": str(tmp_path)}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    first = said()
    (library,) = (tmp_path / "kernels").glob("*.so")
    whole = library.read_bytes()
    if damage == "cut":
        library.write_bytes(whole[: len(whole) // 2])
    elif damage == "a byte":
        library.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    else:
        library.with_suffix(".sha256").unlink()
    assert said() == first
    assert len(library.read_bytes()) == len(whole)
    assert library.with_suffix(".sha256").read_text() == hashlib.sha256(library.read_bytes()).hexdigest()


@pytest.mark.parametrize("wrong", [3, -1, 2**40])
def test_labels_that_are_no_classes_are_refused(wrong: int) -> None:
    logits, z, labels = torch.randn(4, 3), torch.randn(4, 19), torch.tensor([0, 1, wrong, 2])
    own, known = torch.randn(3, 19), torch.ones(3, dtype=torch.bool)
    with pytest.raises(IndexError, match="none of the classes"):
        cpu.cross_entropies(logits, labels)
    with pytest.raises(IndexError, match="none of the classes"):
        cpu.cross_entropy_mean(logits, labels, None, 1.0, torch.zeros(2, dtype=torch.float64), 1)
    with pytest.raises(IndexError, match="none of the classes"):
        prototypes.contrast(z, labels, own, 0.5, known)


def test_labels_of_other_types_are_torchs() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    assert torch.allclose(cross_entropies(logits, labels.to(torch.uint8)), cross_entropies(logits, labels), atol=1e-6)
    with pytest.raises(RuntimeError):
        cross_entropies(logits, labels.to(torch.int32))


def test_the_gradient_of_a_cross_entropys_gradient() -> None:
    labels = torch.tensor([0, 2, 1])

    def second(values: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        logits = torch.arange(9.0).view(3, 3).mul_(0.3).requires_grad_()
        (slope,) = torch.autograd.grad(values(logits, labels).sum(), logits, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), logits)[0]

    expected = second(partial(F.cross_entropy, reduction="none"))
    assert torch.allclose(second(cross_entropies), expected, atol=1e-6) and bool(expected.abs().sum() > 0)
    of = torch.func.grad(lambda logits: cross_entropies(logits, labels).sum())(torch.zeros(3, 3))
    assert torch.allclose(of, torch.full((3, 3), 1 / 3) - F.one_hot(labels, 3), atol=1e-6)


def test_the_gradient_of_a_contrasts_gradient() -> None:
    labels, own, known = torch.tensor([0, 2, 1, 0]), normals(3, 19), torch.tensor([True, True, False])

    def second() -> Tensor:
        z = normals(4, 19, seed=1).requires_grad_()
        losses, _ = prototypes.contrast(z, labels, own, 0.5, known)
        (slope,) = torch.autograd.grad(losses.sum(), z, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), z)[0]

    found = second()
    with cpu.torch_only():
        expected = second()
    assert torch.allclose(found, expected, atol=1e-6) and bool(expected.abs().sum() > 0)


def test_the_gradient_of_a_convolutions_gradient() -> None:
    """Also of images that do not lie one after the other."""
    images = normals(2, 8, 8, 3).permute(0, 3, 1, 2)

    def second(values: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        weight, bias = normals(4, 3, 3, 3, seed=1).requires_grad_(), normals(4, seed=2).requires_grad_()
        slopes = torch.autograd.grad(values(images, weight, bias).square().sum(), (weight, bias), create_graph=True)
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (weight, bias)))

    expected = second(lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2))
    for found, wanted in zip(second(cpu.conv_relu_pool), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)
        assert bool(wanted.abs().sum() > 0)


def test_images_and_weights_that_do_not_fit_are_torchs() -> None:
    layer = ConvReluPool(3, 6, 5)
    for wrong in (torch.zeros(2, 1, 12, 12), torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 5, 5)):
        with pytest.raises(RuntimeError):
            layer(wrong)
    with pytest.raises(RuntimeError):
        layer.double()(torch.zeros(2, 3, 12, 12))
    single = normals(3, 12, 12)
    layer.float()
    torch.testing.assert_close(layer(single), layer(single.unsqueeze(0)).squeeze(0), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_together_is_torchs() -> None:
    """C would read past ends, or other numbers."""
    z, labels, own = normals(4, 19), torch.tensor([0, 2, 1, 0]), normals(3, 19, seed=1)
    known, offset = torch.tensor([True, True, False]), normals(3, seed=2)
    expected, _ = prototypes.contrast(z, labels, own, 0.5, known, offset)
    found, _ = prototypes.contrast(z, labels, own, 0.5, known, offset.double())
    assert torch.allclose(found, expected.double(), atol=1e-6)
    for wrong in (
        {"prototypes": normals(3, 64)}, {"prototypes": normals(3, 8)}, {"offset": torch.ones(())},
        {"known": known.long()}, {"labels": labels[:3]}, {"labels": labels.int()},
    ):  # fmt: skip
        given = {"z": z, "labels": labels, "prototypes": own, "known": known, "offset": offset} | wrong
        with pytest.raises((RuntimeError, IndexError, ValueError)):
            prototypes.contrast(tau=0.5, **given)
    for count in (3, 5):
        with pytest.raises(ValueError, match="batch_size"):
            cross_entropies(normals(4, 3), torch.zeros(count, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_class_sums_of_labels_of_any_type(dtype: torch.dtype) -> None:
    z, labels = normals(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])
    sums, counts = prototypes.class_sums(z, labels.to(dtype), 3, torch.ones(6, dtype=torch.bool))
    assert counts.tolist() == [2, 2, 2]
    torch.testing.assert_close(sums, (z[:3] + z[3:]).double(), rtol=1e-6, atol=1e-6)
    with pytest.raises(RuntimeError):
        prototypes.class_sums(z, labels, 3, torch.ones(6))


def test_losses_of_large_logits() -> None:
    logits = torch.tensor([[1e4, 1e4], [100.0, 85.0]])
    expected = F.cross_entropy(logits.double(), torch.tensor([0, 0]), reduction="none")
    torch.testing.assert_close(
        cpu.cross_entropies(logits, torch.tensor([0, 0])).double(), expected, rtol=0, atol=2e-7
    )  # fmt: skip


def test_images_smaller_than_what_is_read_at_once() -> None:
    for channels, height, width in ((1, 5, 5), (1, 5, 6), (2, 3, 3)):
        x, w, b = torch.randn(3, channels, height, width), torch.randn(4, channels, 2, 2), torch.randn(4)
        expected = F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)
        assert torch.allclose(cpu.conv_relu_pool(x, w, b), expected, atol=1e-5)
    assert cpu.conv_relu_pool(torch.empty(0, 1, 8, 8), torch.randn(4, 1, 3, 3), torch.randn(4)).shape == (0, 4, 3, 3)
