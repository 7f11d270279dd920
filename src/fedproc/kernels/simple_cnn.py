"""The whole simple CNN for L clients side by side, forwards and backwards in a few kernels (simple_cnn.cu).

Layer by layer a step of ten clients is a chain of some forty short kernels, whose starts and ends are most of its time.
Shapes: L lanes, B batch, C channels, H pixels a side, P parameters, Q features, K classes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedproc.kernels import ceil_div
from fedproc.kernels.forks import at_once

SOURCE = Path(__file__).with_name("simple_cnn.cu")
THREADS, HEAD_THREADS = 256, 512
IMAGES = 2  # that a block of the convolutions' kernels works on at a time
BLOCKS = 2  # of these kernels that a processor holds
CHANNELS = (6, 16)
FEATURES = (120, 84, 84, 256)
LAYERS = ("CONV1", "CONV2", "FC1", "FC2", "HEAD1", "HEAD2", "CLASSIFIER")
NUMBERS = 10  # that the source tells


class Launches(Protocol):
    """A compiled source."""

    def numbers(self, name: str, count: int) -> list[int]: ...

    def launch(self, name: str, grid: tuple[int, int], threads: int, shared: int, *arguments: Any) -> None: ...


@dataclass(frozen=True)
class Sizes:
    """A simple CNN: channels and side of its images, classes, where each layer's weights begin among P parameters."""

    channels: int
    side: int
    classes: int
    at: tuple[int, ...]
    parameters: int

    @classmethod
    def of(cls, channels: int, side: int, classes: int, params: Sequence[tuple[str, tuple[int, ...]]]) -> Sizes:
        """Of the network's parameters in their order, names with shapes."""
        at, end = [], 0
        for _, shape in params:
            at.append(end)
            end += prod(shape)
        made = cls(channels, side, classes, tuple(at[::2]), end)
        out = [*CHANNELS, *FEATURES, classes]
        into = [channels * 25, CHANNELS[0] * 25, CHANNELS[1] * made.windows, *FEATURES]
        expected = [size for n, k in zip(out, into, strict=True) for size in (n * k, n)]
        if [prod(shape) for _, shape in params] != expected:
            raise ValueError(f"these are not a simple CNN's parameters: {params}")
        return made

    def defined(self, products: int) -> dict[str, int]:
        """What the source is compiled with."""
        numbers = {
            "C": self.channels,
            "SIDE": self.side,
            "CLASSES": self.classes,
            "PRODUCTS": products,
            "EVEN": int(self.even),
        }
        return numbers | {f"AT_{name}": place for name, place in zip(LAYERS, self.at, strict=True)}

    @property
    def even(self) -> bool:
        """Whether all weights of all lanes begin at even places."""
        return all(place % 2 == 0 for place in (*self.at, self.parameters))

    @property
    def windows(self) -> int:
        """Pooling windows of an image at the second convolution."""
        return (((self.side - 4) // 2 - 4) // 2) ** 2


@dataclass(frozen=True)
class Pass:
    """What the way back needs of the way there: images, params, and what each layer gave."""

    images: Tensor
    params: Tensor
    given: Mapping[str, Tensor]
    z: Tensor


@lru_cache(maxsize=16)
def compiled(sizes: Sizes, precision: str, device: int) -> SimpleCnn | None:
    """The kernels for such a network on this GPU, which is the present one; None where they cannot be had."""
    from fedproc.kernels.cuda import CudaError, Module

    products = 1 if precision == "tf32" else 3
    properties: Any = torch.cuda.get_device_properties(device)
    try:
        made = SimpleCnn(Module(SOURCE, sizes.defined(products)), sizes, properties.multi_processor_count)
    except (OSError, AttributeError, CudaError):
        return None
    return made if made.most_shared <= properties.shared_memory_per_block_optin else None


class SimpleCnn:
    """The kernels for networks of some sizes."""

    def __init__(self, module: Launches, sizes: Sizes, processors: int) -> None:
        self._module, self._sizes, self._processors, self._even = module, sizes, processors, sizes.even
        *floats, self._tiles, self._slopes1, self._hidden = module.numbers("sizes", NUMBERS)
        shared = [4 * each for each in floats]
        self._forward, self._head_forward, self._head_backward, self._head_weights, *self._convolutions = shared
        self.most_shared = max(*shared, 2 * self._head_forward, 2 * self._head_backward)

    def forward(self, params: Tensor, images: Tensor, keep: bool) -> tuple[Tensor, Tensor, Pass | None]:
        """z (L, B, Q) and logits (L, B, K) of params (L, P) and images (L, B, C, H, H); lanes may lie apart, or be one
        and the same. What the way back needs is kept where it is wanted.
        """
        sizes = self._sizes
        if not images[0].is_contiguous() or not _begins_at(images, 16):
            images = images.clone(memory_format=torch.contiguous_format)
        if params.stride(1) != 1 or (self._even and not _begins_at(params, 8)):
            params = params.clone(memory_format=torch.contiguous_format)
        lanes, batch = images.shape[:2]

        def space(width: int) -> Tensor:
            return torch.empty(lanes, batch, width, dtype=torch.float32, device=images.device)

        given = {"y2": space(CHANNELS[1] * sizes.windows)}
        if keep:
            given |= {f"a{number}": space(width) for number, width in enumerate(FEATURES[:3], 1)}
            given["y1"] = space(self._hidden)
        z, logits = space(FEATURES[3]), space(sizes.classes)
        apart = _stride(params)
        per = _per(lanes, batch, BLOCKS * self._processors)
        self._module.launch(
            "conv_forward", (ceil_div(batch, per), lanes), THREADS, self._forward,
            images, _stride(images), params, apart, given.get("y1"), given["y2"], batch, per,
        )  # fmt: skip
        tall = self._tall(lanes, batch)
        self._module.launch(
            f"head_forward{tall}", (ceil_div(batch, 16 * tall), lanes), HEAD_THREADS, tall * self._head_forward,
            given["y2"], params, apart, given.get("a1"), given.get("a2"), given.get("a3"), z, logits, batch,
        )  # fmt: skip
        return z, logits, Pass(images, params, given, z) if keep else None

    def backward(
        self, last: Pass, of_z: Tensor | None, of_logits: Tensor | None, gradient: Tensor,
        beside: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Fill the gradient (L, P) by those of z and logits; either may be missing. What is to be done `beside` it may
        run at the same time.
        """
        of_z, of_logits = (
            None if g is None else g if g.is_contiguous() and g.data_ptr() % 16 == 0 else g.clone().contiguous()
            for g in (of_z, of_logits)
        )
        given, params, launch = last.given, last.params, self._module.launch
        lanes, batch = last.images.shape[:2]
        widths = [given["y2"][0, 0].numel(), *FEATURES]
        slopes = [torch.empty(lanes, batch, width, dtype=torch.float32, device=params.device) for width in widths]
        to = ctypes.c_longlong(gradient.stride(0))
        tall = self._tall(lanes, batch)
        activations = [given["a1"], given["a2"], given["a3"]]
        launch(
            f"head_backward{tall}", (ceil_div(batch, 16 * tall), lanes), HEAD_THREADS, tall * self._head_backward,
            of_z, of_logits, params, _stride(params), given["y2"], *activations, *reversed(slopes), batch,
        )  # fmt: skip
        input2, weights2, weights1 = self._convolutions
        per = _per(lanes, batch, BLOCKS * self._processors)
        blocks = ceil_div(batch, per)

        def parts(size: int) -> Tensor:
            """A place for what each block finds of a layer's gradient."""
            return torch.empty(lanes, blocks, size, dtype=torch.float32, device=params.device)

        part1 = parts(CHANNELS[0] * (self._sizes.channels * 25 + 1))
        part2 = parts(CHANNELS[1] * (CHANNELS[0] * 25 + 1))
        slopes1 = torch.empty(lanes, batch, self._slopes1, dtype=torch.float32, device=params.device)

        def linear_weights() -> None:
            launch(
                "head_weights", (self._tiles, lanes), THREADS, self._head_weights,
                given["y2"], *activations, last.z, *slopes[1:], of_logits, gradient, to, batch,
            )  # fmt: skip

        def second_weights() -> None:
            launch("conv2_weights", (blocks, lanes), THREADS, weights2, given["y1"], slopes[0], part2, batch, per)

        def through_the_second() -> None:
            launch(
                "conv2_input", (blocks, lanes), THREADS, input2,
                given["y1"], slopes[0], params, _stride(params), slopes1, batch, per,
            )  # fmt: skip
            images = last.images
            launch(
                "conv1_weights", (blocks, lanes), THREADS, weights1, images, _stride(images), slopes1, part1, batch, per
            )

        at_once([linear_weights, second_weights, *([beside] if beside else []), through_the_second])
        launch(
            "fold", (ceil_div(part1.shape[2] + part2.shape[2], THREADS), lanes), THREADS, 0,
            part1, part2, blocks, gradient, to,
        )  # fmt: skip

    def _tall(self, lanes: int, batch: int) -> int:
        """Tiles of 16 samples that a block of the linear layers takes: two where there is work enough."""
        return 1 if lanes * ceil_div(batch, 16) <= 2 * self._processors else 2


@lru_cache(maxsize=1024)  # of large batches it takes milliseconds
def _per(lanes: int, batch: int, at_once: int) -> int:
    """Images that a block of the convolutions takes one after the other: the number by which all are done first, of so
    many blocks at once. What a block does besides takes as long as some images.
    """

    def time(per: int) -> int:
        return ceil_div(lanes * ceil_div(batch, per), at_once) * (per + 2 * IMAGES)

    return min(range(IMAGES, max(IMAGES, batch) + IMAGES, IMAGES), key=time)


def _begins_at(tensor: Tensor, by: int) -> bool:
    """Whether each lane begins at a multiple of so many bytes."""
    return tensor.data_ptr() % by == 0 and tensor.stride(0) * tensor.element_size() % by == 0


def _stride(tensor: Tensor) -> ctypes.c_longlong:
    return ctypes.c_longlong(tensor.stride(0))
