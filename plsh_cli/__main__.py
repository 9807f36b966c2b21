"""`python -m plsh_cli`, the same as `plsh`."""

from __future__ import annotations

from plsh_cli.cli import main

if __name__ == "__main__":
    main()
