"""What all command lines of Headway share: options, exit codes, one-line errors."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, Any

import typer
from headway.common.errors import HeadwayError, RemoteError
from headway.common.help_pages import PageGroup
from headway.common.log_stream import tolerate_stderr
from headway.common.printable import printable

INTERRUPTED = 130
_OF_THE_MACHINE = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE,
     errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EISDIR, errno.ENOTDIR)
)  # fmt: skip
"""Errors of a file or mount that a user can fix; any other is a defect and shows a traceback."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def group(help_: str, **settings: Any) -> typer.Typer:
    """A command line or a group of commands, plain on every terminal; ``settings`` are typer's."""
    plain: dict[str, Any] = {
        "cls": PageGroup,
        "context_settings": {"help_option_names": ["-h", "--help"]},
        "no_args_is_help": True,
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "add_completion": False,
    }
    return typer.Typer(help=help_, **(plain | settings))


def run(app: typer.Typer, prog: str, arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code.

    0 is success, 2 bad input or usage, 130 interrupted, 1 anything else. An error that the
    user can fix is printed as one line on stderr; a stderr that cannot be written does not
    change the exit code.
    """
    tolerate_stderr()
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name=prog, standalone_mode=False)
    except HeadwayError as error:
        return fail(str(error), _exit_code(error))
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `headway logs | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        return fail(f"{where}{error.strerror}; check the disk and its rights", 1)
    except Exception as error:
        text = getattr(error, "format_message", None)  # usage errors of the parser inside typer
        if text is None or not hasattr(error, "exit_code"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(text(), err=True)
            return int(error.exit_code)
        where = getattr(getattr(error, "ctx", None), "command_path", prog)
        return fail(f"{text().rstrip('.')}; see `{where} --help`", int(error.exit_code))
    return result if isinstance(result, int) else 0


def fail(line: str, code: int) -> int:
    """Print the reason on stderr, in one line; returns ``code``."""
    typer.echo(f"error: {printable(' '.join(line.split()))}", err=True)
    return code


def _exit_code(error: HeadwayError) -> int:
    """Input that a daemon refused as bad is bad input here too."""
    refused = isinstance(error, RemoteError) and error.remote_code in ("input", "config", "version")
    return 2 if refused else error.exit_code
