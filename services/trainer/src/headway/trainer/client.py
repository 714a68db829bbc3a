"""The functions that other parts import.

They resolve a configuration, show what NCCL will be set to, move models from and to Hugging Face,
write texts with them, and train for some steps. Torch is loaded when a function needs it.
"""

from __future__ import annotations

from pathlib import Path

from headway.trainer.comm.adapters import efa as nccl_efa
from headway.trainer.comm.adapters import ports as nccl_adapters
from headway.trainer.comm.nccl_profile import Setting as NcclSetting
from headway.trainer.comm.nccl_profile import effective as nccl_settings
from headway.trainer.comm.nccl_profile import retries as nccl_retries
from headway.trainer.device.machine import resolve_auto
from headway.trainer.exchange.checkpoint import check_first_weights
from headway.trainer.exchange.report import ExchangeReport
from headway.trainer.inference.request import Request, Texts
from headway.trainer.trials.order import Outcome, Trial
from headway.trainer.trials.runner import TrialRunner

__all__ = [
    "ExchangeReport",
    "NcclSetting",
    "Outcome",
    "Request",
    "Texts",
    "Trial",
    "TrialRunner",
    "check_first_weights",
    "export_model",
    "import_model",
    "nccl_adapters",
    "nccl_efa",
    "nccl_retries",
    "nccl_settings",
    "resolve_auto",
    "write_texts",
]


def import_model(source: Path, target: Path) -> ExchangeReport:
    """See ``exchange.importing.import_model``."""
    from headway.trainer.exchange.importing import import_model

    return import_model(source, target)


def export_model(
    source: Path, target: Path, *, step: int | None = None, dtype: str
) -> ExchangeReport:
    """Export the folder ``source`` of a run or an imported model; see ``exchange.exporting``."""
    from headway.trainer.exchange.exporting import export_model
    from headway.trainer.exchange.source import open_model

    return export_model(open_model(source, step), target, dtype=dtype)


def write_texts(model: Path, request: Request) -> Texts:
    """See ``inference.stored.write_texts``."""
    from headway.trainer.inference.stored import write_texts

    return write_texts(model, request)
