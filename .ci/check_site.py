"""Check every page of the built site in Chromium, as wide as a phone: accessibility, width and links.

Usage: python .ci/check_site.py SITE AXE

SITE is the directory that `make docs` writes, AXE `axe.min.js` of npm's package axe-core. Prints the problems of
each page, and fails if there is any: a serious or critical violation of a rule of axe-core, a page that is wider than
the screen, or a link to a page, a file or an anchor of the site that does not exist.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

WIDTH = 390
_TIMEOUT_SECONDS = 1200
# A window of Chromium is at least 500 pixels wide; a frame may be narrower. Pages are shown in it one after the other.
_DRIVER = """<!doctype html>
<body style="margin: 0"><iframe style="width: %(width)dpx; height: 844px; border: 0"></iframe>
<script>
const frame = document.querySelector("iframe");
const check = async (page) => {
  await new Promise((done) => { frame.onload = done; frame.src = page; });
  const view = frame.contentWindow;
  const script = view.document.createElement("script");
  script.src = "/axe.min.js";
  await new Promise((done) => { script.onload = done; view.document.head.append(script); });
  const found = await view.axe.run();
  const violations = found.violations.filter((rule) => ["serious", "critical"].includes(rule.impact));
  return {
    page, passes: found.passes.length, width: view.document.documentElement.scrollWidth,
    violations: violations.map((rule) => {
      const nodes = rule.nodes.slice(0, 5).map((node) => `${node.target.join(" ")} ${node.any[0]?.message ?? ""}`);
      return [`${rule.id} (${rule.nodes.length} times)`, ...nodes].join("\\n    ");
    }),
  };
};
(async () => {
  for (const page of %(pages)s) {
    const result = await check(page).catch((error) => ({page, passes: 0, width: 0, violations: [String(error)]}));
    await fetch("/result", {method: "POST", body: JSON.stringify(result)});
  }
  await fetch("/result", {method: "POST", body: "null"});
})();
</script>"""


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect addresses and ids."""
        values = dict(attrs)
        self.anchors |= {values[name] or "" for name in ("id", "name") if values.get(name)}
        self.links |= {values[name] or "" for name in ("href", "src") if values.get(name)}


def find_broken_links(site: Path) -> list[str]:
    """Return a message for each link of a page that leads nowhere within the site."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":  # 404.html has absolute links
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                problems.append(f"{path.relative_to(site)}: the link {link} leads nowhere")
    return problems


class Handler(SimpleHTTPRequestHandler):
    """HTTP handler that serves the site, axe-core and the page that drives the check, and collects the results."""

    def __init__(self, *args: Any, extra: dict[str, str], results: list[Any], done: threading.Event, **kw: Any) -> None:
        self.extra, self.results, self.done = extra, results, done
        super().__init__(*args, **kw)

    def do_GET(self) -> None:
        """Answer with a page of the check or of the site."""
        if self.path not in self.extra:
            super().do_GET()
            return
        body = self.extra[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Store the result of a page; without one, mark the check as done."""
        result = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        if result is None:
            self.done.set()
        else:
            self.results.append(result)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def check_pages(site: Path, axe: Path, chromium: str) -> list[dict[str, Any]]:
    """Check each page in a frame of `WIDTH` pixels; return its serious violations, passed rules and actual width."""
    pages = [
        f"/{path.relative_to(site).as_posix()}" for path in sorted(site.rglob("*.html")) if path.name != "404.html"
    ]
    driver = _DRIVER % {"width": WIDTH, "pages": json.dumps(pages)}
    results: list[dict[str, Any]] = []
    done = threading.Event()
    extra = {"/check-of-the-site": driver, "/axe.min.js": axe.read_text("utf-8")}
    handler = functools.partial(Handler, directory=site, extra=extra, results=results, done=done)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as user:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/check-of-the-site"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,844", f"--user-data-dir={user}"]
        command = [chromium, *options, "--remote-debugging-port=0", url]  # the port keeps it running
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        finished = done.wait(_TIMEOUT_SECONDS)
        process.terminate()
        process.wait(30)
        server.shutdown()
    if not finished or len(results) != len(pages):
        sys.exit(f"only {len(results)} of {len(pages)} pages were checked in {_TIMEOUT_SECONDS} s")
    return results


def main(site: Path, axe: Path) -> None:
    """Print the problems of all pages, and fail if there is any."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    problems = find_broken_links(site)
    results = check_pages(site, axe, chromium)
    for result in results:
        problems += [f"{result['page']}: {text}" for text in result["violations"]]
        if result["width"] > WIDTH:
            problems.append(f"{result['page']}: is {result['width']} pixels wide on a screen of {WIDTH}")
    print(*problems, sep="\n")
    print(f"{len(results)} pages, {sum(result['passes'] for result in results)} rules passed, {len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
