"""Models and corpora by name: `plsh fetch`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from plsh_cli import assets, console
from plsh_cli.errors import UserError


def known() -> str:
    """The names that can be fetched, in one line."""
    return ", ".join(name for name, asset in assets.ASSETS.items() if not asset.streamed)


def fetch(names: Sequence[str], source: str | None, say: assets.Say) -> None:
    """Have every name on this machine: those of the manifest, from `source` alone if it is given, and hub ids.

    All names are checked before anything is fetched. Raises UserError for an unknown one and for a source that a name
    does not have, MessageError for what cannot be had.
    """
    for name in names:
        if not assets.is_hub_id(name):
            assets.find(name, field="name")
        elif source == "index":
            raise UserError("--source", source, f"{name} is a repository of the hub")
    for name in names:
        on_hub = assets.is_hub_id(name)
        folder = assets.fetch_repo(name, say=say) if on_hub else assets.fetch(name, say, source)
        record = assets.describe(folder) or {}
        kept = f", {record['quantisation']}" if record.get("quantisation") else ""
        say(f"{name}: {record.get('source')}{kept}, in {folder}")


def listing() -> None:
    """Print every name of the manifest with its kind, size, licence, sources, and what is here."""
    columns = ("name", "kind", "size (MB)", "licence", "source", "here")
    table = Table(*columns, title=f"models and corpora, kept in {assets.cache_folder()}", title_justify="left")
    for name, asset in assets.ASSETS.items():
        sizes = [f"{(source.download_bytes or 0) / 1e6:,.0f}" for source in asset.sources]
        ways = [f"{_place(source)}{' (gated)' * source.gated}" for source in asset.sources]
        table.add_row(name, asset.kind, "\n".join(sizes), asset.licence, "\n".join(ways), _here(asset))
    console.output().print(table)


def _place(source: assets.Hub | assets.Wheel) -> str:
    if isinstance(source, assets.Hub):
        return f"hub: {source.repo}"
    return f"index: {source.requirement}{', 4-bit' * (source.quantisation is not None)}"


def _here(asset: assets.Asset) -> str:
    if asset.streamed:
        return "streamed while training"
    folder = assets.cached(asset.name)
    return "no" if folder is None else f"yes, from the {(assets.describe(folder) or {}).get('origin')}"
