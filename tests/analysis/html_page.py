"""A parsed HTML page."""

from __future__ import annotations

import html.parser


class Page(html.parser.HTMLParser):
    """Texts of elements by id, or by tag without one; tags, addresses, and pieces of text with their tags."""

    def __init__(self, text):
        super().__init__()
        self.element = None
        self.texts = {}
        self.tags = []
        self.addresses = []
        self.pieces = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.element = dict(attrs).get("id", tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.pieces.append((self.tags[-1] if self.tags else "", data))
        self.texts[self.element] = self.texts.get(self.element, "") + data
