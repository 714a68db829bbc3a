"""What the doctor shows of NCCL's settings for a configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.console.cli import main
from headway.console.machine.doctor import Finding
from headway.console.machine.nccl import examine_nccl
from headway.trainer.config import RunConfig

NO_FILE = {"NCCL_CONF_FILE": ""}


def _found(
    tmp_path: Path, environ: dict[str, str] | None = None, *, hang_act_s: float = 0.0, **keys: Any
) -> dict[str, Finding]:
    tables = {
        "train": {"device": "gpu"},
        "parallel": keys,
        "recovery": {"hang_act_s": hang_act_s},
    }
    return examine_nccl(
        from_dict(RunConfig, tables),
        environ or NO_FILE,
        sysfs=tmp_path / "sys",
        etc=tmp_path / "nccl.conf",
        dev=tmp_path / "dev",
    )


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A machine with one active InfiniBand port; returns where ``/etc/nccl.conf`` would be."""
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    for name, text in (("link_layer", "InfiniBand"), ("state", "4: ACTIVE"), ("rate", "400 Gb")):
        (folder / name).write_text(text)
    return tmp_path


def test_each_variable_has_value_source_and_reason_and_the_link_its_seconds(adapter: Path) -> None:
    (adapter / "nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    found = _found(adapter, {"NCCL_CONF_FILE": "", "NCCL_IB_RETRY_CNT": "6"}, nccl_profile="ib")
    assert found["NCCL_IB_TIMEOUT"].message.startswith("19 (profile ib): an adapter resends")
    assert found["NCCL_IB_RETRY_CNT"].message.startswith("6 (environment): as often as ")
    assert found["NCCL_DEBUG"].message == f"WARN ({adapter / 'nccl.conf'})"
    assert found["nccl link"] == Finding("ok", "may be away for 12.9 s (4.096 us x 2^19 x 6)")
    assert {one.level for one in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("timeout", "hang_act_s", "words"),
    [
        ("18", 0.0, "7.52 s (4.096 us x 2^18 x 7), shorter than parallel.flap_s=10"),
        ("22", 0.0, "120 s (4.096 us x 2^22 x 7), longer than the automatic recovery.hang_act_s"),
        ("20", 25.0, "30.1 s (4.096 us x 2^20 x 7), longer than recovery.hang_act_s 25 s"),
        ("0", 0.0, "never gives up a link (NCCL_IB_TIMEOUT=0), longer than"),
    ],
)
def test_a_window_that_is_shorter_than_a_flap_or_longer_than_a_hang_is_noted(
    timeout: str, hang_act_s: float, words: str, adapter: Path
) -> None:
    environ = {"NCCL_CONF_FILE": "", "NCCL_IB_TIMEOUT": timeout, "NCCL_IB_RETRY_CNT": "7"}
    link = _found(adapter, environ, hang_act_s=hang_act_s, nccl_profile="ib")["nccl link"]
    assert link.level == "note" and words in link.message
    assert "unset NCCL_IB_TIMEOUT" in link.remedy


def test_the_profile_is_compared_with_the_adapters_of_the_machine(adapter: Path) -> None:
    missing = _found(adapter)["nccl"]
    assert missing.level == "note" and missing.remedy.startswith("set it to ib, so")
    other = _found(adapter, nccl_profile="roce")["nccl"]
    assert other.level == "note" and "no port here is active" in other.message
    assert _found(adapter, nccl_profile="ib")["nccl"].level == "ok"
    nothing = {"nccl": Finding("ok", 'parallel.nccl_profile="none"')}
    assert _found(adapter / "elsewhere") == nothing


@pytest.fixture
def efa(tmp_path: Path) -> Path:
    """A machine with two adapters of EFA, as its driver shows them; returns its folder."""
    sysfs, driver = tmp_path / "sys", tmp_path / "sys/bus/pci/drivers/efa"
    driver.mkdir(parents=True)
    (sysfs / "module/efa").mkdir(parents=True)
    (sysfs / "module/efa/version").write_text("2.13.0g\n")
    for number in (0, 1):
        device = sysfs / f"bus/pci/devices/0000:00:1{number}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1d0f\n")
        (device / "device").write_text("0xefa1\n")
        (device / "driver").symlink_to(driver)
        port = sysfs / f"class/infiniband/rdmap{number}s0/ports/1"
        port.mkdir(parents=True)
        (port.parents[1] / "device").symlink_to(device)
        for name, text in (("link_layer", "Unspecified"), ("state", "4: ACTIVE"), ("rate", "100")):
            (port / name).write_text(text)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    return tmp_path


def test_the_profile_efa_shows_its_adapters_and_their_driver(efa: Path) -> None:
    found = _found(efa, nccl_profile="efa")["nccl"]
    assert found == Finding(
        "ok", 'parallel.nccl_profile="efa": 2 EFA (rdmap0s0, rdmap1s0), driver 2.13.0g'
    )
    (efa / "sys/module/efa/version").unlink()  # the driver of the kernel itself has none
    assert _found(efa, nccl_profile="efa")["nccl"].message.endswith("(rdmap0s0, rdmap1s0)")
    missing = _found(efa)["nccl"]
    assert missing.level == "note" and missing.remedy.startswith("set it to efa, so")


def test_a_container_without_the_devices_of_its_adapters_is_noted(efa: Path) -> None:
    (efa / "dev/infiniband/uverbs0").unlink()
    found = _found(efa, nccl_profile="efa")["nccl"]
    assert found.level == "note" and "2 EFA" in found.message
    assert (
        "uverbs*, to reach them by, is missing" in found.message
        and "docker --device" in found.remedy
    )


def test_adapters_of_efa_without_a_driver_and_machines_without_any_are_told_apart(
    efa: Path, adapter: Path
) -> None:
    for number in (0, 1):
        (efa / f"sys/class/infiniband/rdmap{number}s0/device").unlink()
        (efa / f"sys/bus/pci/devices/0000:00:1{number}.0/driver").unlink()
        found = _found(efa, nccl_profile="efa")["nccl"]
        assert found.level == "note"
        assert ("no driver serves the others (1)" in found.message) == (number == 0)
    assert "no driver serves the EFA adapters here (2)" in found.message
    assert "module efa" in found.remedy
    for device in (efa / "sys/bus/pci/devices").iterdir():
        (device / "vendor").write_text("0x15b3\n")
    none = _found(adapter, nccl_profile="efa")["nccl"]
    assert none.level == "note" and "has no EFA adapter" in none.message


def test_of_a_variable_that_is_set_twice_the_value_that_wins_is_shown_with_the_others(
    adapter: Path,
) -> None:
    own, etc = adapter / "own.conf", adapter / "nccl.conf"
    own.write_text("NCCL_IB_RETRY_CNT=5\nNCCL_DEBUG=WARN\n")
    etc.write_text("NCCL_IB_TIMEOUT=18\nNCCL_IB_RETRY_CNT=4\nNCCL_DEBUG=WARN\n")
    environ = {"NCCL_CONF_FILE": str(own), "NCCL_IB_TIMEOUT": "22"}
    found = _found(adapter, environ, nccl_profile="ib")
    timeout, retries = found["NCCL_IB_TIMEOUT"].message, found["NCCL_IB_RETRY_CNT"].message
    assert timeout.startswith(f"22 (environment, which wins over 18 of {etc}): ")
    assert retries.startswith(f"5 ({own}, which wins over 4 of {etc}): ")
    assert found["NCCL_DEBUG"].message == f"WARN ({own})", "both say the same"
    assert "4.096 us x 2^22 x 5" in found["nccl link"].message


@pytest.mark.parametrize(
    ("hang_act_s", "level", "words"),
    [(0.0, "note", "the automatic recovery.hang_act_s does not allow for"), (40.0, "ok", "")],
)
def test_without_a_profile_the_window_is_that_of_nccls_defaults(
    hang_act_s: float, level: str, words: str, adapter: Path
) -> None:
    link = _found(adapter, hang_act_s=hang_act_s)["nccl link"]
    assert link.level == level and words in link.message
    assert link.message.startswith("may be away for 30.1 s (4.096 us x 2^20 x 7)")
    assert bool(link.remedy) == (level == "note")


def test_what_overrides_the_thread_blocks_and_a_file_that_is_missing_are_noted(
    adapter: Path,
) -> None:
    found = _found(adapter, {"NCCL_CONF_FILE": "~/nccl", "NCCL_MAX_CTAS": "16"}, pair_ctas=2)
    assert "overrides parallel.pair_ctas=2" in found["NCCL_MAX_CTAS"].message
    assert "~/nccl cannot be read" in found["NCCL_CONF_FILE"].message
    assert all(one.level == "note" and one.remedy for one in found.values())


def test_ranks_on_cpus_need_no_nccl() -> None:
    found = examine_nccl(from_dict(RunConfig, {"train": {"device": "cpu"}}))
    assert found == {"nccl": Finding("ok", 'not used: train.device="cpu"')}


def test_the_command_takes_a_configuration_and_refuses_a_bad_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[parallel]\nnccl_profile = "efa"\n')
    main(["doctor", str(file), "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["FI_PROVIDER"]["message"].startswith("efa (profile efa): ")
    assert main(["doctor", str(file), "--set", "parallel.flap_s=inf"]) == 2
    said = capsys.readouterr().err
    assert "parallel.flap_s=inf is out of range" in said and said.count("\n") == 1


def test_the_settings_are_shown_without_an_import_of_torch() -> None:
    program = "import sys, headway.console.machine.nccl; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
