"""What a browser makes of a page."""

from __future__ import annotations

import html.parser


class Page(html.parser.HTMLParser):
    """The text of each element with an id or, without one, by tag; all tags, and all pieces of text with their tags."""

    def __init__(self, text):
        super().__init__()
        self.inside, self.texts, self.tags, self.addresses, self.pieces = None, {}, [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside = dict(attrs).get("id", tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.pieces.append((self.tags[-1] if self.tags else "", data))
        self.texts[self.inside] = self.texts.get(self.inside, "") + data
