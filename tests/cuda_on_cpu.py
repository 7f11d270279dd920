"""A CUDA source compiled for the CPU (cuda_on_cpu.h), with what `fedproc.kernels.cuda.Module` offers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedproc.kernels.cuda import as_pointers

COMPILER = next((found for name in ("g++", "clang++") if (found := shutil.which(name))), None)
KERNELS_OF_SIMPLE_CNN = (
    "conv_forward", "head_forward1", "head_forward2", "head_backward1", "head_backward2", "head_weights", "conv2_input",
    "conv2_weights", "conv1_weights", "fold",
)  # fmt: skip
HEADER = Path(__file__).with_name("cuda_on_cpu.h")


class OnCpu:
    def __init__(self, source: Path, defined: Mapping[str, int], kernels: Sequence[str]) -> None:
        assert COMPILER is not None
        with tempfile.TemporaryDirectory() as folder:
            program, library = Path(folder, "program.cpp"), Path(folder, "program.so")
            program.write_text("\n".join([f'#include "{source}"', *(f"LAUNCHER({name})" for name in kernels)]))
            words = [
                COMPILER,
                "-O2",
                "-U_FORTIFY_SOURCE",
                "-std=c++17",
                "-w",
                "-shared",
                "-fPIC",
                "-include",
                str(HEADER),
            ]
            words += [*(f"-D{name}={value}" for name, value in defined.items()), str(program), "-o", str(library)]
            subprocess.run(words, check=True, capture_output=True, text=True)
            self._library = ctypes.CDLL(str(library))

    def numbers(self, name: str, count: int) -> list[int]:
        return list((ctypes.c_int * count).in_dll(self._library, name))

    def launch(self, name: str, grid: tuple[int, int], threads: int, shared: int, *arguments: Any) -> None:
        pointers, held = as_pointers(arguments)
        getattr(self._library, f"launch_{name}")((ctypes.c_int * 2)(*grid), threads, shared, pointers)
        del held
