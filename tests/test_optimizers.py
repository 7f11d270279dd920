"""Each optimizer takes torch's steps; lanes that are not at work stay where they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedproc.optimizers import NAMES, Optimizer, first_state

THEIRS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CASES = {
    "sgd": Optimizer("sgd", momentum=0.9, weight_decay=0.01),
    "sgd without momentum": Optimizer("sgd"),
    "adam": Optimizer("adam"),
    "adam with decay": Optimizer("adam", weight_decay=0.1),
    "adam with other numbers": Optimizer("adam", beta1=0.5, beta2=0.9, epsilon=1e-3),
    "adamw": Optimizer("adamw", weight_decay=0.1),
}


def theirs(ours: Optimizer, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    given = {"lr": lr, "weight_decay": ours.weight_decay}
    if ours.name == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=ours.momentum, **given)
    return THEIRS[ours.name](model.parameters(), betas=(ours.beta1, ours.beta2), eps=ours.epsilon, **given)  # type: ignore[call-arg]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("case", CASES)
def test_a_network_is_trained_as_torch_trains_it(case: str) -> None:
    ours, model, lr = CASES[case], small_net(), 0.05
    optimizer = theirs(ours, model, lr)
    params = flat(list(model.parameters()))
    state = first_state(ours.name, params)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()
        gradient = flat([p.grad for p in model.parameters() if p.grad is not None])
        optimizer.step()
        ours.step_(params, gradient, state, torch.tensor(lr, dtype=torch.float64), None)
        torch.testing.assert_close(params, flat(list(model.parameters())), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_lanes_that_rest_keep_everything_and_count_their_own_steps(name: str) -> None:
    """Two lanes side by side, the second of which rests every other step, are two clients alone."""
    ours = Optimizer(name, momentum=0.9 if name == "sgd" else 0.0, weight_decay=0.1)  # type: ignore[arg-type]
    lr = torch.tensor([0.1, 0.02], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    params, state = start.clone(), first_state(name, start)
    alone = [(row.clone(), first_state(name, row)) for row in start]
    for step in range(6):
        gradients = torch.randn(2, 6, generator=generator, dtype=torch.float64)
        active = torch.tensor([True, step % 2 == 1])
        gradients[~active] = torch.nan  # of padding anything may come
        ours.step_(params, gradients, state, lr, active)
        for lane in active.nonzero().flatten().tolist():
            ours.step_(alone[lane][0], gradients[lane], alone[lane][1], lr[lane], None)
        for lane in (0, 1):
            torch.testing.assert_close(params[lane], alone[lane][0], rtol=1e-13, atol=0)
            for key, tensor in state.items():
                torch.testing.assert_close(tensor[lane], alone[lane][1][key], rtol=1e-13, atol=0)
    if "updates" in state:
        assert state["updates"].tolist() == [6, 3]


def test_the_first_step_of_adam_by_hand() -> None:
    params, state = torch.tensor([1.0, 2.0], dtype=torch.float64), first_state("adamw", torch.zeros(2).double())
    gradient = torch.tensor([0.3, -4.0], dtype=torch.float64)
    Optimizer("adamw", weight_decay=0.1, epsilon=1e-12).step_(
        params, gradient, state, torch.tensor(0.5, dtype=torch.float64), None
    )
    # shrunk by 1 - 0.5 * 0.1, then a step of lr against the sign of the gradient, whatever its length
    assert params.tolist() == pytest.approx([0.95 - 0.5, 1.9 + 0.5], rel=1e-9)
