"""SCAFFOLD's control variates with FedDecorr's loss: two methods combined, with the options of both."""

from fedproc.methods.feddecorr import FedDecorr
from fedproc.methods.scaffold import Scaffold


class Both(Scaffold, FedDecorr):
    name = "both"
    summary = "FedDecorr's loss with SCAFFOLD's control variates"
