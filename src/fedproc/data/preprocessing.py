"""The contract of a trained model: what is done to an image file before the network sees it. It stands in the model
file and in its ONNX export, so that whoever feeds a model elsewhere can do the same (docs/own-images.md).
"""

from __future__ import annotations

from typing import Any

from fedproc.data.augment import Normalisation
from fedproc.data.pictures import PAD_LEVEL, Fit


def preprocessing(side: int, channels: int, fit: Fit, normalisation: Normalisation) -> dict[str, Any]:
    """Every step, in order."""
    return {
        "orientation": "EXIF applied",
        "sixteen_bits": "upper byte",
        "colour": "RGB" if channels == 3 else "grey (Pillow L: 0.299 R + 0.587 G + 0.114 B)",
        "fit": fit,
        "pad_level": PAD_LEVEL if fit == "pad" else None,
        "size": [side, side],
        "resampling": "bilinear, antialiased (Pillow BILINEAR)",
        "layout": "NCHW",
        "range": [0, 255],
        "mean": list(normalisation.mean),  # of pixels / 255
        "std": list(normalisation.std),
        "normalised": "(pixel / 255 - mean) / std, by the model itself",
    }
