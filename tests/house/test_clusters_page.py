"""docs/howto/clusters.md: each `slurm.toml` on it is one that the Slurm engine accepts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.launch.engines.slurm.config import SlurmConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "clusters.md"
SECTIONS = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text()))
FILES = {
    name: re.findall(r"(?ms)^```text\n# slurm\.toml\n(.*?)^```", text)
    for name, text in SECTIONS.items()
    if name != "A prolog that makes no request to Slurm"
}


def test_every_section_has_a_file() -> None:
    assert len(FILES) == 5 and all(len(found) == 1 for found in FILES.values()), FILES


@pytest.mark.parametrize("name", FILES)
def test_the_file_of_a_section_is_accepted(name: str) -> None:
    config = from_dict(SlurmConfig, tomllib.loads(FILES[name][0]))
    assert config.asks_for_gpus and config.drain[:2] == ("scontrol", "update")


def test_a_key_that_the_engine_does_not_know_is_noticed() -> None:
    with pytest.raises(ConfigError, match="sharde"):
        from_dict(SlurmConfig, {"sharde": "/x"})
