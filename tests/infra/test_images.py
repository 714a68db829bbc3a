"""What infra/images/Dockerfile says, read without building: pins, users, and that the images of all
devices are installed in the same way. ``test_image_build.py`` builds the one for CPUs."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "infra" / "images" / "Dockerfile"
DEVICES = ("cpu", "cuda")
INSTALLS = ("apt-get install", "pip install", "pip wheel", "uv pip")


@dataclass
class Stage:
    """One ``FROM`` with the instructions below it, each as (word, rest)."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, word: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == word]


def parse(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages in their order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = " ".join(line.split()).partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base, name))
        elif word == "ARG" and not stages:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word:
            stages[-1].instructions.append((word, rest))
    return arguments, stages


ARGUMENTS, STAGES = parse(FILE.read_text())


def commands() -> list[str]:
    """Each command of each RUN, without the options of the RUN itself."""
    runs = [rest for stage in STAGES for rest in stage.of("RUN")]
    return [part for run in runs for part in re.sub(r"--mount=\S+ ", "", run).split(" && ")]


def chain(device: str) -> list[str]:
    """Names of the stages that an image of ``device`` is made of, "" for the last one."""
    by_name = {stage.name: stage for stage in STAGES}
    wanted, found = [""], list[str]()
    while wanted:
        name = wanted.pop()
        if name in found or name not in by_name:
            continue
        found.append(name)
        stage = by_name[name]
        text = " ".join(rest for _, rest in stage.instructions)
        wanted.append(stage.base.replace("${DEVICE}", device))
        wanted += re.findall(r"(?:--from=|,from=)(\w+)", text)
    return found


def test_every_stage_stands_on_another_or_on_the_base_with_a_digest() -> None:
    known = {stage.name for stage in STAGES}
    for device in DEVICES:
        bases = [stage.base.replace("${DEVICE}", device) for stage in STAGES]
        assert {base for base in bases if base not in known} == {"${BASE}"}
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", ARGUMENTS["BASE"])


def test_packages_of_python_are_pinned_and_those_of_debian_leave_no_lists() -> None:
    found = [command for command in commands() if any(word in command for word in INSTALLS)]
    for command in found:
        is_pinned = any(
            option in command
            for option in ("--constraint constraints.txt", "--requirement pins.txt", "--no-deps")
        )
        assert is_pinned or "apt-get install -y --no-install-recommends" in command, command
    assert len(found) == 8
    for run in (rest for stage in STAGES for rest in stage.of("RUN")):
        assert ("apt-get" in run) == ("rm -rf /var/lib/apt/lists/*" in run), run
    assert not [stage for stage in STAGES if stage.of("ADD")], "nothing is fetched by its address"


def test_the_images_of_all_devices_are_installed_in_the_same_way() -> None:
    cpu, cuda = (chain(device) for device in DEVICES)
    assert [name.removesuffix("-cpu") for name in cpu] == [
        name.removesuffix("-cuda") for name in cuda
    ]
    own = {stage.name: stage for stage in STAGES if stage.name.endswith(("-cpu", "-cuda"))}
    words = {name: {word for word, _ in stage.instructions} for name, stage in own.items()}
    assert words == {
        "python-cpu": set(), "python-cuda": {"ENV", "RUN"},
        "tools-cpu": {"ENV"}, "tools-cuda": {"ENV"},
    }  # fmt: skip
    assert "apt-get install" in own["python-cuda"].of("RUN")[0], "a compiler, and nothing of Python"


@pytest.mark.parametrize("device", DEVICES)
def test_an_image_has_the_parts_and_extras_of_make_setup(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "infra" / "setup"))
    install = runpy.run_path(str(ROOT / "infra" / "setup" / "install.py"))
    parts = [*install["SETS"]["run"], *(install["GPU_PARTS"] if device == "cuda" else [])]
    wanted = {
        (Path(part.partition("[")[0]).name, extra)
        for part in parts
        for extra in part.partition("[")[2].strip("]").split(",")
    }
    [env] = [" ".join(stage.of("ENV")) for stage in STAGES if stage.name == f"tools-{device}"]
    named = re.findall(r"headway-([\w-]+)\[([\w,]+)\]", env)
    extras = {(name, extra) for name, listed in named for extra in listed.split(",")}
    [wheels] = [command for command in commands() if "pip wheel" in command]
    folders = [path for word in wheels.split() if "./" in word for path in ROOT.glob(word[2:])]
    built = {path.name for path in folders} - _left_out()
    # an extra that another one brings, such as the trainer's `compute`, is not named again
    assert extras <= wanted and {name for name, _ in wanted} == built
    assert {name for name, extra in wanted - extras if extra} <= {"trainer"}


def _left_out() -> set[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return {Path(line).name for line in lines if line.startswith("libs/")}


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    copied = {
        word
        for stage in STAGES
        for rest in stage.of("COPY")
        if not rest.startswith("--from=")
        for word in rest.split()[:-1]
    }
    first, *lines = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"
    ]
    assert first == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / path).exists() for path in copied)


def test_an_image_runs_headway_as_a_user_without_rights() -> None:
    image = STAGES[-1]
    [user] = image.of("USER")
    assert re.fullmatch(r"(\d+):(\d+)", user) and int(user.partition(":")[0]) > 0
    words = [word for word, _ in image.instructions]
    assert not {"RUN", "COPY"} & set(words[words.index("USER") :]), "it can change no file of these"
    assert f"useradd --uid {user.partition(':')[0]}" in image.of("RUN")[0]
    assert image.of("ENTRYPOINT") == ['["headway"]']
    assert "PATH=/opt/headway/bin:${PATH}" in image.of("ENV"), "`python3` is the installation's"
    # a pod is known by its host name only while the image gives it no machine-id
    assert ": > /etc/machine-id" in image.of("RUN")[0]


def test_hadolint_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("no hadolint on the PATH")
    done = subprocess.run(["hadolint", FILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_reader_joins_lines_and_knows_stages() -> None:
    text = "ARG A=1\nFROM ${A} AS one\n# no\nRUN a \\\n    && b\nFROM one\nUSER 7\n"
    arguments, stages = parse(text)
    assert arguments == {"A": "1"} and [stage.name for stage in stages] == ["one", ""]
    assert stages[0].of("RUN") == ["a && b"] and stages[1].of("USER") == ["7"]
