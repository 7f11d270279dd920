"""Methods by name. Adding one is adding a file and a name here, or a file of your own given as --plugin."""

from __future__ import annotations

from types import MappingProxyType

from fedproc.methods.central import Central
from fedproc.methods.ditto import Ditto
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedavgm import FedAvgM
from fedproc.methods.fedbn import FedBN
from fedproc.methods.feddc import FedDC
from fedproc.methods.feddecorr import FedDecorr
from fedproc.methods.feddyn import FedDyn
from fedproc.methods.fedetf import FedETF
from fedproc.methods.fedlc import FedLC
from fedproc.methods.fedma import FedMA
from fedproc.methods.fednh import FedNH
from fedproc.methods.fednova import FedNova
from fedproc.methods.fedntd import FedNTD
from fedproc.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedproc.methods.fedper import FedPer
from fedproc.methods.fedproc import FedProc
from fedproc.methods.fedproto import FedProto
from fedproc.methods.fedprox import FedProx
from fedproc.methods.fedrep import FedRep
from fedproc.methods.fedrs import FedRS
from fedproc.methods.fedsam import FedSAM
from fedproc.methods.fedtgp import FedTGP
from fedproc.methods.fine_tuning import FineTuning
from fedproc.methods.fpl import FPL
from fedproc.methods.method import Method
from fedproc.methods.mime_lite import MimeLite
from fedproc.methods.moon import Moon
from fedproc.methods.scaffold import Scaffold
from fedproc.methods.scaffold_fedproc import ScaffoldFedProc
from fedproc.methods.solo import Solo
from fedproc.methods.two_stage import TwoStage

OURS: tuple[type[Method], ...] = (
    FedAvg,
    FedProc,
    FedProx,
    Scaffold,
    Moon,
    FedNova,
    FedAvgM,
    TwoStage,
    Solo,
    Central,
    FedETF,
    FedNH,
    FedLC,
    FedRS,
    FedDyn,
    FedDC,
    FedNTD,
    FedDecorr,
    ScaffoldFedProc,
    FedAdam,
    FedYogi,
    FedAdagrad,
    FedProto,
    FPL,
    FedSAM,
    FedPer,
    FedRep,
    FedBN,
    FineTuning,
    Ditto,
    MimeLite,
    FedTGP,
    FedMA,
)
METHODS = MappingProxyType({method.name: method for method in OURS})
FAMILIES = ("averaging", "prototypes", "client drift", "calibration", "representation", "personal", "bounds")

# where a paper does not write a method's name as its class has it
_WRITTEN = {
    "central": "central",
    "fedma": "matched averaging, fixed width",
    "fine-tuning": "fine-tuning",
    "mime-lite": "Mime-lite",
    "moon": "MOON",
    "scaffold": "SCAFFOLD",
    "scaffold+fedproc": "SCAFFOLD + FedProc",
    "solo": "SOLO",
    "two-stage": "two-stage",
}


def written(label: str) -> str:
    """A method's name as papers write it; any other label stays as it is."""
    return _WRITTEN.get(label) or (METHODS[label].__name__ if label in METHODS else label)
