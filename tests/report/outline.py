"""What a page is made of, and whether anything in it could make a browser ask for something."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Outline(HTMLParser):
    """Headings, ids, images, table heads and drawings of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if found.get("id"):
            self.ids.append(str(found["id"]))


def outside(html: str) -> list[str]:
    """Everything that could make a browser ask for something, or run something."""
    bare = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "data:", html)
    found = re.findall(r"""https?:|[("'\s=]//\w|@import|url\((?!#|data:)""", bare, flags=re.IGNORECASE)
    for tag, attributes in Outline(bare).tags:
        if tag in ("script", "iframe", "object", "embed", "base", "form", "video", "audio"):
            found.append(tag)
        for name, value in attributes.items():
            local = (value or "").startswith(("#", "data:"))
            if name.startswith("on") or (name in ("src", "href", "xlink:href", "srcset", "action") and not local):
                found.append(f"{tag} {name}={value}")
    return found
