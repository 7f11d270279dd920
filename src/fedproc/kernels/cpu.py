"""A client's training step on a CPU core, in C: its batch, small convolutions with relu and pooling, the contrast
with prototypes, the update.

The C file is compiled for this machine when first used (one second), and cached. Without a compiler
torch does the work. Calls release Python's global lock, so clients on other threads go on meanwhile.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproc.cache import cache_folder
from fedproc.kernels import DRAWN

SOURCE = Path(__file__).with_name("cpu.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-fPIC", "-shared")
MOST_SIDE = 8  # of a convolution


_thread = threading.local()


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL | None, str | None]:
    """The compiled file, or why there is none."""
    if os.environ.get("FEDPROC_KERNELS", "1") == "0":
        return None, "FEDPROC_KERNELS is 0"
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return None, "there is no C compiler (cc, gcc or clang)"
    try:
        return ctypes.CDLL(str(_compiled(compiler))), None
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return None, f"{Path(compiler).name} cannot compile here ({said.strip().splitlines()[0] if said else error})"


def _compiled(compiler: str) -> Path:
    """The library, compiled if missing; its name is a hash of source, compiler and processor. Its own hash lies beside
    it, since loading a damaged one would end the process.
    """
    processor = _processor()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    made_from = "\n".join([SOURCE.read_text(), version, processor, *FLAGS])
    name = f"cpu-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    path = cache_folder() / "kernels" / name
    digest = path.with_suffix(".sha256")
    if not _whole(path, digest):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            words = [compiler, *FLAGS, *SHARED, str(SOURCE), "-lm", "-o", str(made)]
            subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
            noted = Path(folder) / digest.name
            noted.write_text(_sha256(made))
            made.replace(path)
            noted.replace(digest)
    return path


def _whole(path: Path, digest: Path) -> bool:
    return path.is_file() and digest.is_file() and _sha256(path) == digest.read_text(errors="replace").strip()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def missing() -> str | None:
    """Why torch does the work, or None."""
    return _library()[1]


def without_bf16() -> str | None:
    """Why products in bf16 are no faster here than in float32, or None. Without instructions of its own for them, a
    processor multiplies bf16 as float32 after a detour.
    """
    able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return None if any(has is True and "bf16" in name for name, has in able.items()) else "the processor has no bf16"


@contextmanager
def torch_only() -> Iterator[None]:
    """In this thread torch does the work: for tensors that are not plain memory (under vmap)."""
    before = getattr(_thread, "torch_only", False)
    _thread.torch_only = True
    try:
        yield
    finally:
        _thread.torch_only = before


def usable(tensor: Tensor) -> bool:
    """Whether the kernels take this: float32 on the CPU, in plain memory, outside of torch's compilers."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or getattr(_thread, "torch_only", False):
        return False
    return missing() is None and not torch.compiler.is_compiling()


def _call(name: str, *arguments: object) -> None:
    """Call a function of the library: tensors as pointers, None as null."""
    library = _library()[0]
    assert library is not None
    ready: list[object] = []
    for argument in arguments:
        if argument is None or isinstance(argument, Tensor):
            ready.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
        else:
            ready.append(ctypes.c_float(argument) if isinstance(argument, float) else argument)
    if getattr(library, name)(*ready):
        raise MemoryError(f"no memory for {name}")


def _sizes(x: Tensor, w: Tensor) -> tuple[int, ...]:
    return (*x.shape, w.shape[0], w.shape[-1])


def _pooled(x: Tensor, w: Tensor) -> tuple[int, ...]:
    """The shape of what convolution and pooling give."""
    batch, _, height, width, out, side = _sizes(x, w)
    return (batch, out, (height - side + 1) // 2, (width - side + 1) // 2)


class ConvReluPool(torch.autograd.Function):
    """`conv_relu_pool` with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        x, w = x.contiguous(), w.contiguous()
        y, won = conv_relu_pool_won(x, w, bias.contiguous())
        ctx.save_for_backward(x, w, won)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, w, won = ctx.saved_tensors
        dw, db = torch.empty_like(w), torch.empty(w.shape[0])
        return conv_relu_pool_backward(x, w, g.contiguous(), won, dw, db, ctx.needs_input_grad[0]), dw, db


def conv_relu_pool_won(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`conv_relu_pool` and which place of each window won, all of them contiguous."""
    y = torch.empty(_pooled(x, w))
    won = torch.empty(y.shape, dtype=torch.int8)
    _call("conv_relu_pool", x, w, bias, y, won, *_sizes(x, w))
    return y, won


def conv_relu_pool_backward(
    x: Tensor, w: Tensor, g: Tensor, won: Tensor, dw: Tensor, db: Tensor, needs_x: bool
) -> Tensor | None:
    """Writes the gradients of w and bias; gives that of x, if it is needed. All are contiguous."""
    dx = torch.empty_like(x) if needs_x else None
    _call("conv_relu_pool_backward", x, w, g, won, dw, db, dx, *_sizes(x, w))
    return dx


def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """y (B, N, H', W') of x (B, C, H, W), w (N, C, side, side), bias (N,)."""
    y: Tensor
    if torch.is_grad_enabled():
        y = ConvReluPool.apply(x, w, bias)
        return y
    y = torch.empty(_pooled(x, w))
    _call("conv_relu_pool", x.contiguous(), w.contiguous(), bias.contiguous(), y, None, *_sizes(x, w))
    return y


class Contrast(torch.autograd.Function):
    """`contrasts` with its gradient, which comes of the same pass."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        given = (z, labels, prototypes, known, offset)
        plain = [None if tensor is None else tensor.contiguous() for tensor in given]
        loss, counted, slope = torch.empty(len(z)), torch.empty(len(z), dtype=torch.bool), torch.empty(z.shape)
        left_out = ctypes.c_int()
        sizes = (len(z), *prototypes.shape)
        _call("contrast", *plain, loss, counted, slope, ctypes.byref(left_out), *sizes, float(tau))
        ctx.save_for_backward(slope)
        if not left_out.value:
            return loss, None
        ctx.mark_non_differentiable(counted)
        return loss, counted

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * g.unsqueeze(-1), None, None, None, None, None


def contrasts(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Losses (B,) of z (B, Q) against prototypes (K, Q), through which no gradient flows, and which samples count, None
    for all.
    """
    found: tuple[Tensor, Tensor | None] = Contrast.apply(z, labels, prototypes.detach(), tau, known, offset)
    return found


def take_batch(
    images: Tensor,
    index: Tensor,
    draws: Mapping[str, Tensor],
    turns: tuple[Tensor, Tensor] | None,
    levels: tuple[Tensor, Tensor],
    pad: str | None,
    width: int,
) -> Tensor:
    """Images (B, C, H, W) of float32, by index (B,) into the bank of bytes, moved as drawn (B,) and normalised."""
    out = torch.empty(len(index), *images.shape[1:])
    moves = [None if name not in draws else draws[name].contiguous() for name in DRAWN]
    tables = turns if turns is not None else (None, None)
    reflect = int(pad == "reflect")
    _call("take_batch", images, index.contiguous(), *moves, *tables, *levels, out, *out.shape, width, reflect)
    return out


def sgd_(params: Tensor, gradient: Tensor, velocity: Tensor, lr: float, momentum: float, decay: float) -> None:
    """One step of SGD on flat parameters, in place."""
    _call("sgd", params, gradient, velocity, params.numel(), lr, momentum, decay)


def bits(key: int, epochs: Tensor, wide: int) -> Tensor:
    """The streams' 64 bits at epochs (S,) and positions 0 to wide - 1, as int64 (S, wide)."""
    out = torch.empty(len(epochs), wide, dtype=torch.int64)
    _call("hash_bits", epochs.contiguous(), out, ctypes.c_ulong(key), *out.shape)
    return out


def draws(key: int, epochs: Tensor, positions: Tensor, below: int) -> Tensor:
    """Integers below `below` at epochs (S,) and positions (S, B), as int16 (S, B)."""
    out = torch.empty(positions.shape, dtype=torch.int16)
    _call("hash_draws", epochs.contiguous(), positions.contiguous(), out, ctypes.c_ulong(key), *out.shape, below)
    return out
