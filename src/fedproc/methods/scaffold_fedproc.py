"""SCAFFOLD and FedProc combined: control variates take the drift out of the gradient of FedProc's loss."""

from __future__ import annotations

from typing import ClassVar

from fedproc.methods import fedproc, method, scaffold
from fedproc.methods.fedproc import FedProc
from fedproc.methods.scaffold import Scaffold


class Options(scaffold.Options, fedproc.Options):
    """Those of both."""


class ScaffoldFedProc(Scaffold, FedProc):
    """Every hook builds on the one above it, so this is all of it."""

    name: ClassVar[str] = "scaffold+fedproc"
    summary: ClassVar[str] = "FedProc's loss with SCAFFOLD's control variates"
    family: ClassVar[str] = "prototypes"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options
