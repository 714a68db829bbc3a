"""The configuration of a run: one TOML file, with a table per component."""

from headway.trainer.config.launch import SINKS, LaunchConfig, check_sink
from headway.trainer.config.live import (
    MAX_LR_RATIO,
    SETTINGS,
    check_name,
    check_sample,
    check_setting,
)
from headway.trainer.config.memory import memory_shape
from headway.trainer.config.model import ModelConfig
from headway.trainer.config.parallel import ParallelConfig
from headway.trainer.config.ports import MetricsPorts
from headway.trainer.config.recovery import RecoveryConfig
from headway.trainer.config.run import RunConfig
from headway.trainer.config.training import OptimConfig, TrainConfig

__all__ = [  # noqa: RUF022 - plain order, as in every other package
    "LaunchConfig",
    "MAX_LR_RATIO",
    "MetricsPorts",
    "ModelConfig",
    "OptimConfig",
    "ParallelConfig",
    "RecoveryConfig",
    "RunConfig",
    "SETTINGS",
    "SINKS",
    "TrainConfig",
    "check_name",
    "check_sample",
    "check_setting",
    "check_sink",
    "memory_shape",
]
