"""A hub on this machine for the tests of hubs."""

from __future__ import annotations

import huggingface_hub
import pytest
from huggingface_hub import constants


@pytest.fixture
def hub(web, tmp_path, monkeypatch):
    """Return our own hub with an empty cache, for Hugging Face's client in this process."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, web.url)
    monkeypatch.setattr(constants, "ENDPOINT", web.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    web.serve("/", web.content(b"a page"))
    huggingface_hub.close_session()  # it has the proxies of the old environment
    yield web
    huggingface_hub.close_session()
