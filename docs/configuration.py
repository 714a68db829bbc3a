"""Writes docs/configuration.md from the docstrings of the configuration's dataclasses.

``make docs`` runs it; tests/house/test_configuration_doc.py fails when the page is stale.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import typing
from pathlib import Path
from typing import Any, Literal

import tomli_w
from headway.console.folder.claim import KEPT_ON_RESUME
from headway.trainer.config import SETTINGS, RunConfig

PAGE = Path(__file__).with_name("configuration.md")
WIDTH = 100

INTRO = """
# Configuration

*Written by `make docs` from the dataclasses in `headway.*.config` of each service. Change a
docstring there, not this page; a test compares the two.*

A run is described by one TOML file with the tables below. Every key has a default, so a file names
only what differs; [examples/tiny.toml](../examples/tiny.toml) is one. Values are taken in this
order, and later ones win: the defaults on this page, the file, `--set`:

```
headway run examples/tiny.toml --set train.steps=400 --set optim.lr=1e-3
headway run examples/tiny.toml --set train.steps=400 --dry-run
```

The second command prints the resulting configuration and starts nothing. Each run keeps its own in
`runs/NAME/config.toml`. An unknown key, a wrong type or a value out of range is refused before
anything starts, with the nearest known key or the allowed values.

Five rules connect the tables:

- `parallel.tp * parallel.pp * parallel.dp` equals `launch.nodes * launch.ranks_per_node`;
- `train.global_batch_size` is a multiple of `train.micro_batch_size`, with a micro-batch for each
  replica; if `parallel.dp` does not divide them, the first replicas have one more. It does with
  `train.batch_ramp`, whose start and increment are such multiples too, and with the interleaved
  schedule, where each replica's number is a multiple of `parallel.pp`;
- with `parallel.pp` above 1, `model.layers` is a multiple of `parallel.pp * parallel.vp`, unless
  `parallel.stage_layers` or `parallel.head_layers` is set;
- `parallel.tp` divides `model.heads`, the width of the MLP, `model.seq_len`, and the vocabulary
  rounded up to a multiple of 64; it divides `model.kv_heads` or is a multiple of it;
- `model.vocab_size` is at least the vocabulary of the corpus.

Names that end in `_s` are seconds; [operations.md](operations.md) gives the source of each time
limit.
"""
CHANGES = f"""
While a run is live, only {", ".join(f"`{name}`" for name in SETTINGS)} can be changed, with
`headway set RUN lr=3e-4`. An unfinished run that is started again under its name resumes with
the new values, except those that belong to its checkpoints, which must stay the same: the model,
however it is written, {", ".join(f"`{key}`" for key in KEPT_ON_RESUME)}.
"""

ENVIRONMENT = {
    "HEADWAY_CACHE": "Folder of the measured peak (`peak.json`), instead of `~/.cache/headway`.",
    "HEADWAY_SHM_ROOT": "Folder for shared memory, instead of one below `/dev/shm` per user.",
    "HEADWAY_SOCK_ROOT": "Folder for sockets, instead of one below `/tmp` per user. Keep it short.",
    "HEADWAY_KMSG": "A file of kernel lines that agents read instead of `/dev/kmsg`.",
    "HEADWAY_NOTIFY": "Web addresses, separated by spaces, that a monitor sends verdicts to.",
    "HEADWAY_SYSFS_ROOT": "The counters of NICs and interfaces that agents read instead of `/sys`.",
    "HEADWAY_NVML": "The library that agents use instead of the driver's `libnvidia-ml.so.1`.",
    "HEADWAY_RUN_ID": "Set by the launcher in every process of a run: the run it belongs to.",
    "HEADWAY_NODE": "Set by the launcher: the number of the node.",
    "HEADWAY_RESTARTED_FOR": "Set by a node's init: why it started this executor again.",
    "HEADWAY_ROLE": "Set by the launcher: what the process is, for example `executor`.",
    "HEADWAY_LOG_MIB": "Set by the executor: `launch.log_mib`, for the processes it starts.",
    "HEADWAY_ENDS_WITH": "Set by the parent of a check: the process with which it ends.",
    "HEADWAY_BEAT_FD": "Set by a node's init: the pipe to which the executor writes its beats.",
    "HEADWAY_FAULT": "Set by `headway inject` in the process that holds a fault that lasts.",
    "HEADWAY_CLOCK": "Set by the drills: the file that shifts the wall clock of a process.",
}
"""Every variable that the sources read or set, and what it is for; a test compares the names."""


def page() -> str:
    """The whole page."""
    parts = [INTRO.strip(), "", *_item(_one_line(CHANGES), indent="")]
    for table in dataclasses.fields(RunConfig):
        parts += ["", *_table(table.name, typing.get_type_hints(RunConfig)[table.name])]
    parts += ["", "## Environment variables", ""]
    for name, meaning in ENVIRONMENT.items():
        parts += _item(f"- `{name}`: {meaning}")
    return "\n".join(parts) + "\n"


def _table(name: str, cls: type[Any]) -> list[str]:
    """The heading of one table, what it is about, and one item per key."""
    about = _one_line(cls.__doc__ or "")
    lines = [f"## `[{name}]`", "", *textwrap.wrap(_markdown(about), WIDTH), ""]
    meanings, hints = docstrings(cls), typing.get_type_hints(cls)
    nested: list[str] = []
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            lines += _item(f"- `[{name}.{field.name}]`: {_markdown(meanings[field.name])}")
            nested += ["", *_table(f"{name}.{field.name}", hints[field.name])]
            continue
        given = f"`{field.name}`, not set" if field.default is None else _assignment(field)
        choices = _choices(hints[field.name], field.default)
        lines += _item(f"- {given}{choices}: {_markdown(meanings[field.name])}")
    return lines + nested


def docstrings(cls: type[Any]) -> dict[str, str]:
    """Field -> the string literal below it, on one line; "" where there is none."""
    (body,) = (
        node.body
        for node in ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        if isinstance(node, ast.ClassDef)
    )
    found = {field.name: "" for field in dataclasses.fields(cls)}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    found[field.target.id] = _one_line(text)
    return found


def _assignment(field: dataclasses.Field[Any]) -> str:
    """As the key is written in TOML, with its default."""
    if field.default_factory is dict:
        return f"`{field.name} = {{}}`"
    return f"`{tomli_w.dumps({field.name: field.default}).strip()}`"


def _choices(hint: Any, default: Any) -> str:
    """The other values of a key that takes only some."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is not Literal else (hint,)
    choices = [
        c for one in parts if typing.get_origin(one) is Literal for c in typing.get_args(one)
    ]
    if not choices:
        return ""
    others = [f'`"{choice}"`' for choice in choices if choice != default]
    if bool in parts:
        others = ["`true`", "`false`", *others]
    return f" (or {', '.join(others)})"


def _item(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    """A docstring's double back quotes as single ones."""
    return re.sub(r"``(.+?)``", r"`\1`", text)


if __name__ == "__main__":
    PAGE.write_text(page())
