"""How long a worker outlives its executor."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.config import to_toml
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.config import RecoveryConfig
from headway.trainer.worker.worker import Worker

LIMITS = RecoveryConfig()


@pytest.mark.parametrize(
    ("has_rank", "limit_s"), [(False, LIMITS.node_lost_s), (True, LIMITS.orphan_limit_s)]
)
def test_a_standby_ends_soon_after_its_executor_and_a_rank_waits_for_the_next_one(
    has_rank: bool, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    with private_roots():
        folder = RunDir.create(tmp_path / "run", run_id=new_run_id())
        folder.config.write_text(to_toml(one_rank()))
        NodePaths(folder.run_id, 0).create()
        worker = Worker(folder.path, 0, "n0w0")
        try:
            monkeypatch.setattr(worker, "_quit", ends.append)
            monkeypatch.setattr(worker, "_rank", object() if has_rank else None)
            worker._silence(limit_s)
            assert ends == []
            worker._silence(limit_s + 1.0)
            assert ends == [f"no executor for {limit_s + 1.0:.0f} s"]
        finally:
            worker.link.close()
