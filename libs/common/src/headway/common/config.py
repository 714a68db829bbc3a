"""Configuration in three layers: dataclass defaults, TOML files left to right, overrides.

Classes are frozen dataclasses of str, int, float, bool, Path, Literal, unions such as ``X | None``,
tuples, tables of freely named keys (``dict[str, X]``) and further dataclasses. TOML has no null: a
key whose default is None is left out to keep it; any other None is written as the string "none" (an
ordinary string where the default is None and strings are allowed).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import msgspec
import tomli_w
from headway.common.errors import ConfigError, HeadwayError

C = TypeVar("C")
_NONE = "none"
_EXACT = 2**53
"""A float holds every whole number up to this one."""


def load(cls: type[C], files: Sequence[Path] = (), overrides: Sequence[str] = ()) -> C:
    """Build ``cls`` from defaults, then files, then overrides such as ``train.steps=200``.

    Raises:
        ConfigError: an unreadable file, an unknown key (with the nearest known one), a value of the
            wrong type, or one that ``__post_init__`` refuses.
    """
    tree: dict[str, Any] = {}
    for file in files:
        _merge(tree, _read(Path(file)))
    for override in overrides:
        _merge(tree, _parse_override(override))
    return from_dict(cls, tree)


def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
    """Build ``cls`` from nested mappings. Raises ConfigError as ``load`` does."""
    return typing.cast("C", _build(cls, data, "", None))


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values, from which ``from_dict`` builds an equal object."""
    return _to_dict(config, None)


def to_toml(config: Any) -> str:
    """A TOML text from which ``load`` builds an equal object."""
    return tomli_w.dumps(to_dict(config))


def diff(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old value, new value) of every leaf that differs; None where it is absent."""
    left, right = leaves(to_dict(old)), leaves(to_dict(new))
    return {
        key: (left.get(key), right.get(key))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    }


# ---- reading ----------------------------------------------------------------------------------
def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        remedy = "check the path; examples/ holds some"
        raise ConfigError(f"no configuration file {path}", remedy=remedy) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", remedy="check the file") from error
    except tomllib.TOMLDecodeError as error:
        remedy = "fix the line named above"
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy=remedy) from error


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        message = f"override {text!r} is not of the form table.key=value"
        raise ConfigError(message, remedy="for example train.steps=200")
    try:
        document = tomllib.loads(f"value = {raw.strip()}")
    except tomllib.TOMLDecodeError:
        document = {}
    # A bare word is a string, and so is anything that would be several lines of TOML.
    value: Any = document["value"] if document.keys() == {"value"} else raw.strip()
    for part in reversed(parts):
        value = {part: value}
    return typing.cast("dict[str, Any]", value)


def _merge(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a class's fields: evaluating them takes longer than all else here."""
    return typing.get_type_hints(cls)


# ---- building ---------------------------------------------------------------------------------
def _build(cls: Any, data: Any, path: str, base: Any) -> Any:
    """A ``cls`` from ``data``; absent keys come from ``base``, or without one from the class."""
    if not isinstance(data, Mapping):
        table, is_item = re.subn(r"\[\d+\]$", "", path)
        header = f"[[{table}]]" if is_item else f"[{path}]"
        remedy = f"write it as {header} with keys below"
        raise ConfigError(f"{path} = {data!r} is not a table", remedy=remedy)
    hints, prefix = _hints(cls), f"{path}." if path else ""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in (key for key in data if key not in fields):
        remedy = _nearest_key(cls, key, list(fields), prefix)
        raise ConfigError(f"unknown configuration key {prefix + key!r}", remedy=remedy)
    values: dict[str, Any] = {}
    for name, field in fields.items():
        default = _default(field, base)
        if name in data:
            values[name] = _convert(hints[name], data[name], prefix + name, default)
        elif default is dataclasses.MISSING:
            message = f"configuration key {prefix + name!r} is missing"
            raise ConfigError(message, remedy="it has no default; set it")
        else:
            values[name] = default
    try:
        return cls(**values)
    except HeadwayError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    except (TypeError, ValueError) as error:
        message = f"{path or cls.__name__}: {error}"
        raise ConfigError(message, remedy="see the option's description") from error


def _default(field: dataclasses.Field[Any], base: Any) -> Any:
    """The field's default; ``dataclasses.MISSING`` for a required field."""
    if base is not None:
        return getattr(base, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _nearest_key(cls: Any, key: str, known: Sequence[str], prefix: str) -> str:
    inner = {name.rpartition(".")[2]: name for name in _names_below(cls)}
    near = [*difflib.get_close_matches(key, known, n=1, cutoff=0.5), inner.get(key)][0]
    return f"did you mean {prefix}{near}?" if near else f"known here: {', '.join(known)}"


def _names_below(cls: Any, path: str = "") -> list[str]:
    """Dotted names of every option in the tables inside ``cls``."""
    found: list[str] = []
    for name, hint in _hints(cls).items():
        full = f"{path}.{name}" if path else name
        is_table = dataclasses.is_dataclass(hint)
        found += _names_below(hint, full) if is_table else [full] if path else []
    return found


def _convert(hint: Any, value: Any, path: str, default: Any = None) -> Any:
    """Return ``value`` converted to ``hint``.

    Tables are built here, because msgspec ignores unknown keys.
    """
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    if value == _NONE and types.NoneType in members and (default is not None or str not in members):
        return None
    tables = [member for member in members if dataclasses.is_dataclass(member)]
    if tables and value is not None:
        return _build(tables[0], value, path, default if type(default) is tables[0] else None)
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        item_hint = typing.get_args(hint)[0]
        return tuple(_convert(item_hint, item, f"{path}[{i}]") for i, item in enumerate(value))
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        item_hint = typing.get_args(hint)[1]
        return {key: _convert(item_hint, item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, float) and int in members and float not in members and _is_whole(value):
        value = int(value)
    try:
        return msgspec.convert(value, hint, dec_hook=lambda cls, raw: cls(raw))
    except (msgspec.ValidationError, OverflowError) as error:
        raise _refused(members, value, path) from error


def _is_whole(value: float) -> bool:
    """Whether it stands for exactly one whole number, as 1e6 does: larger ones are rounded."""
    return value.is_integer() and abs(value) <= _EXACT


def _refused(members: Sequence[Any], value: Any, path: str) -> ConfigError:
    choices = [c for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)]
    kinds = [m.__name__ for m in members if isinstance(m, type) and m is not types.NoneType]
    if not choices:
        table = any(typing.get_origin(member) is dict for member in members)
        remedy = f"expected {' or '.join(kinds) or ('a table' if table else 'a list')}"
        return ConfigError(f"{path} = {value!r} is of type {type(value).__name__}", remedy=remedy)
    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.6)
    remedy = f"did you mean {near[0]!r}?" if near else "choose one of them"
    allowed = ", ".join([*kinds, *map(repr, choices)])
    return ConfigError(f"{path} = {value!r} is not one of {allowed}", remedy=remedy)


# ---- writing ----------------------------------------------------------------------------------
def _to_dict(config: Any, base: Any) -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(config) if field.init]
    pairs = {field.name: (getattr(config, field.name), _default(field, base)) for field in fields}
    return {name: _plain(*pair) for name, pair in pairs.items() if pair != (None, None)}


def _plain(value: Any, default: Any) -> Any:
    if value is None:
        return _NONE
    if dataclasses.is_dataclass(value):
        return _to_dict(value, default if isinstance(default, type(value)) else None)
    if isinstance(value, tuple):
        return [_plain(item, None) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, None) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested mapping."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{path}.{key}" if path else key
        found.update(leaves(value, full) if isinstance(value, Mapping) else {full: value})
    return found
