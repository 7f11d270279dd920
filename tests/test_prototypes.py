from __future__ import annotations

import math

import pytest
import torch

from fedproc import prototypes
from fedproc.prototypes import (
    Sums,
    Weighting,
    add_means,
    class_means,
    class_sums,
    from_sums,
    nearest,
    prototype_loss,
    unit,
)


def test_loss_by_hand() -> None:
    # z along the first axis; prototypes along +x, +y, -x: cosines 1, 0, -1
    z = torch.tensor([[2.0, 0.0]])
    c = torch.tensor([[5.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    total = math.exp(1) + 1 + math.exp(-1)
    for label, cosine in enumerate((1.0, 0.0, -1.0)):
        loss = prototype_loss(z, torch.tensor([label]), c)
        assert loss.item() == pytest.approx(math.log(total) - cosine, abs=1e-6)


def test_tau_divides_the_cosines() -> None:
    z, c = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # cosines 1 and 0 over tau 0.5: log(e^2 + 1) - 2
    assert prototype_loss(z, torch.tensor([0]), c, tau=0.5).item() == pytest.approx(math.log(math.exp(2) + 1) - 2)


def test_tau_may_be_a_tensor_through_which_a_gradient_flows() -> None:
    made = torch.Generator().manual_seed(0)
    z, c = (torch.randn(rows, 4, generator=made) for rows in (6, 3))
    labels, known = torch.arange(6) % 3, torch.ones(3, dtype=torch.bool)
    tau, offset = torch.tensor(0.5, requires_grad=True), torch.zeros(3, requires_grad=True)
    expected = prototypes.contrast(z, labels, c, 0.5, known)[0]
    torch.testing.assert_close(prototypes.contrast(z, labels, c, tau, known)[0], expected)
    losses = prototypes.contrast(z, labels, c, tau, known, offset)[0]
    torch.testing.assert_close(losses, expected)
    losses.sum().backward()
    step = 1e-2
    up, down = (float(prototypes.contrast(z, labels, c, 0.5 + s, known)[0].sum()) for s in (step, -step))
    assert tau.grad is not None and float(tau.grad) == pytest.approx((up - down) / (2 * step), rel=1e-2)
    shares = torch.softmax(prototypes.similarities(z, c) / 0.5, dim=-1) - torch.nn.functional.one_hot(labels)
    torch.testing.assert_close(offset.grad, shares.sum(dim=0))


def test_unknown_class_is_out_of_the_denominator_and_counts_nothing() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    c = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    known = torch.tensor([True, True, False])
    loss = prototype_loss(z, torch.tensor([0, 2]), c, known=known)
    assert loss[0].item() == pytest.approx(math.log(math.e + 1) - 1)
    assert loss[1].item() == 0.0
    loss.sum().backward()
    assert z.grad is not None and z.grad[1].abs().max() == 0
    assert z.grad[0].abs().max() > 0


def test_no_class_known_gives_zero_with_zero_gradient() -> None:
    z = torch.randn(3, 4, requires_grad=True)
    loss = prototype_loss(z, torch.tensor([0, 1, 0]), torch.zeros(2, 4), known=torch.zeros(2, dtype=torch.bool))
    loss.sum().backward()
    assert loss.tolist() == [0, 0, 0]
    assert z.grad is not None and z.grad.abs().max() == 0


def test_zero_vector_has_cosine_zero_and_no_gradient() -> None:
    z = torch.zeros(1, 2, requires_grad=True)
    loss = prototype_loss(z, torch.tensor([0]), torch.eye(2))
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert z.grad is not None and z.grad.tolist() == [[0.0, 0.0]]
    # a prototype that is zero has cosine 0 with everything
    assert prototype_loss(
        torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    ).item() == (pytest.approx(math.log(math.e + 1)))


def test_gradient_by_hand() -> None:
    # z = (r, 0), prototypes the axes: cosines (1, 0), softmax p = (e, 1)/(e + 1).
    # d cos_k / dz = (c_k - cos_k * z/|z|)/|z|: for k = 0 it is (0, 0), for k = 1 it is (0, 1/r).
    # loss = -log p_0, so dloss/dz = p_1 * (0, 1/r) for label 0.
    r = 2.0
    z = torch.tensor([[r, 0.0]], dtype=torch.float64, requires_grad=True)
    prototype_loss(z, torch.tensor([0]), torch.eye(2, dtype=torch.float64)).sum().backward()
    p1 = 1 / (math.e + 1)
    assert z.grad is not None
    assert z.grad[0].tolist() == pytest.approx([0.0, p1 / r], abs=1e-12)


def test_gradient_agrees_with_differences() -> None:
    torch.manual_seed(0)
    z = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    c, labels = torch.randn(4, 7, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    known = torch.tensor([True, True, False, True])
    torch.autograd.gradcheck(lambda v: prototype_loss(v, labels, c, 0.3, known), (z,))


def test_no_gradient_through_prototypes() -> None:
    c = torch.eye(2, requires_grad=True)
    z = torch.ones(1, 2, requires_grad=True)
    prototype_loss(z, torch.tensor([0]), c).sum().backward()
    assert c.grad is None


def test_length_of_z_does_not_matter() -> None:
    c, labels = torch.eye(2), torch.tensor([0])
    losses = [prototype_loss(scale * torch.tensor([[3.0, 4.0]]), labels, c).item() for scale in (1e-30, 1.0, 1e30)]
    assert losses == pytest.approx([losses[1]] * 3)


def test_non_finite() -> None:
    assert prototype_loss(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), torch.eye(2)).isnan().all()
    with pytest.raises(ValueError, match="finite"):
        prototype_loss(torch.ones(1, 2), torch.tensor([0]), torch.tensor([[math.inf, 0.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="tau 0"):
        prototype_loss(torch.ones(1, 2), torch.tensor([0]), torch.eye(2), tau=0)


def test_orientation_at_tau_one() -> None:
    # uniform similarities give log K; a perfect simplex has cosine -1/(K-1) with the others (SPEC section 2)
    k = 10
    assert prototype_loss(torch.zeros(1, 3), torch.tensor([0]), torch.ones(k, 3)).item() == pytest.approx(math.log(k))
    simplex = torch.eye(k) - 1 / k
    loss = prototype_loss(simplex[:1], torch.tensor([0]), simplex).item()
    assert loss == pytest.approx(math.log(math.e + 9 * math.exp(-1 / 9)) - 1, abs=1e-6)
    assert loss == pytest.approx(1.377, abs=1e-3)


def test_lanes_are_independent() -> None:
    torch.manual_seed(1)
    z, c = torch.randn(3, 5, 6), torch.randn(3, 4, 6)
    labels, known = torch.randint(0, 4, (3, 5)), torch.rand(3, 4) > 0.3
    together = prototypes.contrast(z, labels, c, 0.7, known)[0]
    for lane in range(3):
        alone = prototypes.contrast(z[lane], labels[lane], c[lane], 0.7, known[lane])[0]
        torch.testing.assert_close(together[lane], alone)


def test_class_means_by_hand() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 10.0], [99.0, 99.0]])
    labels, mask = torch.tensor([0, 0, 2, 2]), torch.tensor([True, True, True, False])
    sums, counts = class_sums(z, labels, 3, mask)
    assert counts.tolist() == [2, 0, 1]
    assert class_means(sums, counts).tolist() == [[2.0, 3.0], [0.0, 0.0], [10.0, 10.0]]


def averaged(
    means: list[torch.Tensor], counts: list[torch.Tensor], weighting: Weighting
) -> tuple[torch.Tensor, torch.Tensor]:
    sums: Sums | None = None
    for mean, count in zip(means, counts, strict=True):
        sums = add_means(sums, mean, count, weighting)
    assert sums is not None
    return from_sums(sums, means[0].dtype)


def test_averages_by_hand() -> None:
    # class 0: means 1 and 4 held by 1 and 3 samples; class 1 held by the second client alone; class 2 by nobody
    means = [torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[4.0], [6.0], [0.0]])]
    counts = [torch.tensor([1, 0, 0]), torch.tensor([3, 2, 0])]
    uniform, known = averaged(means, counts, "uniform")
    assert uniform.flatten().tolist() == [2.5, 6.0, 0.0]
    assert known.tolist() == [True, True, False]
    weighted, _ = averaged(means, counts, "count")
    assert weighted.flatten().tolist() == [(1 * 1 + 3 * 4) / 4, 6.0, 0.0]


def test_nearest_only_among_known() -> None:
    z, c = torch.tensor([[1.0, 0.1], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert nearest(z, c, torch.tensor([True, True, True])).tolist() == [0, 2]
    assert nearest(z, c, torch.tensor([False, True, False])).tolist() == [1, 1]


def test_unit() -> None:
    torch.testing.assert_close(unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
