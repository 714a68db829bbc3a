"""Every message type there is, a fixed example of each, and hypothesis strategies for them.

``python -m headway.testkit.wire.messages tests/contract/wire_bytes_v2.json`` adds an example of
each message that has none yet. What is stored stays: it is what other versions have sent.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec
from headway.common.wire import codec, messages
from headway.common.wire.message import Message, by_tag, tag_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def all_messages() -> list[type[Message]]:
    """Every message type defined in ``headway.common.wire.messages.*``, by tag."""
    found: list[type[Message]] = []
    for module_info in pkgutil.iter_modules(messages.__path__, f"{messages.__name__}."):
        module = importlib.import_module(module_info.name)
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Message)
            and value.__module__ == module.__name__
        ]
    return [message for _, message in sorted(by_tag(found).items())]


def example_of(message: type[Message]) -> Message:
    """One example, the same each time: optional fields are filled, lists hold one element."""
    fields = {name: _example(hint, name) for name, hint in _fields(message).items()}
    return message(**fields)


def strategy_of(message: type[Message]) -> SearchStrategy[Any]:
    """A hypothesis strategy for all values of a message type."""
    from hypothesis import strategies as st

    return st.fixed_dictionaries(
        {name: _strategy(hint) for name, hint in _fields(message).items()}
    ).map(lambda fields: message(**fields))


def add_missing(path: Path) -> list[str]:
    """Store an example of each message that ``path`` has none of; returns the tags added."""
    stored: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    added = [message for message in all_messages() if tag_of(message) not in stored]
    stored |= {tag_of(message): codec.encode(example_of(message)).hex() for message in added}
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    return [tag_of(message) for message in added]


def is_named_tuple(hint: Any) -> bool:
    """Whether a field's type is a ``NamedTuple``, which travels as an array."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _fields(struct: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


def _example(hint: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple = {
        str: name,
        int: 7,
        float: 0.5,
        bool: True,
        bytes: b"\x00\xff",
        type(None): None,
        Any: name,
    }
    if hint in simple:
        return simple[hint]
    if origin in (Union, types.UnionType):
        return _example(next(a for a in arguments if a is not type(None)), name)
    if origin is Literal:
        return arguments[0]
    if origin is dict:
        return {_example(arguments[0], name): _example(arguments[1], name)}
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return tuple(_example(argument, name) for argument in arguments)
    if origin in (list, tuple, set, frozenset):
        return origin([_example(arguments[0], name)])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint(**{inner: _example(of, inner) for inner, of in _fields(hint).items()})
    if is_named_tuple(hint):
        hints = typing.get_type_hints(hint)
        return hint(*(_example(of, inner) for inner, of in hints.items()))
    raise TypeError(f"no example for {hint!r} of field {name!r}; add it to {__name__}")


def _strategy(hint: Any) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple: dict[Any, SearchStrategy[Any]] = {
        str: st.text(max_size=20),
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        bytes: st.binary(max_size=40),
        type(None): st.none(),
        Any: st.none() | st.booleans() | st.text(max_size=5),
    }
    if hint in simple:
        return simple[hint]
    if origin in (Union, types.UnionType):
        return st.one_of([_strategy(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(_strategy(arguments[0]), _strategy(arguments[1]), max_size=4)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return st.tuples(*[_strategy(argument) for argument in arguments])
    if origin in (list, tuple, set, frozenset):
        return st.lists(_strategy(arguments[0]), max_size=4).map(origin)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.fixed_dictionaries(
            {name: _strategy(of) for name, of in _fields(hint).items()}
        ).map(lambda fields: hint(**fields))
    if is_named_tuple(hint):
        hints = typing.get_type_hints(hint).values()
        return st.tuples(*map(_strategy, hints)).map(lambda values: hint(*values))
    raise TypeError(f"no strategy for {hint!r}; add it to {__name__}")


if __name__ == "__main__":
    print(*add_missing(Path(sys.argv[1])), sep="\n")
