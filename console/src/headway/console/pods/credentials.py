"""The user of a kubeconfig as requests prove it: a token or a client certificate."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.errors import ConfigError
from headway.common.node.files import PRIVATE
from headway.launch.lease.kubernetes_api import https_context

TO_TOKEN = "use a token or a client certificate, such as that of a ServiceAccount"
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Pem:
    """A certificate or a key: the file that holds it, or its text."""

    file: Path | None = None
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return self.file is not None or bool(self.text)

    @contextlib.contextmanager
    def path(self) -> Iterator[str]:
        """A path for ``ssl``, which reads files only. Raises OSError."""
        if self.file is not None:
            yield str(self.file)
            return
        # a file of this process alone, which ends with it, by SIGKILL too
        with os.fdopen(os.memfd_create("pem"), "w") as file:
            os.fchmod(file.fileno(), PRIVATE)
            file.write(self.text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"


@dataclass(frozen=True)
class UserCredentials:
    """A user's token or client certificate. Files are read anew for each request."""

    authority: Pem
    certificate: Pem
    key: Pem
    token: str = field(repr=False)
    token_file: Path | None
    remedies: Mapping[int, str]

    def check(self, file: Path) -> None:
        """Raises ConfigError if ``file`` has no way to prove who asks, or one that is unusable."""
        if not (self.token or self.token_file or (self.certificate and self.key)):
            raise ConfigError(
                f"{file}: the user has neither a token nor a client certificate with its key",
                remedy=TO_TOKEN,
            )
        try:
            self.context()
            self.headers()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{file}: its certificates or its token cannot be used: {error}",
                remedy="check the files that it names, and their content",
            ) from error

    def context(self) -> ssl.SSLContext:
        """See ``Credentials``."""
        known = self.authority
        context = https_context(
            cafile=str(known.file) if known.file else None, cadata=known.text or None
        )
        if self.certificate and self.key:
            with self.certificate.path() as certificate, self.key.path() as key:
                context.load_cert_chain(certificate, key)
        return context

    def headers(self) -> dict[str, str]:
        """See ``Credentials``."""
        token = self.token_file.read_text("ascii").strip() if self.token_file else self.token
        if token and not _TOKEN.fullmatch(token):  # the library's error would show it
            raise ValueError("the token has characters that no token has")
        return {"Authorization": f"Bearer {token}"} if token else {}
