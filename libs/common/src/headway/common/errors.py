"""Every error a user may see: a code, one line, and the remedy.

HeadwayError
├── InputError        bad input found before step 0; the command exits 2
│   └── ConfigError   an unknown or impossible configuration value
├── WireError         a frame or message that cannot be read
│   └── VersionError  ... because its sender speaks another version
├── RemoteError       the other side answered with an error
├── DeadlineError     the other side did not answer in time
│   └── BusyError     ... or is busy; the same request may be repeated
└── CorruptError      bytes on disk or in memory fail their digest or format
"""

from __future__ import annotations


class HeadwayError(Exception):
    """``message`` names the offending value; ``remedy`` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message

    @property
    def code(self) -> str:
        """The stable name of the error on the wire and in logs.

        It is the class name without its ending.
        """
        return type(self).__name__.removesuffix("Error").lower()


class InputError(HeadwayError):
    """Bad input found before the work began: a path, a name, a port, a full disk."""

    exit_code = 2


class ConfigError(InputError):
    """An unknown key, a value of the wrong type, or values that contradict each other."""


class WireError(HeadwayError):
    """Bytes from a socket that are not a valid message; the sender gets an error reply."""


class VersionError(WireError):
    """A message of another protocol version: two installations of Headway are mixed."""

    exit_code = 2


class RemoteError(HeadwayError):
    """The peer handled the request and refused it; ``remote_code`` is the peer's error code."""

    def __init__(self, message: str, *, remedy: str = "", remote_code: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.remote_code = remote_code


class DeadlineError(HeadwayError):
    """No answer within the deadline. The request may or may not have been carried out."""


class BusyError(DeadlineError):
    """The other side is busy and changed nothing; the same request may be repeated."""


class CorruptError(HeadwayError):
    """Stored bytes that do not match their digest, length or format."""
