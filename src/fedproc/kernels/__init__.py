"""GPU kernels for what torch does slowly when clients run side by side: small convolutions and linear layers
with separate weights per lane, the losses, the batch, the update.

Every function takes tensors with one leading lane axis L, under vmap as well: the vmapped axis joins the lanes.
They are written in Triton, do the same arithmetic as the plain torch expressions they replace, and are used where
`usable` says so; everywhere else the callers run the plain ones.
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

PRECISIONS = ("fp32", "tf32", "bf16")
DRAWN = ("row", "column", "flip", "angle", "flip_vertical", "brightness", "contrast", "saturation")  # of a batch

_precision = "fp32"


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Why the kernels cannot run here, or None."""
    if os.environ.get("FEDPROC_KERNELS", "1") == "0":
        return "FEDPROC_KERNELS is 0"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if torch.version.hip is None and torch.cuda.get_device_capability() < (8, 0):
        return "the GPU is older than Triton's tensor cores"
    return _trial()


def _trial() -> str | None:
    """Why the smallest kernel does not run, or None: Triton needs a C compiler besides itself."""
    try:
        from fedproc.kernels.update import sgd_

        one = torch.zeros(1, 1, device="cuda")
        sgd_(one, one.clone(), one.clone(), one[0], 0.0, 0.0, one[0] > 0)
        torch.cuda.synchronize()
    except Exception as error:  # any error: torch's own kernels do the work then
        return f"Triton cannot compile here ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    return None


def usable(tensor: Tensor) -> bool:
    """Whether kernels take this tensor: float32 or shorter, on a GPU."""
    return tensor.is_cuda and tensor.dtype in (torch.float32, torch.bfloat16) and missing() is None


def set_precision(precision: str) -> None:
    """How products are formed: with all bits of float32, of tf32, or of bfloat16; sums are always float32."""
    global _precision
    _precision = precision


def precision() -> str:
    return _precision


def arithmetic() -> dict[str, Any]:
    """What kernels with products are compiled for; all bits of float32 are three products of tf32."""
    return {"SHORT": _precision == "bf16", "PRODUCT": "tf32" if _precision == "tf32" else "tf32x3"}


def activations(dtype: torch.dtype) -> torch.dtype:
    """The type hidden layers are stored in."""
    return torch.bfloat16 if _precision == "bf16" else dtype


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int, least: int = 16) -> int:
    """The smallest block that holds n."""
    return max(least, 1 << (n - 1).bit_length())


def join_lanes(in_dims: tuple[int | None, ...], size: int, *tensors: Tensor) -> list[Tensor]:
    """Tensors (L, ...) with a vmapped axis somewhere, or none, as (size * L, ...)."""
    joined = []
    for dim, tensor in zip(in_dims, tensors, strict=True):
        front = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        joined.append(front.flatten(0, 1))
    return joined
