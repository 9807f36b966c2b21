"""Errors that are shown to the user as one message."""

from __future__ import annotations


class PlshError(Exception):
    """A failure with a message meant for the user; the command line prints it without a traceback."""

    exit_code = 1


class UserError(PlshError, ValueError):
    """Bad input: names the field, the value got, what is allowed and how to change it (exit code 2).

    `field` is a config key such as "approx.n" or the name of a thing; `flag` is the command-line spelling, if any.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str, flag: str | None = None) -> None:
        self.field, self.value, self.allowed, self.flag = field, value, allowed, flag
        change = f" (change it with {flag})" if flag else ""
        super().__init__(f"{field} = {_show(value)}: {allowed}{change}")


class MessageError(PlshError):
    """Input or environment trouble that is not one field's value (exit code 2); the text says what to do."""

    exit_code = 2


class Terminated(BaseException):
    """SIGTERM arrived during a run; a BaseException, so that no experiment catches it by accident."""


def _show(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
