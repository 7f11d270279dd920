"""CUDA kernels of our own: compiled by NVRTC, which comes with torch, kept on disk, launched by the driver."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproc.cache import cache_folder

OUT_OF_MEMORY = 2  # the driver's number of the error
DYNAMIC_SHARED = 8  # the driver's number of the attribute: the most dynamic shared memory of a function
STATIC_SHARED = 48 * 1024  # more has to be asked for

Argument = Tensor | int | None


class CudaError(RuntimeError):
    """NVRTC or the driver refused something."""


def as_pointers(arguments: Sequence[Argument]) -> tuple[Any, list[Any]]:
    """A kernel's arguments as the driver takes them, and what must live until the launch: tensors become pointers,
    None a null pointer, whole numbers 32 bits. A stride is given as a `ctypes` number.
    """
    held: list[Any] = []
    for argument in arguments:
        if argument is None or isinstance(argument, Tensor):
            held.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
        else:
            held.append(ctypes.c_int(argument) if isinstance(argument, int) else argument)
    return (ctypes.c_void_p * len(held))(*(ctypes.addressof(each) for each in held)), held


class Module:
    """A CUDA source compiled for the present GPU with some numbers defined."""

    def __init__(self, source: Path, defined: Mapping[str, int]) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}
        torch.cuda.current_stream()  # the driver's calls need torch's context
        binary = _compiled(source, defined)
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), binary))

    def _check(self, code: int) -> None:
        if code == OUT_OF_MEMORY:
            raise torch.OutOfMemoryError("CUDA out of memory, says the driver")
        if code:
            said = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(said))
            raise CudaError(f"the CUDA driver says: {(said.value or b'error').decode()} ({code})")

    def numbers(self, name: str, count: int) -> list[int]:
        """An array of constants."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._check(
            self._driver.cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), self._module, name.encode())
        )
        found = (ctypes.c_int * count)()
        self._check(self._driver.cuMemcpyDtoH_v2(found, address, ctypes.sizeof(found)))
        return list(found)

    def launch(self, name: str, grid: tuple[int, int], threads: int, shared: int, *arguments: Argument | Any) -> None:
        """Start a kernel on the present stream with so many bytes of shared memory."""
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        if shared > STATIC_SHARED:
            self._check(self._driver.cuFuncSetAttribute(function, DYNAMIC_SHARED, shared))
        pointers, held = as_pointers(arguments)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(self._driver.cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared, stream, pointers, None))
        del held


def _compiled(source: Path, defined: Mapping[str, int]) -> bytes:
    """The binary, compiled if it is not kept yet. With it lies its hash, since a damaged one must not be loaded."""
    text = source.read_text(encoding="utf-8")
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *(f"-D{n}={v}" for n, v in defined.items())]
    made_from = "\n".join([text, str(torch.version.cuda), *options])
    name = f"{source.stem}-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}"
    path = cache_folder() / "kernels" / f"{name}.cubin"
    try:
        digest, binary = path.read_bytes().split(b"\n", 1)
        if hashlib.sha256(binary).hexdigest().encode() == digest:
            return binary
    except (OSError, ValueError):
        pass
    binary = _compile(text, source.name, options)
    with suppress(OSError):  # then it is compiled again next time
        _keep(path, hashlib.sha256(binary).hexdigest().encode() + b"\n" + binary)
    return binary


def _keep(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def missing() -> str | None:
    """Why nothing can be compiled here, or None."""
    try:
        _nvrtc()
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    return None


def _nvrtc() -> ctypes.CDLL:
    """The library of torch's CUDA version: torch knows where it is, or it lies among the packages beside torch."""
    name = f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        packages = Path(torch.__file__).parent.parent
        for place in (*packages.glob(f"nvidia/*/lib/{name}*"), *packages.glob(f"torch/lib/{name}*")):
            return ctypes.CDLL(str(place))
        raise


def _compile(text: str, name: str, options: Sequence[str]) -> bytes:
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if code:
        raise CudaError(f"NVRTC: error {code}")
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), words):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CudaError(f"{name} does not compile: {log.value.decode(errors='replace').strip()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
