"""Configuration in three layers: dataclass defaults, TOML files left to right, ``a.b=value`` overrides.

Classes are frozen dataclasses of str, int, float, bool, Path, Literal, ``X | None``, tuples and further dataclasses.
None is an absent key, since TOML has no null.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from headway.common.errors import ConfigError, HeadwayError

C = TypeVar("C")
_MISSING = object()


def load(cls: type[C], files: Sequence[Path] = (), overrides: Sequence[str] = ()) -> C:
    """Build ``cls`` from defaults, then files, then overrides such as ``train.steps=200``.

    Raises:
        ConfigError: an unreadable file, an unknown key (with the nearest known one), a value of the wrong type, or
            one that ``__post_init__`` refuses.
    """
    tree: dict[str, Any] = {}
    for file in files:
        _merge(tree, _read(Path(file)))
    for override in overrides:
        _merge(tree, _parse_override(override))
    return from_dict(cls, tree)


def from_dict(cls: type[C], data: Mapping[str, Any]) -> C:
    """Build ``cls`` from nested mappings. Raises ConfigError as ``load`` does."""
    return typing.cast("C", _build(cls, data, ""))


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values; a None is left out."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def to_toml(config: Any) -> str:
    """A TOML text from which ``load`` builds an equal object."""
    lines: list[str] = []
    _write_table(to_dict(config), "", lines)
    return "\n".join(lines).strip() + "\n"


def diff(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old value, new value) of every leaf that differs; None where it is absent."""
    left, right = _leaves(to_dict(old)), _leaves(to_dict(new))
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
        raise ConfigError(
            f"no configuration file {path}", remedy="check the path; examples/ holds some"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", remedy="check the file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}", remedy="mend the line it names") from error


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            f"override {text!r} is not of the form table.key=value", remedy="for example train.steps=200"
        )
    try:
        value: Any = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()  # a bare word is a string
    for part in reversed(parts):
        value = {part: value}
    return typing.cast("dict[str, Any]", value)


def _merge(base: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


# ---- building ---------------------------------------------------------------------------------
def _build(cls: Any, data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} = {data!r} is not a table", remedy=f"write it as [{path}] with keys below")
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls) if f.init]
    for key in data:
        if key not in known:
            raise _unknown(key, known, path)
    values = {
        key: _convert(hints[key], value, f"{path}.{key}" if path else key) for key, value in data.items()
    }
    try:
        return cls(**values)
    except ConfigError:
        raise
    except HeadwayError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path or cls.__name__}: {error}", remedy="see the option's description"
        ) from error


def _unknown(key: str, known: Sequence[str], path: str) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    full = f"{path}.{key}" if path else key
    hint = (
        f"did you mean {f'{path}.' if path else ''}{near[0]}?" if near else f"known here: {', '.join(known)}"
    )
    return ConfigError(f"unknown configuration key {full!r}", remedy=hint)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if value is None:
            return None
        return _convert(inner[0], value, path)
    if origin is Literal:
        if value not in args:
            raise ConfigError(
                f"{path} = {value!r} is not one of {', '.join(map(repr, args))}",
                remedy=_nearest_choice(value, args),
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(path, value, "a list")
        return tuple(_convert(args[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)
    return _scalar(hint, value, path)


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise _wrong(path, value, getattr(hint, "__name__", str(hint)))


def _wrong(path: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{path} = {value!r} is of type {type(value).__name__}", remedy=f"expected {expected}")


def _nearest_choice(value: Any, choices: Sequence[Any]) -> str:
    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else "choose one of them"


# ---- writing ----------------------------------------------------------------------------------
def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _write_table(table: Mapping[str, Any], path: str, lines: list[str]) -> None:
    if path:
        lines += ["", f"[{path}]"]
    lines += [f"{key} = {_literal(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(value, f"{path}.{key}" if path else key, lines)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{path}.{key}" if path else key
        found.update(_leaves(value, full) if isinstance(value, Mapping) else {full: value})
    return found
