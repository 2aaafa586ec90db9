"""The web server of these tests."""

from tests.web import web  # noqa: F401 - a fixture
