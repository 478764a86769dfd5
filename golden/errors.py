"""Errors that a user can act on, and the guard that command lines put around `main`."""

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec

__all__ = ["UserError", "main_guard"]

P = ParamSpec("P")


class UserError(Exception):
    """Something the user can put right; the message is one sentence that says what was found and what is needed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def main_guard(main: Callable[P, int | None]) -> Callable[P, NoReturn]:
    """Wrap the `main` of a command line: it ends the process, and never shows a traceback for a user's mistake.

    Exit codes: what `main` returns (None counts as 0), 2 after `error: <sentence>` on stderr for a `UserError`, 130
    after an interrupt from the keyboard, 141 when the reader of a pipe has gone (`... | head`).
    """

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
        try:
            code = main(*args, **kwargs) or 0
            sys.stdout.flush()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
            code = 141
        raise SystemExit(code)

    return guarded
