"""plsh: a command-line laboratory for Positional LSH (Wolfson & Wagner 2026, arXiv 2605.09472).

`import plsh_cli` makes attn_implementation="plsh" known to transformers, now or as soon as it is imported.
"""

from __future__ import annotations

from plsh_cli.when_imported import when_imported

__version__ = "0.1.0"

when_imported("transformers.modeling_rope_utils", "plsh_cli.models.rope", "register")
when_imported("transformers.configuration_utils", "plsh_cli.models.saved", "register")
when_imported("transformers.modeling_utils", "plsh_cli.models.interface", "register")
