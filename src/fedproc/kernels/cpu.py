"""A client's training step on a CPU core, in C: its batch, chains of small layers forwards and backwards, losses with
their slopes, the update.

The C files are compiled for this machine when first used (a second or two), and cached. Without a compiler torch
does the work. Calls release Python's global lock, so clients on other threads go on meanwhile.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc.cache import cache_folder
from fedproc.kernels import DRAWN

SOURCES = tuple(Path(__file__).with_name(name) for name in ("cpu.c", "conv.c", "products.c", "chain.c", "losses.c"))
HEADER = Path(__file__).with_name("cpu.h")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
SHARED = ("-fPIC", "-shared")
NO_CLASS = 2  # what a function gives where a label is none of the classes
MOST_SIDE = 7  # of a convolution
CONVOLUTION, LINEAR, LINEAR_RELU, UNIT = range(4)  # layers of a chain
BLOCK = 64  # images that go through a chain together where no gradient is wanted
WIDEST = 16  # floats of the longest vector
ByTorch = Callable[..., tuple[Tensor, Tensor | None]]  # what `contrasts` gives, without a C kernel


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
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or "").strip() or str(error)
        return None, f"{Path(compiler).name} cannot compile here ({said.splitlines()[0]})"


def _compiled(compiler: str) -> Path:
    """The library, compiled if missing; its name is a hash of source, compiler and processor. Its own hash lies beside
    it, since loading a damaged one would end the process.
    """
    processor = _processor()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    texts = [source.read_text() for source in (HEADER, *SOURCES)]
    made_from = "\n".join([*texts, version, processor, *FLAGS])
    name = f"cpu-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    path = cache_folder() / "kernels" / name
    digest = path.with_suffix(".sha256")
    if not _whole(path, digest):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            words = [compiler, *FLAGS, *SHARED, *map(str, SOURCES), "-lm", "-o", str(made)]
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
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return missing() is None


TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float, "u": ctypes.c_ulong}
TAKEN = {  # by the functions: pointers, integers, floats, words of 64 bits
    "conv_relu_pool": "pppppiiiiii",
    "conv_relu_pool_backward": "pppppppiiiiii",
    "chain_forward": "ppppppppii",
    "chain_backward": "ppppppppppiii",
    "chain_class_sums": "pppppppppppppiiiiii",
    "take_batch": "pppppppppppppppiiiiii",
    "contrast": "pppppppppiiif",
    "contrast_mean": "pppppppiiiiff",
    "cross_entropies": "pppppii",
    "cross_entropy_mean": "pppppiiif",
    "class_sums": "pppppiii",
    "sgd": "pppifff",
    "hash_bits": "ppuii",
    "hash_draws": "pppuiii",
}


class Layer(ctypes.Structure):
    """A layer as chain.c has it: its kind, how many values an image has before and after it, where its weights and its
    bias begin in the flat parameters; of a convolution the image's channels, height and width, its filters, their side.
    """

    kind: int
    inputs: int
    outputs: int
    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            *("kind", "inputs", "outputs", "weight", "bias"),
            *("channels", "height", "width", "filters", "side"),
        )
    )


@cache
def _function(name: str) -> Any:
    library = _library()[0]
    assert library is not None
    function = getattr(library, name)
    function.argtypes = [TYPES[letter] for letter in TAKEN[name]]
    return function


def call(name: str, *arguments: object) -> None:
    """Call a function of the library: tensors as pointers, None as null."""
    ready = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    code = _function(name)(*ready)
    if code == NO_CLASS:
        raise IndexError("a label is none of the classes: expected whole numbers from 0 to the number of classes - 1")
    if code:
        raise MemoryError(f"no memory for {name}")


def _sizes(x: Tensor, w: Tensor) -> tuple[int, ...]:
    return (*x.shape, w.shape[0], w.shape[-1])


def convolves(x: Tensor, w: Tensor) -> bool:
    """Whether images and weights fit together as C reads them, with one window at least."""
    side = w.shape[-1]
    fits = x.dim() == 4 and w.dtype == x.dtype and x.shape[1] == w.shape[1] and side <= MOST_SIDE
    return fits and min(x.shape[2:]) > side


def _pooled(x: Tensor, w: Tensor) -> tuple[int, ...]:
    """The shape of what convolution and pooling give."""
    batch, _, height, width, out, side = _sizes(x, w)
    return (batch, out, (height - side + 1) // 2, (width - side + 1) // 2)


class ConvReluPool(torch.autograd.Function):
    """`conv_relu_pool` with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        y = torch.empty(_pooled(x, w))
        won = torch.empty(y.shape, dtype=torch.int8)
        call("conv_relu_pool", x.contiguous(), w.contiguous(), bias.contiguous(), y, won, *_sizes(x, w))
        ctx.save_for_backward(x, w, bias, won)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, bias, won = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient of this gradient
            wanted = [each for each, needed in zip((x, w, bias), ctx.needs_input_grad, strict=True) if needed]
            y = F.max_pool2d(F.relu(F.conv2d(x, w, bias)), 2)
            found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        x, w = x.contiguous(), w.contiguous()
        dw, db = torch.empty_like(w), torch.empty(w.shape[0])
        return conv_relu_pool_backward(x, w, g.contiguous(), won, dw, db, ctx.needs_input_grad[0]), dw, db


def conv_relu_pool_backward(
    x: Tensor, w: Tensor, g: Tensor, won: Tensor, dw: Tensor, db: Tensor, needs_x: bool
) -> Tensor | None:
    """Writes the gradients of w and bias; gives that of x, if it is needed. All are contiguous."""
    dx = torch.empty_like(x) if needs_x else None
    call("conv_relu_pool_backward", x, w, g, won, dw, db, dx, *_sizes(x, w))
    return dx


def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """y (B, N, H', W') of x (B, C, H, W), w (N, C, side, side), bias (N,)."""
    y: Tensor
    if torch.is_grad_enabled():
        y = ConvReluPool.apply(x, w, bias)
        return y
    y = torch.empty(_pooled(x, w))
    call("conv_relu_pool", x.contiguous(), w.contiguous(), bias.contiguous(), y, None, *_sizes(x, w))
    return y


class CrossEntropies(torch.autograd.Function):
    """`cross_entropies` with its gradient, which comes of the same pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        loss, slope = torch.empty(len(logits)), torch.empty(logits.shape)
        call("cross_entropies", logits.contiguous(), labels.contiguous(), None, loss, slope, *logits.shape)
        ctx.save_for_backward(logits, labels, slope)
        return loss

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        logits, labels, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient of this gradient
            slope = logits.softmax(dim=-1) - F.one_hot(labels, logits.shape[-1])
        return slope * g.unsqueeze(-1), None


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropies (B,) of logits (B, K)."""
    losses: Tensor = CrossEntropies.apply(logits, labels)
    return losses


class Contrast(torch.autograd.Function):
    """`contrasts` with its gradient, which comes of the same pass."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        labels: Tensor,
        prototypes: Tensor,
        tau: float,
        known: Tensor,
        offset: Tensor | None,
        by_torch: ByTorch,
    ) -> tuple[Tensor, Tensor | None]:
        given = (z, labels, prototypes, known, offset)
        plain = [None if tensor is None else tensor.contiguous() for tensor in given]
        loss, counted, slope = torch.empty(len(z)), torch.empty(len(z), dtype=torch.bool), torch.empty(z.shape)
        left_out = torch.zeros(1, dtype=torch.int32)
        call("contrast", *plain, loss, counted, slope, left_out, len(z), *prototypes.shape, tau)
        ctx.save_for_backward(z, slope)
        ctx.again = partial(by_torch, labels=labels, prototypes=prototypes, tau=tau, known=known, offset=offset)
        if not int(left_out):
            return loss, None
        ctx.mark_non_differentiable(counted)
        return loss, counted

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        z, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient of this gradient
            (by_z,) = torch.autograd.grad(ctx.again(z)[0], z, g, create_graph=True)
        else:
            by_z = slope * g.unsqueeze(-1)
        return by_z, None, None, None, None, None, None


def contrast_takes(z: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor, offset: Tensor | None) -> bool:
    """Whether these fit together as C reads them: z (B, Q), labels (B,), prototypes (K, Q), known and offset (K,)."""
    fits = z.dim() == 2 and labels.shape == z.shape[:1] and labels.dtype == torch.int64
    fits = fits and prototypes.dim() == 2 and prototypes.shape[1] == z.shape[1] and prototypes.dtype == z.dtype
    return fits and known.dtype == torch.bool and known.shape == prototypes.shape[:1] and offset_takes(offset, known)


def offset_takes(offset: Tensor | None, like: Tensor) -> bool:
    """Whether an offset is one of each class, and no gradient flows through it."""
    fits = offset is None or (offset.shape == like.shape and offset.dtype == torch.float32)
    return fits and (offset is None or not offset.requires_grad)


def contrasts(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    tau: float,
    known: Tensor,
    offset: Tensor | None,
    by_torch: ByTorch,
) -> tuple[Tensor, Tensor | None]:
    """Losses (B,) of z (B, Q) against prototypes (K, Q), through which no gradient flows, and which samples count, None
    for all. `by_torch` gives the same, for gradients of the gradient.
    """
    given = (z, labels, prototypes.detach(), tau, known, offset)
    found: tuple[Tensor, Tensor | None] = Contrast.apply(*given, by_torch)
    return found


class Batches:
    """Images (B, C, H, W) of float32 for the steps of a plan, by index (S, B) into the bank of bytes, moved as drawn
    (S, B) and normalised. They lie in one place: what a step is given is gone when the next one is.
    """

    def __init__(
        self,
        images: Tensor,
        index: Tensor,
        draws: Mapping[str, Tensor],
        turns: tuple[Tensor, Tensor] | None,
        levels: tuple[Tensor, Tensor],
        pad: str | None,
        width: int,
    ) -> None:
        drawn = [None if name not in draws else draws[name].contiguous() for name in DRAWN]
        self._images, rows = images, [index.contiguous(), *drawn]
        self._by_step = [None if each is None else each.unbind() for each in rows]
        self._out = torch.empty(index.shape[1], *images.shape[1:])
        self._tables = (*(turns if turns is not None else (None, None)), *levels)
        self._sizes = (*self._out.shape, width, int(pad == "reflect"))

    def __getitem__(self, step: int) -> Tensor:
        here = [None if each is None else each[step] for each in self._by_step]
        call("take_batch", self._images, *here, *self._tables, self._out, *self._sizes)
        return self._out


def cross_entropy_mean(
    logits: Tensor, labels: Tensor, offset: Tensor | None, weight: float, sums: Tensor, term: int
) -> Tensor:
    """The slope (B, K) of weight times the mean cross-entropy of logits (B, K), plus an offset (K) if there is one. The
    weighted mean is added to the first of the sums (N,) in float64, the mean itself to the term's.
    """
    slope = torch.empty(logits.shape)
    whole = [None if each is None else each.contiguous() for each in (labels, offset)]
    call("cross_entropy_mean", logits, *whole, slope, sums, term, *logits.shape, weight)
    return slope


def contrast_mean(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    tau: float,
    known: Tensor,
    offset: Tensor | None,
    weight: float,
    sums: Tensor,
    term: int,
) -> Tensor:
    """The same of the contrasts of z (B, Q), of those that count."""
    slope = torch.empty(z.shape)
    whole = [None if each is None else each.contiguous() for each in (labels, prototypes, known, offset)]
    call("contrast_mean", z, *whole, slope, sums, term, len(z), *prototypes.shape, tau, weight)
    return slope


def class_sums(z: Tensor, labels: Tensor, classes: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums (K, Q) of z (B, Q) by class, in float64, and the counts (K)."""
    sums, counts = torch.zeros(classes, z.shape[1], dtype=torch.float64), torch.zeros(classes, dtype=torch.int64)
    given = (z.contiguous(), labels.contiguous(), None if mask is None else mask.contiguous())
    call("class_sums", *given, sums, counts, len(z), *sums.shape)
    return sums, counts


def sgd_(params: Tensor, gradient: Tensor, velocity: Tensor, lr: float, momentum: float, decay: float) -> None:
    """One step of SGD on flat parameters, in place."""
    call("sgd", params, gradient, velocity, params.numel(), lr, momentum, decay)


def bits(key: int, epochs: Tensor, wide: int) -> Tensor:
    """The streams' 64 bits at epochs (S,) and positions 0 to wide - 1, as int64 (S, wide)."""
    out = torch.empty(len(epochs), wide, dtype=torch.int64)
    call("hash_bits", epochs.contiguous(), out, key, *out.shape)
    return out


def draws(key: int, epochs: Tensor, positions: Tensor, below: int) -> Tensor:
    """Integers below `below` at epochs (S,) and positions (S, B), as int16 (S, B)."""
    out = torch.empty(positions.shape, dtype=torch.int16)
    call("hash_draws", epochs.contiguous(), positions.contiguous(), out, key, *out.shape, below)
    return out
