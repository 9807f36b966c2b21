"""From a command and its overrides to one validated, frozen configuration, through Hydra."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plsh_cli.config import catalog, check, tables
from plsh_cli.config.schema import FLAGS, SCHEMAS, Command
from plsh_cli.errors import MessageError, UserError

#: Keys that do not change what a run computes; they stay out of the config hash.
NOT_SCIENCE = ("logger", "name", "out", "resume", "resume_force", "sweep")


def flag_overrides(command: str, flags: Mapping[str, str | None]) -> list[str]:
    """The overrides that the given flags stand for: `--s 10,20` is `approx.num_samples=[10,20]`."""
    annotations = check.keys(SCHEMAS[command])
    lines = []
    for flag, text in flags.items():
        if text is None:
            continue
        key = FLAGS[command][flag]
        if annotations[key] is str:
            lines.append(f"{key}={quote(text, bare=False)}")
            continue
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise UserError(flag, text, "must be a value, or values separated by single commas such as 10,20,40")
        quoted = [quote(part) for part in parts]
        value = f"[{','.join(quoted)}]" if check.takes_list(annotations[key]) else ",".join(quoted)
        lines.append(f"{key}={value}")
    return lines


def compose(command: str, overrides: list[str], extra: Path | None = None) -> Command:
    """The configuration of one run. `extra` is a folder of the user's own configuration files.

    Raises UserError or MessageError for an unknown key, group or option, a key given twice, a deletion, a sweep over
    several values, and any value of the wrong type or range.
    """
    check_overrides(command, overrides, extra, sweep=False)
    return check.validate(command, load(command, with_implied(command, overrides), extra))


def with_implied(command: str, overrides: list[str]) -> list[str]:
    """The overrides with those that they bring along (`Command.implied`), where nothing else is given for a key."""
    given = {text.partition("=")[0] for text in overrides}
    more = [text for one in overrides for text in SCHEMAS[command].implied.get(one, [])]
    return [*overrides, *(text for text in more if text.partition("=")[0] not in given)]


def load(command: str, overrides: list[str], extra: Path | None = None) -> dict[str, Any]:
    """The composed configuration as plain values, not validated; a table file's numbers take its place."""
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with hydra_context():
            tree = hydra_compose(command, overrides=[*overrides, *search_path(extra)])
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        # Overrides are checked before: a key that Hydra does not find is one of another option.
        other = re.match(r"Could not override '([^']+)'", str(error))
        raise MessageError(check.misplaced(other[1]) if other else f"configuration: {_first_lines(error)}") from None
    assert isinstance(plain, dict)
    return tables.inline({str(key): value for key, value in plain.items()})


@contextmanager
def hydra_context() -> Iterator[None]:
    """A context in which Hydra reads conf/; nests inside itself and inside others' use of Hydra."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(catalog.conf_dir()), version_base="1.3", job_name="plsh"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def search_path(extra: Path | None) -> list[str]:
    """The override that adds the user's folder of configuration files to Hydra's search path."""
    if extra is None:
        return []
    if not extra.is_dir():
        raise UserError("--config-dir", str(extra), "must be a folder of configuration files")
    return [f"hydra.searchpath=[{quote('file://' + str(extra.resolve()))}]"]


def check_overrides(command: str, overrides: list[str], extra: Path | None, *, sweep: bool) -> None:
    """Refuse what Hydra would refuse obscurely or accept silently. `sweep`: several values per key are allowed."""
    search_path(extra)
    groups = group_options(command, extra)
    known = check.keys(SCHEMAS[command])
    seen: dict[str, str] = {}
    for text, override in zip(overrides, parse(overrides), strict=True):
        key = override.key_or_group
        if override.is_delete():
            instead = "; to switch W&B off use logger.mode=disabled" if key.split(".")[0] == "logger" else ""
            raise MessageError(f"{text}: {key} cannot be deleted, every key is needed{instead}")
        if key in seen:
            raise MessageError(f"{key} is given twice: {seen[key]} and {text}; give it once")
        seen[key] = text
        if override.is_sweep_override() and not sweep:
            raise MessageError(
                f"{text} sweeps over several values: add --multirun to run each, or write a list as {key}=[...]"
            )
        if key.startswith(("hydra.", "hydra/")):
            continue
        if key in groups:
            _check_option(key, override, groups[key])
            _check_experiment(command, key, override, extra)
        elif key in known and key not in _leaves(command):
            raise MessageError(
                f"{text}: {key} is a section; set its keys, such as "
                f"{next(leaf for leaf in _leaves(command) if leaf.startswith(key + '.'))}=..."
            )
        elif key not in known:
            raise MessageError(
                f"unknown key {key} for plsh {check.spelled(command)}: "
                f"{check.nearest(key, [*_leaves(command), *groups])}"
            )


def group_options(command: str, extra: Path | None) -> dict[str, list[str]]:
    """Each configuration group with its options, without the program's own options that do not fit the command."""
    shipped, groups = catalog.groups(), catalog.groups(extra)
    for group, fitting in SCHEMAS[command].options.items():
        unfit = set(shipped[group]) - set(fitting)
        groups[group] = [option for option in groups[group] if option not in unfit]
    return groups


def config_hash(config: Command) -> str:
    """A hash of everything that decides a run's numbers: the command, its settings and the program's version."""
    from plsh_cli import __version__

    plain = config.model_dump(mode="json", exclude=set(NOT_SCIENCE)) | {"version": __version__}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _leaves(command: str) -> list[str]:
    known = check.keys(SCHEMAS[command])
    return [key for key in known if not any(other.startswith(f"{key}.") for other in known)]


def _check_option(group: str, override: Any, options: list[str]) -> None:
    values = override.value().list if override.is_sweep_override() else [override.value()]
    for value in values:
        name = str(getattr(value, "text", value))
        if name not in options:
            raise UserError(group, name, f"must be one of {', '.join(options)}", f"{group}=...")


def _check_experiment(command: str, group: str, override: Any, extra: Path | None) -> None:
    """An experiment belongs to one command, and its keys must be the command's own, not experiment.*"""
    if group != "experiment" or override.is_sweep_override():
        return
    name = override.value()
    preset = next(preset for preset in reversed(catalog.experiments(extra)) if preset.name == name)
    if preset.command not in (command, None):
        raise MessageError(
            f"experiment={name} is for plsh {check.spelled(preset.command)}, not plsh {check.spelled(command)}"
        )
    file = (extra or Path()) / group / f"{name}.yaml"
    if extra is not None and file.is_file():
        first = file.read_text(encoding="utf-8", errors="replace").splitlines()[:1]
        if first != ["# @package _global_"]:
            raise MessageError(
                f"{file}: its first line must be '# @package _global_', so that its keys are the command's"
            )


def parse(overrides: list[str]) -> list[Any]:
    """The overrides as Hydra reads them; MessageError for one that it cannot read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parsed = []
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            raise MessageError(
                f"stray argument {text!r}: settings are given as key=value, and lists without spaces (--s 10,20)"
            )
        try:
            parsed.append(OverridesParser.create().parse_override(text))
        except HydraException as error:
            raise MessageError(f"cannot read {text!r}: {_first_lines(error)}") from None
    return parsed


def quote(text: str, *, bare: bool = True) -> str:
    """The text as a value of Hydra's override grammar; `bare`: without quotes where they are not needed (a number stays
    a number)."""
    if bare and re.fullmatch(r"[A-Za-z0-9_./:-]+|[+-]?[0-9.]+([eE][+-]?[0-9]+)?", text):
        return text
    if not bare and re.fullmatch(r"[A-Za-z_.][A-Za-z0-9_./-]*[/.][A-Za-z0-9_./-]*|/[A-Za-z0-9_./-]+", text):
        return text
    escaped = text.replace("${", "\\${")
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), escaped) + "'"


def value(item: object) -> str:
    """A plain value (number, text, true/false, null, or a list of them) in Hydra's override grammar."""
    if isinstance(item, list):
        return f"[{','.join(value(one) for one in item)}]"
    if isinstance(item, str):
        return quote(item, bare=re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", item) is not None)
    return {True: "true", False: "false", None: "null"}[item] if isinstance(item, (bool, type(None))) else repr(item)


def _first_lines(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
