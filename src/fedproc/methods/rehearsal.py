"""The client's hooks, tried out before anything is trained with them: for two clients side by side, one with a padded
batch, they must give what they give for each alone; nothing of it may be infinite, and gradients must come out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedproc.errors import MethodError
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.method import Batch, Local
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights

REAL = (3, 4)  # samples of the two clients' batches; the first is padded to the second's
PADDING = 1e3  # what padded samples hold


def rehearse(checked: CheckedClient, local: Local) -> None:
    """`local` is a client at the start of a phase, on the CPU, without a lane axis; the other is made up from it."""
    problem = checked.method.client
    clients = [local, _another(local)]
    pair = _side_by_side(clients)
    dtype = local.weights.params.dtype
    generator = torch.Generator().manual_seed(0)

    def drawn(width: int) -> Tensor:
        values = torch.randn(2, REAL[1], width, generator=generator, dtype=torch.float64).to(dtype)
        values[0, REAL[0] :] = PADDING
        return values

    z, logits = drawn(problem.features), drawn(problem.classes)
    labels = torch.arange(2 * REAL[1]).view(2, -1) % problem.classes
    mask = torch.arange(REAL[1]) < torch.tensor(REAL).unsqueeze(-1)
    frozen = (z.flip(-1), logits.flip(-1))
    together = Batch(z.requires_grad_(), logits.requires_grad_(), labels, mask, partial(_given, frozen))
    gradients = torch.stack([0.1 * client.weights.params + 0.01 for client in clients])
    found = _results(checked, together, pair, gradients)
    _check_gradient(checked, found["loss"]["total"], (z, logits))
    for lane, client in enumerate(clients):
        real = slice(REAL[lane])
        here = (frozen[0][lane, real], frozen[1][lane, real])
        batch = Batch(z[lane, real], logits[lane, real], labels[lane, real], None, partial(_given, here))
        alone = _results(checked, batch, client, gradients[lane])
        for hook, tensors in alone.items():
            for name, tensor in tensors.items():
                _check_finite(checked, hook, name, tensor)
                _check_same(checked, hook, found[hook][name][lane], tensor)
    _check_parameters(checked, batch, client)


def _results(checked: CheckedClient, batch: Batch, local: Local, gradient: Tensor) -> dict[str, Tensors]:
    """What each hook gives, copied: what one call changes is not another's."""
    total, terms = checked.loss(batch, local)
    found: dict[str, Tensors] = {"loss": {"total": total, **dict(zip(checked.term_names(), terms, strict=True))}}
    found["correct"] = {"gradient": checked.correct(gradient.clone(), local).clone()}
    if checked.moves:
        found["displace"] = {"displacement": checked.displace(gradient.clone(), local).clone()}
    if local.phase.returns:
        found["reply"] = {name: tensor.clone() for name, tensor in checked.reply(local).items()}
    found["next_client_state"] = dict(checked.next_state(local))
    return found


def _given(outputs: tuple[Tensor, Tensor], weights: Weights) -> tuple[Tensor, Tensor]:
    return outputs


def _another(local: Local) -> Local:
    """A second client: all of its numbers are others."""

    def other(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bool:
            return ~tensor
        return 1.05 * tensor + 0.01 if tensor.is_floating_point() else tensor

    def all_other(tensors: Tensors) -> Tensors:
        return {name: other(tensor) for name, tensor in tensors.items()}

    counts = local.class_counts.flip(-1) + 1
    return replace(
        local,
        start=Weights.of(all_other(local.start.tensors())),
        weights=Weights.of(all_other(local.weights.tensors())),
        optimizer=all_other(local.optimizer),
        sent=all_other(local.sent),
        settings=all_other(local.settings),
        state=all_other(local.state),
        steps=local.steps + 3,
        class_counts=counts,
        log_shares=(counts / counts.sum()).log(),
    )


def _side_by_side(clients: list[Local]) -> Local:
    """Clients as lanes: every tensor has a leading axis."""

    def both(tensors: list[Tensors]) -> Tensors:
        return {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]}

    return replace(
        clients[0],
        start=Weights.of(both([client.start.tensors() for client in clients])),
        weights=Weights.of(both([client.weights.tensors() for client in clients])),
        optimizer=both([client.optimizer for client in clients]),
        sent=both([client.sent for client in clients]),
        settings=both([client.settings for client in clients]),
        state=both([client.state for client in clients]),
        steps=torch.stack([client.steps for client in clients]),
        class_counts=torch.stack([client.class_counts for client in clients]),
        log_shares=torch.stack([client.log_shares for client in clients]),
    )


def _fail(checked: CheckedClient, hook: str, reason: str) -> None:
    raise MethodError(checked.method.name, hook, reason, checked)


def _check_same(checked: CheckedClient, hook: str, of_two: Tensor, of_one: Tensor) -> None:
    tolerance = 1e-4 if of_one.dtype == torch.float32 else 1e-9
    fine = of_two.shape == of_one.shape and (
        torch.allclose(of_two, of_one, tolerance, tolerance)
        if of_one.is_floating_point()
        else torch.equal(of_two, of_one)
    )
    if not fine:
        _fail(
            checked, hook,
            "gives a client other values when two train side by side, or when its batch is padded, than when it is "
            "alone: it must act on the last axes, leave those before them as they are, and count real samples alone "
            "(batch.mean, or the values of each sample)",
        )  # fmt: skip


def _check_finite(checked: CheckedClient, hook: str, name: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        _fail(checked, hook, f"gave {name} that is not finite, of finite numbers")


def _check_gradient(checked: CheckedClient, total: Tensor, outputs: tuple[Tensor, Tensor]) -> None:
    if not total.requires_grad:
        _fail(checked, "loss", "depends neither on batch.z nor on batch.logits: there is nothing to train by")


def _check_parameters(checked: CheckedClient, batch: Batch, local: Local) -> None:
    """A term of the parameters themselves would be on record and not be minimised."""
    params = local.weights.params.detach().clone().requires_grad_()
    watched = replace(local, weights=replace(local.weights, params=params))
    total, _ = checked.loss(batch, watched)
    (found,) = torch.autograd.grad(total, params, allow_unused=True)
    if found is not None:
        _fail(
            checked, "loss",
            "has a term of local.weights, whose gradient does not reach the optimizer: take it of "
            "local.weights.params.detach() and add its gradient in `correct`",
        )  # fmt: skip
