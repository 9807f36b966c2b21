"""Where the package index that the user's pip is set up for keeps a wheel (PEP 503 and 691)."""

from __future__ import annotations

import ast
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from plsh_cli.assets.download import Opener

_PYPI = "https://pypi.org/simple"
_TIMEOUT_SECONDS = 10
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"


@dataclass(frozen=True)
class Link:
    """A file of an index, with its checksum where the index gives one."""

    url: str
    sha256: str | None

    @property
    def filename(self) -> str:
        """The last part of the path."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


@dataclass(frozen=True)
class Settings:
    """What pip is told by its configuration files and environment, as far as it matters here."""

    indexes: list[str]
    find_links: list[str]
    opener: Opener


def find_wheel(requirement: str, settings: Settings) -> Link | None:
    """The wheel of `requirement` (name==version) that runs anywhere; None where no place has one that can be read."""
    name, _, version = requirement.partition("==")
    project = _normal(name)
    places = [*settings.find_links, *(f"{index.rstrip('/')}/{project}/" for index in settings.indexes)]
    # What lies on this machine comes first; sorting keeps the order otherwise.
    for place in sorted(places, key=lambda place: place.startswith("http")):
        for link in _links(place, settings.opener):
            parts = link.filename.removesuffix(".whl").split("-")
            if link.filename.endswith("-none-any.whl") and (_normal(parts[0]), parts[1]) == (project, version):
                return link
    return None


def pip_settings() -> Settings | None:
    """pip's own settings; None where it cannot be asked, or is set up in a way that only pip itself can follow."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        return None
    found: dict[str, str] = {}
    for section in ("global", "download", ":env:"):
        for line in done.stdout.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                found[key.removeprefix(f"{section}.")] = str(ast.literal_eval(value))
    indexes = [*found.get("index-url", _PYPI).split(), *found.get("extra-index-url", "").split()]
    if found.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    places = found.get("find-links", "").split()
    if found.get("trusted-host") or found.get("client-cert") or any("@" in urlsplit(url).netloc for url in indexes):
        return None
    return Settings(indexes, places, _opener(found.get("cert"), found.get("proxy")))


def _opener(cert: str | None, proxy: str | None) -> Opener:
    context = ssl.create_default_context()
    if cert:
        context.load_verify_locations(**{"capath" if Path(cert).is_dir() else "cafile": cert})
    proxies = urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    return urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))


def _links(place: str, opener: Opener) -> list[Link]:
    """The files that a page or folder lists; none where it cannot be read."""
    local = _local(place)
    if local is not None and local.is_dir() and not (local / "index.html").is_file():
        return [Link(file.absolute().as_uri(), None) for file in sorted(local.glob("*.whl"))]
    if local is not None:
        page = local / "index.html" if local.is_dir() else local
        return _of_html(page.read_text(encoding="utf-8"), page.absolute().as_uri()) if page.is_file() else []
    request = urllib.request.Request(place, headers={"Accept": _ACCEPT})
    try:
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            text, base = answer.read().decode("utf-8"), answer.geturl()
            is_json = answer.headers.get_content_type().endswith("json")
        return _of_json(text, base) if is_json else _of_html(text, base)
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _local(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme in ("http", "https"):
        return None
    return Path(urllib.request.url2pathname(parts.path) if parts.scheme == "file" else place)


def _of_json(text: str, base: str) -> list[Link]:
    files = json.loads(text)["files"]
    return [Link(urljoin(base, item["url"]), item.get("hashes", {}).get("sha256")) for item in files]


def _of_html(text: str, base: str) -> list[Link]:
    found: list[Link] = []

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            target = dict(attrs).get("href") if tag == "a" else None
            if target:
                url, fragment = urldefrag(urljoin(base, target))
                digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
                found.append(Link(url, digest and digest[1]))

    Anchors().feed(text)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
