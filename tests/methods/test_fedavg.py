from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from conftest import Train, toy_images

from fedproc import streams
from fedproc.methods.merges import Mean
from fedproc.networks import build
from fedproc.protocol.payload import Payload
from fedproc.protocol.sums import TrainingSums
from fedproc.protocol.weights import Weights
from fedproc.streams import Purpose


def answer(params: list[float], buffers: list[float], counter: int) -> Payload:
    weights = Weights(torch.tensor(params), torch.tensor(buffers), torch.tensor([counter]))
    return Payload({**weights.tensors(), "losses": torch.tensor([1.0])}, {"samples": 1, "steps": 1})


def test_mean_by_hand() -> None:
    start = Weights(torch.zeros(2), torch.zeros(1), torch.tensor([0]))
    sums = TrainingSums(start, Mean().begin(start.params, 0.9), batch_size=1)
    for share, payload in ((0.25, answer([1.0, 2.0], [4.0], 3)), (0.75, answer([5.0, -2.0], [8.0], 7))):
        sums.add(payload, share, share)
    assert sums.params(True).tolist() == [0.25 * 1 + 0.75 * 5, 0.25 * 2 - 0.75 * 2]
    buffers, counters = sums.statistics(True)
    assert buffers.tolist() == [0.25 * 4 + 0.75 * 8]
    assert counters.tolist() == [7]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 0.0), (torch.float32, 1e-5)])
def test_one_client_is_plain_sgd_with_momentum_zeroed_each_round(train: Train, dtype: torch.dtype, most: float) -> None:
    """Bit for bit in float64; in float32 our own kernels add up in another order."""
    images, short = toy_images(), str(dtype).removeprefix("torch.")
    session = train(images, method="fedavg", clients=1, rounds=3, epochs=2, batch_size=16, lr=0.05, dtype=short)

    model = build(session.setting.spec, seed=0)
    share = session.clients[0].indices
    pixels = session.setting.normalisation.apply(torch.from_numpy(images.train.images), dtype)
    labels = torch.from_numpy(images.train.labels)
    for t in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5)
        for epoch in range(2):
            order = share[streams.order(streams.key(0, Purpose.ORDER, t, 0, epoch), len(share))]
            for batch in order[: len(order) // 16 * 16].view(-1, 16):
                optimizer.zero_grad()
                _, logits = model(pixels[batch])
                F.cross_entropy(logits, labels[batch]).backward()
                optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float((session.state.weights.params - expected).norm() / expected.norm()) <= most


def test_it_learns(train: Train) -> None:
    session = train(method="fedavg", rounds=6, epochs=3, partition="iid", network="toy_networks:BatchNormNet")
    assert session.records[-1]["test_accuracy"] > 0.9
    assert session.records[-1]["test_loss"] < session.records[0]["test_loss"]
