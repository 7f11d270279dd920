"""Initial weights as a pure function of the model seed.

Linear layers and the simple CNN's convolutions start as torch's do (uniform within 1/sqrt(fan-in)), convolutions
without bias, which a norm follows, as in He et al. (normal, fan-out), batch- and group-norm as the identity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedproc import streams
from fedproc.networks.batch_norm import MaskedBatchNorm


def initialise(module: nn.Module, seed: int) -> None:
    """Fill every parameter of our own layers from the INITIAL stream, one coordinate per parameter."""
    place = 0
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            _fill(layer, name, parameter, streams.key(seed, streams.Purpose.INITIAL, place))
            place += 1


def _fill(layer: nn.Module, name: str, parameter: nn.Parameter, at: int) -> None:
    values: Tensor
    if isinstance(layer, (MaskedBatchNorm, nn.GroupNorm)):
        values = torch.full((parameter.numel(),), 1.0 if name == "weight" else 0.0, dtype=torch.float64)
    elif isinstance(layer, nn.Conv2d) and layer.bias is None:
        fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1] // layer.groups
        values = streams.normals(at, parameter.numel()) * math.sqrt(2.0 / fan_out)
    elif isinstance(layer, (nn.Conv2d, nn.Linear)):
        bound = 1.0 / math.sqrt(layer.weight[0].numel())
        values = (2.0 * streams.uniforms(at, parameter.numel()) - 1.0) * bound
    else:
        raise TypeError(f"no initial values are defined for {type(layer).__name__}.{name}")
    with torch.no_grad():
        parameter.copy_(values.view_as(parameter))
