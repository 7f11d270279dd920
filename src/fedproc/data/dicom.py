"""One DICOM file: who and where it is from, and its frames in the units of its modality. Needs fedproc[dicom]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedproc.data.images import Bytes
from fedproc.data.pictures import DICOM
from fedproc.errors import InputError, RunError

if TYPE_CHECKING:
    from pydicom import Dataset

Levels = npt.NDArray[np.float32]
Padding = npt.NDArray[np.bool_]
WHITE = 65535
MOST_WORDS = 300  # of what a library says


def require_pydicom() -> None:
    try:
        import pydicom  # noqa: F401
    except ImportError as error:
        raise RunError("DICOM needs a package that is not here: pip install 'fedproc[dicom]'") from error


def is_dicom(path: Path) -> bool:
    """By its name or its first bytes; DICOMDIR lists others and is none itself."""
    if path.name.upper() == "DICOMDIR" or path.name.startswith("."):
        return False
    if path.suffix.lower() in DICOM:
        return True
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


@dataclass(frozen=True)
class Window:
    """The levels that become black and white, the same for a whole data set."""

    low: float
    high: float

    def applied(self, levels: Levels, padding: Padding, inverted: bool) -> npt.NDArray[np.uint16]:
        """16 bits; beyond the window all is black or white. Padding is black."""
        share = np.clip((levels - self.low) / (self.high - self.low), 0.0, 1.0)
        grey = np.rint((1.0 - share if inverted else share) * WHITE)
        return np.where(padding, 0, grey).astype(np.uint16)


@dataclass(frozen=True)
class Header:
    """What the manifest takes from a file's header."""

    patient: str
    institution: str
    modality: str
    burnt_in: bool


class Dicom:
    """One file that holds pixels."""

    def __init__(self, path: Path) -> None:
        import pydicom

        self._path = path
        try:
            self._data: Dataset = pydicom.dcmread(path, force=path.suffix.lower() in DICOM)
        except Exception as error:  # damaged files fail in many ways
            raise InputError(f"{path}: not a readable DICOM file: {error}") from error
        if "SOPClassUID" not in self._data and not self.has_pixels:  # what any file read by force may look like
            raise InputError(f"{path}: not a readable DICOM file: it says not even what it holds (SOPClassUID)")

    @property
    def has_pixels(self) -> bool:
        return any(name in self._data for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData"))

    @property
    def header(self) -> Header:
        names = ("PatientID", "InstitutionName", "Modality")
        patient, institution, modality = (str(self._data.get(name) or "").strip() for name in names)
        burnt_in = str(self._data.get("BurnedInAnnotation", "")).upper() == "YES"
        return Header(patient, institution, modality, burnt_in)

    @property
    def _photometric(self) -> str:
        return str(self._data.get("PhotometricInterpretation", ""))

    @property
    def coloured(self) -> bool:
        return int(self._data.get("SamplesPerPixel", 1)) == 3 or self._photometric == "PALETTE COLOR"

    @property
    def inverted(self) -> bool:
        """Whether low levels are bright."""
        return self._photometric == "MONOCHROME1"

    def colours(self) -> Iterator[Bytes]:
        """Each frame (H, W, 3), of images that have colours and so no window."""
        from pydicom.pixels.processing import apply_color_lut

        pixels = self._pixels()
        if self._photometric == "PALETTE COLOR":
            pixels = self._made(lambda: apply_color_lut(pixels, self._data))
        for frame in pixels if pixels.ndim == 4 else pixels[None]:
            yield frame.astype(np.uint8) if frame.dtype == np.uint8 else (frame.astype(np.uint16) >> 8).astype(np.uint8)

    def frames(self) -> Iterator[tuple[Levels, Padding]]:
        """Each frame (H, W) in the units of its modality (Hounsfield units of a CT), and where it is padding."""
        pixels = self._pixels()
        for place, frame in enumerate(pixels if pixels.ndim == 3 else pixels[None]):
            levels = self._made(lambda frame=frame, place=place: self._rescaled(frame, place))
            yield np.asarray(levels, dtype=np.float32), self._padding(frame)

    def _pixels(self) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._made(lambda: self._data.pixel_array)
        return found

    def _made(self, work: Any) -> Any:
        try:
            return work()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self._path}: its pixels cannot be read: {reason[:MOST_WORDS]}") from error

    def _rescaled(self, frame: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
        """By the file's slope and intercept or table, or by those of the frame, where an enhanced object has them."""
        from pydicom.pixels.processing import apply_modality_lut, apply_rescale

        groups = self._data.get("PerFrameFunctionalGroupsSequence") or []
        shared = self._data.get("SharedFunctionalGroupsSequence") or []
        for group in (*groups[place : place + 1], *shared[:1]):
            if found := group.get("PixelValueTransformationSequence"):
                return np.asarray(apply_rescale(frame, found[0]))
        return np.asarray(apply_modality_lut(frame, self._data))

    def _padding(self, frame: npt.NDArray[Any]) -> Padding:
        value = self._data.get("PixelPaddingValue")
        if value is None:
            return np.zeros(frame.shape, dtype=bool)
        limit = self._data.get("PixelPaddingRangeLimit", value)
        return np.asarray((frame >= min(value, limit)) & (frame <= max(value, limit)), dtype=bool)
