"""An ablation as a table and a picture, for a terminal and for a notebook."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
from headway.common.plan.model_shape import mfu
from headway.console.ablation.figures import Gain, ranking, spread
from headway.console.ablation.record import FILE, Measurements, Record, read
from headway.console.display.charts import Bar, Drawing, bars_in_rows
from headway.console.display.table import Column, Shown

PICTURE = "ablate.html"
KINDS = ("faster", "slower", "within the spread", "the rungs before")
"""Bars of the picture; the last kind is faint."""
_SPREAD = (
    "± is the spread: twice the scaled median absolute deviation of the ratios in each round "
    "(1.4826 x MAD x 2)."
)


@dataclass(frozen=True, repr=False)
class Ablation:
    """The result of ``ablate``, or of ``Ablation.read``: a table, a picture, and ``record``."""

    record: Record
    folder: Path

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """An earlier result, by its folder or its ``ablate.json``.

        Raises:
            InputError: there is none. CorruptError: the file is damaged.
        """
        where = Path(path)
        return cls(read(where), where if where.is_dir() else where.parent)

    def table(self) -> Shown:
        """A row for the baseline and each rung: gains, rate, MFU, memory, loss."""
        rows = [_row(self.record, None), *(_row(self.record, rung) for rung in self.record.titles)]
        empty = {name for name in rows[0] if all(row[name] is None for row in rows)}
        columns = [column for column in _COLUMNS if column.name not in empty]
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return Shown(frame, self._title, columns, " ".join(self.notes()))

    def picture(self) -> Drawing:
        """A bar for the baseline and each rung on top of those before it, in tokens/s."""
        names, bars = ["baseline"], []
        if self.record.baseline.trials:
            bars.append(Bar(0, 0.0, _rate(self.record.baseline), KINDS[-1], "baseline"))
        for rung, title in self.record.titles.items():
            names.append(f"+ {rung}")
            before, up_to = self.record.below(rung)
            found = self.record.on_top(rung)
            if found is not None:
                bars += _step(len(names) - 1, _rate(before), _rate(up_to), found, title)
        return bars_in_rows(
            self._title, names, bars, kinds=KINDS, x="tokens/s", note=" ".join(self.notes())
        )

    def ranking(self) -> str:
        """Rungs alone from the largest gain to the smallest; ~ joins those within a spread."""
        gains = {rung: self.record.alone(rung) for rung in self.record.titles}
        return ranking({rung: found for rung, found in gains.items() if found is not None})

    def notes(self) -> Iterator[str]:
        """What a reader needs to know beside the figures, as sentences."""
        record = self.record
        if record.stand_in:
            yield record.note
        if record.interrupted:
            done = sum(len(one.trials) for one in record.variants)
            total = record.rounds * len(record.variants)
            yield f"INTERRUPTED after {done} of {total} trials: these are those that were measured."
        chance = [rung for rung in record.titles if _is_chance(record.alone(rung))]
        if chance:
            yield f"Within the spread when alone, so perhaps chance: {', '.join(chance)}."
        for one in record.variants:
            if one.error:
                yield f"{' + '.join(one.rungs) or 'The baseline'} failed: {one.error}."
        for rung, why in record.left_out.items():
            yield f"Left out: {rung} ({why})."
        yield f"Gains alone, in order: {self.ranking() or 'none yet'}. {_SPREAD}"

    def lines(self) -> list[str]:
        """Title, table and notes as text."""
        return repr(self.table()).splitlines()

    def write_picture(self) -> Path:
        """Write the picture and the table beside ``ablate.json`` as a page; returns its path."""
        path = self.folder / PICTURE
        body = self.picture()._repr_html_() + self.table()._repr_html_()
        page = (
            f'<!doctype html><meta charset="utf-8"><title>{self._title}</title>'
            '<meta name="color-scheme" content="light dark">'
            f'<body style="font-family:sans-serif;max-width:60em;margin:2em auto">{body}'
        )
        path.write_text(page, encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return "\n".join([*self.lines(), f"raw times are in {self.folder / FILE}"])

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_() + self.table()._repr_html_()

    @property
    def _title(self) -> str:
        record, machine = self.record, self.record.machine
        what = "stand-in ablation" if record.stand_in else "ablation"
        tokens = f"{record.tokens:,} tokens in each of {record.rounds} rounds"
        where = f"{machine['processor']}, {machine['threads']} threads, {machine['date']}"
        return f"{what}: {tokens}; {where}"


def _row(record: Record, rung: str | None) -> dict[str, Any]:
    """Figures of the baseline (None), or of the variant up to ``rung``; unknown ones are None."""
    one = record.baseline if rung is None else record.below(rung)[1]
    rate = _rate(one) if one.trials else None
    around = spread(list(one.rates.values()))
    return {
        "rung": "baseline" if rung is None else f"+ {rung}",
        "technique": "all off" if rung is None else record.titles[rung],
        "alone": None if rung is None else _words(record.alone(rung)),
        "on_top": None if rung is None else _words(record.on_top(rung)),
        "rate": rate,
        "rate_spread": None if rate is None or around is None else around / rate,
        "mfu": _mfu(one, rate, record.peak_flops),
        "mfu_full": _mfu(one, rate, record.peak_flops, full=True),
        "mfu_sheet": _mfu(one, rate, record.sheet_flops),
        "memory": None if one.peak_bytes is None else one.peak_bytes / 2**20,
        "loss": one.eval_loss,
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _digits(form: str) -> Any:
    return lambda value: "-" if value is None else format(value, form)


_COLUMNS = (
    Column("rung", "rung"),
    Column("technique", "technique"),
    Column("alone", "gain alone"),
    Column("on_top", "gain on top"),
    Column("rate", "tokens/s", _digits(",.0f"), "bar"),
    Column("rate_spread", "spread", _percent),
    Column("mfu", "MFU of measured peak", _percent),
    Column("mfu_full", "... full attention", _percent),
    Column("mfu_sheet", "MFU of data sheet", _percent),
    Column("memory", "memory, MiB", _digits(",.0f")),
    Column("loss", "loss, nats", _digits(".4f")),
)
"""Rate, MFU, memory and loss are those of the variant up to the rung."""


def _words(found: Gain | None) -> str | None:
    if found is None:
        return None
    return f"{found}, within the spread" if _is_chance(found) else str(found)


def _is_chance(found: Gain | None) -> bool:
    """Whether the spread is known, and the gain is within it."""
    return found is not None and found.spread is not None and found.is_within_spread


def _rate(one: Measurements) -> float:
    return statistics.median(one.rates.values())


def _mfu(
    one: Measurements, rate: float | None, peak: float | None, *, full: bool = False
) -> float | None:
    if rate is None or peak is None:
        return None
    flops = one.full_flops_per_token if full else one.flops_per_token
    return mfu(tokens_per_s=rate, flops_per_token=flops, peak_flops=peak)


def _step(row: int, before: float, after: float, found: Gain, title: str) -> list[Bar]:
    low, high = sorted((before, after))
    kind = KINDS[2] if _is_chance(found) else KINDS[after < before]
    hint = f"{title}: {found}, {after:,.0f} tokens/s"
    return [Bar(row, 0.0, low, KINDS[-1], hint), Bar(row, low, high, kind, hint)]
