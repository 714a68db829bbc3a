"""Configuration in three layers: dataclass defaults, TOML files left to right, ``a.b=value`` overrides.

Classes are frozen dataclasses of str, int, float, bool, Path, Literal, unions such as ``X | None``, tuples
and further dataclasses. TOML has no null: a None that is the default is an absent key, another one is the
string "none" (which is an ordinary string where the default is None and strings are allowed).
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
_NONE = "none"


def load(cls: type[C], files: Sequence[Path] = (), overrides: Sequence[str] = ()) -> C:
    """Build ``cls`` from defaults, then files, then overrides such as ``train.steps=200``.

    Raises:
        ConfigError: an unreadable file, an unknown key (with the nearest known one), a value of the wrong
            type, or one that ``__post_init__`` refuses.
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
        raise ConfigError(f"no configuration file {path}", remedy="check the path; examples/ holds some") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", remedy="check the file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}", remedy="mend the line it names") from error


def _parse_override(text: str) -> dict[str, Any]:
    key, equals, raw = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {text!r} is not of the form table.key=value", remedy="for example train.steps=200")
    try:
        document = tomllib.loads(f"value = {raw.strip()}")
    except tomllib.TOMLDecodeError:
        document = {}
    # A bare word is a string, and so is what would be several lines of TOML.
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


# ---- building ---------------------------------------------------------------------------------
def _build(cls: Any, data: Any, path: str, base: Any) -> Any:
    """A ``cls`` from ``data``; absent keys come from ``base``, an instance, or without one from the class."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} = {data!r} is not a table", remedy=f"write it as [{path}] with keys below")
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init]
    for key in data:
        if key not in hints or key not in [f.name for f in fields]:
            raise _unknown(cls, key, [f.name for f in fields], path)
    values: dict[str, Any] = {}
    for field in fields:
        full = f"{path}.{field.name}" if path else field.name
        default = _default(field, base)
        if field.name in data:
            values[field.name] = _convert(hints[field.name], data[field.name], full, default)
        elif default is dataclasses.MISSING:
            raise ConfigError(f"configuration key {full!r} is missing", remedy="it has no default; set it")
        else:
            values[field.name] = default
    try:
        return cls(**values)
    except ConfigError:
        raise
    except HeadwayError as error:
        raise ConfigError(error.message, remedy=error.remedy) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path or cls.__name__}: {error}", remedy="see the option's description") from error


def _default(field: dataclasses.Field[Any], base: Any) -> Any:
    """The field's value where nothing is said; ``dataclasses.MISSING`` if it has to be said."""
    if base is not None:
        return getattr(base, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _unknown(cls: Any, key: str, known: Sequence[str], path: str) -> ConfigError:
    full = f"{path}.{key}" if path else key
    inner = {name.rpartition(".")[2]: name for name in _names_below(cls)}
    if near := difflib.get_close_matches(key, known, n=1, cutoff=0.5):
        hint = f"did you mean {f'{path}.' if path else ''}{near[0]}?"
    elif key in inner:
        hint = f"did you mean {f'{path}.' if path else ''}{inner[key]}?"
    else:
        hint = f"known here: {', '.join(known)}"
    return ConfigError(f"unknown configuration key {full!r}", remedy=hint)


def _names_below(cls: Any, path: str = "") -> list[str]:
    """Dotted names of every option in the tables inside ``cls``."""
    found: list[str] = []
    for name, hint in typing.get_type_hints(cls).items():
        full = f"{path}.{name}" if path else name
        found += _names_below(hint, full) if dataclasses.is_dataclass(hint) else [full] if path else []
    return found


def _convert(hint: Any, value: Any, path: str, default: Any = None) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(args, value, path, default)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in args):
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
        return _build(hint, value, path, default if isinstance(default, typing.cast("type", hint)) else None)
    return _scalar(hint, value, path)


def _one_of(args: Sequence[Any], value: Any, path: str, default: Any) -> Any:
    """The first member of a union that takes ``value``; if none does, the complaint of the last."""
    says_none = value == _NONE and (default is not None or str not in args)
    if type(None) in args and (value is None or says_none):
        return None
    inner = [arg for arg in args if arg is not type(None)]
    for arg in inner[:-1]:
        try:
            return _convert(arg, value, path, default)
        except ConfigError:
            continue
    return _convert(inner[-1], value, path, default)


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
    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else "choose one of them"


# ---- writing ----------------------------------------------------------------------------------
def _to_dict(config: Any, base: Any) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for field in (f for f in dataclasses.fields(config) if f.init):
        value, default = getattr(config, field.name), _default(field, base)
        if value is not None:
            table[field.name] = _plain(value, default)
        elif default is not None:
            table[field.name] = _NONE
    return table


def _plain(value: Any, default: Any = None) -> Any:
    if dataclasses.is_dataclass(value):
        return _to_dict(value, default if isinstance(default, type(value)) else None)
    if isinstance(value, tuple):
        return [_NONE if item is None else _plain(item) for item in value]
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
    if isinstance(value, Mapping):  # in a list; elsewhere it is a table of its own
        return "{" + ", ".join(f"{key} = {_literal(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{path}.{key}" if path else key
        found.update(_leaves(value, full) if isinstance(value, Mapping) else {full: value})
    return found
