"""CIFAR's python layout, turned into the bytes of the binary one, so that both are checked alike.

The files are pickles. They are read by an unpickler that knows arrays and nothing else: a file that asks for
any other object is refused before anything of it runs.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fedproc.errors import InputError

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which a file of images does not need")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def unpickle(content: bytes, path: str) -> dict[str, Any]:
    """The dictionary a file holds, its keys as text."""
    try:
        found = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{path}: not a readable CIFAR pickle: {error}") from error


def binary(content: bytes, path: str, label_keys: tuple[str, ...]) -> bytes:
    """Records of label bytes and pixels, as the .bin file of the same batch has them."""
    batch = unpickle(content, path)
    missing = [key for key in ("data", *label_keys) if key not in batch]
    if missing:
        raise InputError(f"{path}: has no {missing[0]}; expected a batch of CIFAR's python version")
    data = batch["data"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise InputError(f"{path}: data is not an array of bytes of N x 3072")
    columns = []
    for key in label_keys:
        labels = batch[key]
        if not isinstance(labels, list) or len(labels) != len(data):
            raise InputError(f"{path}: {key} is not a list of {len(data)} labels")
        if not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
            raise InputError(f"{path}: {key} holds something that is no label")
        columns.append(np.array(labels, dtype=np.uint8)[:, None])
    return np.hstack([*columns, data]).tobytes()


def names(content: bytes, path: str, key: str) -> bytes:
    """The class names of a meta file, one per line, as the binary version's text file has them."""
    found = unpickle(content, path).get(key, [])
    if not isinstance(found, list):
        raise InputError(f"{path}: {key} is not a list of names")
    return b"\n".join(name if isinstance(name, bytes) else str(name).encode() for name in found)
