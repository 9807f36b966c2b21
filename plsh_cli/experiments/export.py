"""`plsh export`: the model of a run as a folder for others, and how it is loaded."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from plsh_cli.models.export import Exported, export
from plsh_cli.models.restore import find

#: How the user says where an adapter's base is.
OPTION = "--base FOLDER"


def run(
    place: str,
    to: str,
    merge: bool,
    dtype: str | None,
    base: str | None,
    out: str,
    say: Callable[[str], None],
) -> None:
    """Write the folder, and say what it is and which lines of Python give the same logits.

    place: as `plsh_cli.models.load` takes it, names looked for below `out`. Raises what finding, restoring and writing
    raise.
    """
    saved = find(place, out)
    done = export(saved, Path(to), merge=merge, dtype=dtype, base=base, say=say, option=OPTION)
    if saved.record is None and merge:
        say(f"{saved.name} is a whole model: there was nothing to merge")
    say(f"{saved.name}: {_what(merge or saved.record is None, done)}, in {done.folder}")
    say(f"attention: {done.settings}")
    say("to get the same logits, in Python:")
    print(f"\n{textwrap.indent(done.code, '    ')}\n", flush=True)


def _what(whole: bool, done: Exported) -> str:
    if not whole:
        return f"the adapter alone (peft, safetensors), for a base in {done.dtype}"
    share = done.difference / done.largest
    far = f"{done.difference:.1e}, {share:.1e} of the largest"
    moved = f"logits of {done.tokens} tokens are off the run's by at most {far}"
    # Most changes of an adapter are smaller than half a place of such a weight.
    rounded = "" if done.dtype == "float32" else "; merged weights are rounded to it, --dtype float32 keeps them"
    return f"the whole model ({done.dtype}{rounded}), {moved}"
