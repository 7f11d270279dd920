"""The round loop's state and the clients' as the tensors and values of a checkpoint, by owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedproc.protocol.plan import Kept, State
from fedproc.protocol.weights import Weights
from fedproc.runs.checkpoint import Checkpoint
from fedproc.runs.client_states import Holdings

OWNERS = ("weights", "method", "server_step", "averaged", "diagnostics", "kept", "privacy", "client")


def saved_state(state: State, holdings: Holdings) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors named owner/name, and the numbers beside them."""
    owned: dict[str, Mapping[str, Tensor]] = {
        "weights": state.weights.tensors(),
        "method": state.method,
        "server_step": state.server_step,
        "averaged": state.averaged.tensors() if state.averaged is not None else {},
        "diagnostics": state.diagnostics,
        "kept": _kept_tensors(state.kept) if state.kept is not None else {},
        "privacy": state.privacy,
        "client": holdings.tensors(),
    }
    tensors = {f"{owner}/{name}": owned[owner][name] for owner in OWNERS for name in sorted(owned[owner])}
    values = {
        "round": state.round,
        "sizes": list(state.sizes),
        "accepted": list(state.accepted),
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "clients": holdings.values(),
    }
    return tensors, values


def _kept_tensors(kept: Kept) -> dict[str, Tensor]:
    numbers = torch.tensor([kept.round, kept.accuracy], dtype=torch.float64)
    return {**kept.weights.tensors(), "prototypes": kept.prototypes, "known": kept.known, "numbers": numbers}


def _kept_of(tensors: dict[str, Tensor]) -> Kept | None:
    if not tensors:
        return None
    number, accuracy = tensors["numbers"].tolist()
    return Kept(Weights.of(tensors), tensors["prototypes"], tensors["known"], int(number), accuracy)


def restored_state(found: Checkpoint, begun: State) -> tuple[State, Holdings]:
    """What a checkpoint was made from, on the device of the state that the run began with."""
    device, values = begun.weights.params.device, found.values

    def of(owner: str) -> dict[str, Tensor]:
        start = f"{owner}/"
        return {n.removeprefix(start): t.to(device) for n, t in found.tensors.items() if n.startswith(start)}

    averaged = of("averaged")
    state = State(
        round=values.round,
        started=True,
        weights=Weights.of(of("weights")),
        method=of("method"),
        server_step=of("server_step"),
        averaged=Weights.of(averaged) if averaged else None,
        diagnostics=of("diagnostics"),
        kept=_kept_of(of("kept")),
        privacy=of("privacy"),
        sizes=tuple(values.sizes),
        accepted=tuple(values.accepted),
        bytes_up=values.bytes_up,
        bytes_down=values.bytes_down,
    )
    return state, Holdings.restored(of("client"), values.clients)
