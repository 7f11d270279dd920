from __future__ import annotations

import torch
import torch.nn.functional as F
from conftest import Train, toy_images

from fedproc import streams
from fedproc.methods.merges import Trained, mean, merge_statistics
from fedproc.networks import Weights, build
from fedproc.streams import Purpose


def trained(params: list[float], share: float, buffers: list[float], counter: int) -> Trained:
    return Trained(Weights(torch.tensor(params), torch.tensor(buffers), torch.tensor([counter])), share, 1)


def test_mean_by_hand() -> None:
    clients = [trained([1.0, 2.0], 0.25, [4.0], 3), trained([5.0, -2.0], 0.75, [8.0], 7)]
    assert mean(torch.zeros(2), clients, 0.9).tolist() == [0.25 * 1 + 0.75 * 5, 0.25 * 2 - 0.75 * 2]
    buffers, counters = merge_statistics(clients)
    assert buffers.tolist() == [0.25 * 4 + 0.75 * 8]
    assert counters.tolist() == [7]


def test_one_client_is_plain_sgd_with_momentum_zeroed_each_round(train: Train) -> None:
    images = toy_images()
    session = train(images, method="fedavg", clients=1, rounds=3, epochs=2, batch_size=16, lr=0.05)

    model = build(session.setting.spec, seed=0)
    share = session.setting.shares[0]
    pixels = session.setting.normalisation.apply(torch.from_numpy(images.train.images), torch.float32)
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
    assert torch.equal(session.state.weights.params, expected)


def test_it_learns(train: Train) -> None:
    session = train(method="fedavg", rounds=6, epochs=3, partition="iid", network="toy_networks:BatchNormNet")
    assert session.records[-1]["test_accuracy"] > 0.9
    assert session.records[-1]["test_loss"] < session.records[0]["test_loss"]
