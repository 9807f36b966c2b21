"""Turns a wrong override or value into one message that names the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from plsh_cli.config.schema import FLAGS, SCHEMAS, Command
from plsh_cli.errors import MessageError, UserError

_LIMITS = {
    "greater_than": ("must be greater than {gt}", "gt"),
    "greater_than_equal": ("must be at least {ge}", "ge"),
    "less_than": ("must be less than {lt}", "lt"),
    "less_than_equal": ("must be at most {le}", "le"),
}


def keys(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Every dotted key of a schema with its annotation; a section is listed too, with its model class.

    A section that has several forms (`bias`) has the keys of all of them.
    """
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        found[key] = field.annotation
        for form in _forms(field.annotation):
            found = keys(form, f"{key}.") | found
    return found


def _forms(annotation: Any) -> list[type[BaseModel]]:
    """The model classes that an annotation is, or is a union of."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [form for option in typing.get_args(annotation) for form in _forms(option)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def takes_list(annotation: Any) -> bool:
    """Whether a schema annotation accepts a list."""
    if typing.get_origin(annotation) is typing.Annotated:
        return takes_list(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(takes_list(option) for option in typing.get_args(annotation))
    return typing.get_origin(annotation) is list


def flag_of(command: str, key: str) -> str:
    """How the command line changes `key`: its flag where it has one, and the override."""
    plain = key.split("[")[0]
    flags = [flag for flag, target in FLAGS.get(command, {}).items() if target == plain]
    return " or ".join([*flags, f"{plain}=..."])


def spelled(command: str) -> str:
    """A command's schema name as typed on the command line: attn_error is attn-error, bench_matrix is bench matrix."""
    return command.replace("_", " ", 1) if command.startswith("bench_") else command.replace("_", "-")


def nearest(word: str, known: list[str]) -> str:
    """A hint naming the closest known words, or all of them where none is close."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if not close:
        leaf = word.rpartition(".")[2]
        close = [key for key in known if key.rpartition(".")[2] == leaf]
    return f"did you mean {' or '.join(close[:3])}?" if close else f"known: {', '.join(known)}"


def validate(command: str, plain: dict[str, Any]) -> Command:
    """The frozen configuration of `command` built from plain values; UserError for the first value that is wrong."""
    try:
        return SCHEMAS[command].model_validate(plain)
    except ValidationError as error:
        raise _first(command, error) from None


def _first(command: str, error: ValidationError) -> UserError | MessageError:
    problems = error.errors(include_url=False)
    problem = problems[0]
    field, kind, context = _located(command, problem["loc"]), problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        known = [key for key, annotation in keys(SCHEMAS[command]).items() if not _is_section(annotation)]
        if field in known:
            return MessageError(misplaced(field))
        return MessageError(f"unknown key {field} for plsh {spelled(command)}: {nearest(field, known)}")
    if kind == "missing":
        return MessageError(f"{field} is missing: the configuration needs it")
    rest = sorted({_located(command, other["loc"]) for other in problems[1:]} - {field})
    more = f"; also wrong: {', '.join(rest)}" if rest else ""
    allowed = _allowed(kind, problem["msg"], context) + more
    if isinstance(problem["input"], dict):
        return MessageError(f"{field}: {allowed}" if field else allowed)
    return UserError(field, problem["input"], allowed, flag_of(command, field))


def misplaced(field: str) -> str:
    """What is said of a key that other options of its section have, but not the chosen one."""
    section = field.partition(".")[0]
    return f"{field} does not belong to the {section} that is chosen; leave it out, or choose another ({section}=...)"


def _allowed(kind: str, message: str, context: dict[str, Any]) -> str:
    if kind in _LIMITS:
        return _LIMITS[kind][0].format(**context)
    if kind == "literal_error":
        return f"must be one of {context['expected']}"
    if kind in ("int_from_float", "int_type", "int_parsing"):
        return "must be a whole number"
    if kind in ("float_type", "float_parsing"):
        return "must be a number"
    if kind == "finite_number":
        return "must be a finite number"
    if kind == "too_short":
        return "must hold at least one value"
    if kind in ("model_type", "dict_type"):
        return "must be a section with keys of its own"
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _is_section(annotation: Any) -> bool:
    return bool(_forms(annotation))


def _located(command: str, location: tuple[int | str, ...]) -> str:
    """The dotted key of a problem; of a section with several forms, without the form that pydantic puts in."""
    if len(location) > 1 and len(_forms(SCHEMAS[command].model_fields[str(location[0])].annotation)) > 1:
        location = (location[0], *location[2:])
    return _dotted(location)


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
    return text


def choices(model: type[BaseModel]) -> dict[str, list[str]]:
    """Every dotted key that takes one of a few names (or a list of them), with the names."""
    found: dict[str, list[str]] = {}
    for key, annotation in keys(model).items():
        names = _names(annotation)
        if len(names) > 1:
            found[key] = names
    return found


def _names(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return [str(name) for name in typing.get_args(annotation)]
    return list(dict.fromkeys(name for part in typing.get_args(annotation) for name in _names(part)))
