"""Judges what machines report of themselves: what keeps each of them from a common run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headway.common import installed
from headway.launch.join.facts import CLOCK_LIMIT_S, MachineFacts
from headway.launch.join.needs import MIN_SHM_BYTES, SHM

V = TypeVar("V", str, int)


@dataclass(frozen=True)
class Answer:
    """What a machine has answered, and this machine's clock before and after, in Unix seconds."""

    facts: MachineFacts
    asked_unix_s: float
    answered_unix_s: float
    has_nonce: bool = True
    """Whether this machine finds in the shared folder what the other one has written there."""

    @property
    def clock_off_s(self) -> float:
        """How far its clock is off at least: 0 if it lies between the two instants."""
        late_s = self.facts.unix_s - self.answered_unix_s
        early_s = self.facts.unix_s - self.asked_unix_s
        return max(late_s, 0.0) + min(early_s, 0.0)


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with a machine, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} ({self.remedy})" if self.remedy else self.what


def judge(answers: Mapping[str, Answer], shared: str) -> dict[str, list[Trouble]]:
    """Machine -> what is wrong with it, nothing if it can take part in a run with the others.

    Headway is compared with this machine's, torch and GPUs with what most of them have: the console
    may have another build of torch, and no GPU.

    Args:
        answers: by the name under which the machine is reached.
        shared: the folder that all of them must see.
    """
    facts = [one.facts for one in answers.values()]
    torch, gpus = _usual([one.torch for one in facts]), _usual([one.gpus for one in facts])
    owners: dict[str, str] = {}
    found = {}
    for name, answer in answers.items():
        first = owners.setdefault(answer.facts.uid, name)
        found[name] = [
            *_installation(answer.facts, torch),
            *_hardware(answer, gpus),
            *_folder(answer, shared),
            *([_same_machine(first)] if first != name else []),
        ]
    return found


def _usual(values: Sequence[V]) -> V | None:
    """The most frequent value; of several the one that comes first. None without any."""
    return Counter(values).most_common(1)[0][0] if values else None


def _installation(facts: MachineFacts, torch: str | None) -> list[Trouble]:
    found = []
    own = (installed.version(), installed.source())
    if (facts.version, facts.source) != own:
        theirs, ours = (f"{version} (source {source})" for version, source in
                        ((facts.version, facts.source), own))  # fmt: skip
        found.append(
            Trouble(
                f"has Headway {theirs}, this machine {ours}",
                "install the same commit on each machine",
            )
        )
    if not facts.torch:
        found.append(Trouble("has no torch", "install the same torch on each machine"))
    elif facts.torch != torch:
        found.append(
            Trouble(
                f"has torch {facts.torch}, the others {torch or 'none'}",
                "install the same torch on each machine",
            )
        )
    return found


def _hardware(answer: Answer, gpus: int | None) -> list[Trouble]:
    found, facts = [], answer.facts
    if abs(answer.clock_off_s) > CLOCK_LIMIT_S:
        found.append(
            Trouble(
                f"its clock is {answer.clock_off_s:+.0f} s off this machine's",
                "set it (chrony or ntp)",
            )
        )
    if facts.gpus != gpus:
        found.append(
            Trouble(f"has {facts.gpus} GPUs, the others {gpus}", "repair it, or leave it out")
        )
    if facts.shm_bytes < MIN_SHM_BYTES:
        found.append(
            Trouble(
                f"its {SHM} has {facts.shm_bytes >> 20} MiB, "
                f"a small run needs {MIN_SHM_BYTES >> 20}",
                f"enlarge it: mount -o remount,size=... {SHM}",
            )
        )
    return found


def _folder(answer: Answer, shared: str) -> list[Trouble]:
    remedy = "mount the same folder there on all machines and on this one"
    if answer.facts.trouble:
        return [Trouble(answer.facts.trouble, remedy)]
    if not answer.has_nonce:
        return [Trouble(f"its {shared} is another folder than this machine's", remedy)]
    return []


def _same_machine(first: str) -> Trouble:
    return Trouble(
        f"has the machine-id of {first}",
        "list each machine once; copies of an image need an id of their own: "
        "rm /etc/machine-id && systemd-machine-id-setup",
    )
