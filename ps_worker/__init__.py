"""The library that a training script imports: join a job, push gradients, pull weights.

import ps_worker as ps

with ps.connect() as worker:
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for x, y in worker.loader(dataset, batch_size=64):
        ...
"""

from __future__ import annotations

import os

# gRPC's threads do not survive a fork; its fork handlers hang a DataLoader's workers instead.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from ps_wire.errors import (
    CallLimitExceeded,
    ConfigurationRefused,
    ConnectionLost,
    CutAborted,
    Evicted,
    GradientChanged,
    HyperparametersDiffer,
    JobDropped,
    JobUnknown,
    NonFiniteGradient,
    PsError,
    RolledBack,
    ServerUnreachable,
    StartLimitExceeded,
    UsageError,
    WeightsChanged,
)
from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.staleness import Staleness
from ps_wire.spec.table import BucketOptions
from ps_worker.connect import connect
from ps_worker.data.label_skew import LabelSkew
from ps_worker.data.loader import Loader
from ps_worker.job.stats import Stats
from ps_worker.model.hyperparameters import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    OptimizerChoice,
    RAdam,
    RMSprop,
    Rprop,
)
from ps_worker.optimizer.wrapped import WrappedOptimizer
from ps_worker.readers.reader import Cut, Reader
from ps_worker.table import Pulled, Table
from ps_worker.worker import Worker

__all__ = [
    "connect",
    "Worker",
    "WrappedOptimizer",
    "Loader",
    "LabelSkew",
    "Reader",
    "Cut",
    "Table",
    "Pulled",
    "Stats",
    "EpochUse",
    "Staleness",
    "OptimizerChoice",
    "BucketOptions",
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "ASGD",
    "Rprop",
    "PsError",
    "UsageError",
    "ConfigurationRefused",
    "ServerUnreachable",
    "CallLimitExceeded",
    "StartLimitExceeded",
    "ConnectionLost",
    "CutAborted",
    "Evicted",
    "RolledBack",
    "JobUnknown",
    "JobDropped",
    "GradientChanged",
    "HyperparametersDiffer",
    "NonFiniteGradient",
    "WeightsChanged",
]
