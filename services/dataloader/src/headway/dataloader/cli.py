"""``headway data`` and ``python -m headway.dataloader``: prepare, inspect, verify, serve a corpus.

Heavy imports happen inside the commands, so that ``--help`` is fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson, group, run
from headway.common.help_pages import DAEMONS, page
from headway.common.output import emit

if TYPE_CHECKING:
    from headway.dataloader.dataset import Meta

app = group("Prepare, inspect, verify and serve training data.", no_args_is_help=False)
DataPath = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="A prepared folder, or the prefix of a .bin/.idx pair."),
]
META = "source, corpus_sha256, vocab_size, unigram_nats, splits"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run(app, "python -m headway.dataloader", arguments)


@page(
    app,
    examples=(
        "{command}",
        "{command} --source my_texts --out data/mine",
        "{command} --source stories.jsonl --vocab-size 4096",
    ),
    json=f"one object: path, already_prepared, {META}",
)
def prepare(
    source: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="A folder, text file or .jsonl; or stdlib (the default) or debian-docs.",
        ),
    ] = "stdlib",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder to create; data/ with the name of the source by default."
        ),
    ] = None,
    vocab_size: Annotated[
        int,
        typer.Option(help="Tokens of the byte-level BPE trained on the text; 8192 by default."),
    ] = 8192,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json to use instead of training one."),
    ] = None,
    end: Annotated[
        str,
        typer.Option(
            metavar="TOKEN",
            help="Token of --tokenizer that ends a document; by default the eos_token of the "
            "tokenizer_config.json next to it.",
        ),
    ] = "",
    validation_fraction: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Share of the documents for validation; 0.05 by default."
        ),
    ] = 0.05,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where downloads are kept; ~/.cache/headway by default."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace prepared data that differ or are damaged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn text into tokens that a run can train on.

    Writes token files, a tokenizer and meta.json. Does nothing if that is done already.
    """
    from headway.dataloader.config import DataConfig
    from headway.dataloader.prepare import prepare as make

    folder = out or Path("data") / (Path(source).stem or "corpus")
    config = DataConfig(
        path=str(folder),
        source=source,
        vocab_size=vocab_size,
        tokenizer="" if tokenizer is None else str(tokenizer),
        end=end,
        validation_fraction=validation_fraction,
    )
    done = make(config, force=force, cache=cache, say=lambda line: typer.echo(line, err=as_json))
    facts = {"path": str(done.path), "already_prepared": done.already_prepared, **_facts(done.meta)}
    emit(facts, as_json, _lines(facts))


@page(
    app,
    examples=("{command} data/stdlib", "{command} data/stdlib --split validation --documents 5"),
    json=f"one object: path, split, sequences, tokens, dtype, fingerprint, {META}, beginnings",
)
def inspect(
    path: DataPath,
    split: Annotated[
        str, typer.Option(metavar="SPLIT", help="train (the default) or validation.")
    ] = "train",
    documents: Annotated[
        int, typer.Option(help="Documents whose beginning is shown; 2 by default.", min=0)
    ] = 2,
    as_json: AsJson = False,
) -> None:
    """Show counts, hashes and the beginnings of some documents."""
    from headway.dataloader.dataset import Dataset

    data = Dataset(path)
    tokens = data.split(split)
    facts: dict[str, Any] = {
        "path": str(data.path),
        "split": split,
        "sequences": tokens.num_sequences,
        "tokens": tokens.num_tokens,
        "dtype": str(tokens.dtype),
        "fingerprint": tokens.fingerprint(),
    }
    if data.meta is not None:
        facts |= _facts(data.meta)
    first = [
        tokens.sequence(index)[:48].tolist()
        for index in range(min(documents, tokens.num_sequences))
    ]
    facts["beginnings"] = (
        first if data.meta is None else [data.tokenizer.decode(row) for row in first]
    )
    emit(facts, as_json, _lines(facts))


@page(app, examples=("{command} data/stdlib",), json="one object: path, intact, checked")
def verify(path: DataPath, as_json: AsJson = False) -> None:
    """Check every byte against its recorded digest.

    Exits 1 on damage and names the file.
    """
    from headway.dataloader.dataset import verify as check

    checked = check(path)
    facts = {"path": str(path), "intact": True, "checked": checked}
    emit(facts, as_json, _lines(facts))


@page(app, examples=("{command} data/corpus_text_document",), json="one object: path, written")
def digest(path: DataPath, as_json: AsJson = False) -> None:
    """Record missing digests of a folder or pair.

    With them a run need not read all of it again to know that it is the same.
    """
    from headway.dataloader.dataset import write_digests

    written = [str(file) for file in write_digests(path)]
    facts = {"path": str(path), "written": written}
    emit(facts, as_json, _lines(facts))


@page(app, heading=DAEMONS, examples=("{command} --endpoint ipc:///tmp/data.sock",))
def serve(
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Where to listen: ipc:///path.sock.")
    ],
    shm_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder in /dev/shm for the batches.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Receives the heartbeats.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Run that this daemon belongs to.")
    ] = None,
    node: Annotated[int, typer.Option(help="Node of that run; 0 by default.", min=0)] = 0,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Prometheus exporter on loopback; 0 takes any port."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve batches to the ranks of this node until SIGTERM.

    They pass through ring buffers in shared memory.
    """
    from headway.common.log import setup
    from headway.common.node.failpoints import configure
    from headway.common.node.run_dir import NodePaths, shm_root
    from headway.dataloader.server import serve as listen

    setup("dataloader", run_id=run_id or "", node=node if run_id else None, json=as_json or None)
    folder = shm_dir or shm_root() / "dataloader"
    if run_id:
        paths = NodePaths(run_id, node).create()
        configure(paths.failpoints, node=node)
        folder = shm_dir or paths.shm_dir
    code = listen(
        endpoint=endpoint,
        shm_dir=folder,
        executor=executor,
        run_id=run_id or "",
        metrics_port=metrics_port,
    )
    raise typer.Exit(code)


def _facts(meta: Meta) -> dict[str, Any]:
    return {
        "source": meta.source,
        "corpus_sha256": meta.corpus_sha256,
        "vocab_size": meta.vocab_size,
        "unigram_nats": round(meta.unigram_nats, 4),
        "splits": {
            name: {
                "documents": split.documents,
                "tokens": split.tokens,
                "text_bytes": split.text_bytes,
            }
            for name, split in meta.splits.items()
        },
    }


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if isinstance(value, list):
            yield f"{name}:"
            for entry in value:
                is_long = isinstance(entry, str) and "\n" in entry
                yield f"  {entry!r}" if is_long else f"  {entry}"
        elif isinstance(value, dict):
            for key, entry in value.items():
                yield f"{key:>15}  " + "  ".join(f"{k} {v:,}" for k, v in entry.items())
        else:
            yield f"{name:>15}  {value:,}" if type(value) is int else f"{name:>15}  {value}"
