"""The three-part network every method trains: encoder, projection head, classifier (Section 3 of the paper)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedproc.networks.batch_norm import MaskedBatchNorm
from fedproc.networks.layers import Linear
from fedproc.prototypes import unit

EMBEDDING = 256


class Network(nn.Module):
    """forward(images) -> z (B, 256), the vector that enters the classifier, and logits (B, K)."""

    def __init__(self, encoder: nn.Module, features: int, classes: int, normalize_z: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(Linear(features, features, relu=True, hidden=True), Linear(features, EMBEDDING))
        self.classifier = Linear(EMBEDDING, classes)
        self.normalize_z = normalize_z
        self._norms = [layer for layer in self.modules() if isinstance(layer, MaskedBatchNorm)]

    def forward(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`mask` (B,) keeps padded samples out of batch-norm's statistics."""
        for norm in self._norms:
            norm.mask = mask
        z = self.head(self.encoder(images))
        for norm in self._norms:
            norm.mask = None
        if self.normalize_z:
            z = unit(z)
        return z, self.classifier(z)


def feature_size(encoder: nn.Module, channels: int, side: int) -> int:
    """d of an encoder's (B, d) output, found by sending two black images through it."""
    training = encoder.training
    encoder.eval()
    with torch.no_grad():
        output = encoder(torch.zeros(2, channels, side, side))
    encoder.train(training)
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[0] != 2:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"the encoder must map (2, {channels}, {side}, {side}) to (2, d), it gave {got}")
    return int(output.shape[1])
