"""Web addresses of ``[health] notify``: checked, and shown without their secrets.

A password, a token in the query and the path of a chat's webhook are secrets, so only scheme, host
and port of an address are ever printed.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from headway.common.errors import ConfigError

SCHEMES = ("http", "https")
ENV = "HEADWAY_NOTIFY"
"""Environment variable with the addresses, separated by spaces: any user sees a command line."""


def check_address(url: str, place: int) -> None:
    """Check an address; ``place`` is its number in the list, from 1 on.

    Raises:
        ConfigError: verdicts cannot be sent there.
    """
    remedy = "give addresses such as https://alerts.example.com/headway"
    name = f"address {place} of health.notify"
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0  # reading it raises ValueError
    except ValueError:
        raise ConfigError(f"{name} has a port or a host that is not valid", remedy=remedy) from None
    if parts.scheme not in SCHEMES:
        scheme = repr(parts.scheme) if "://" in url else "missing"
        raise ConfigError(f"{name}: its scheme is {scheme}, not http or https", remedy=remedy)
    if not parts.hostname or not has_port:
        raise ConfigError(f"{name} names no host", remedy=remedy)
    from urllib3.exceptions import LocationParseError  # takes a tenth of a second
    from urllib3.util import parse_url

    try:
        parse_url(url)
    except LocationParseError:
        raise ConfigError(f"{name} has a host that is not valid", remedy=remedy) from None
    if any(letter.isspace() or not letter.isprintable() for letter in url):
        raise ConfigError(f"{name} contains a space", remedy="write it as %20")


def shown(url: str) -> str:
    """Such as ``https://alerts.example.com:8443``, for logs."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
