"""Looks at the built site in Chromium, and ends with 1 if something is wrong.

    build/docs-venv/bin/pip install playwright axe-playwright-python
    build/docs-venv/bin/python -P scripts/site_in_a_browser.py [build/site]

Each page is opened 360 and 1,280 pixels wide: nothing may be wider than the page, and axe may find
no violation of WCAG 2 A and AA. Each question of tests/site/questions.yml is typed into the search,
whose first three results must have the page that answers it. It takes six minutes.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, TimeoutError, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = (360, 1280)
RULES = {"runOnly": ["wcag2a", "wcag2aa"]}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and writes no line for each."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def main(arguments: list[str]) -> int:
    """Check the site in the folder that is named, and return the exit code."""
    folder = Path(arguments[0] if arguments else ROOT / "build" / "site").resolve()
    handler = partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    faults: list[str] = []
    with sync_playwright() as play:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=root)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        faults += searched(page, base)
        pages = sorted(str(each.parent.relative_to(folder)) for each in folder.rglob("index.html"))
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            for name in pages:
                page.goto(base if name == "." else f"{base}{name}/")
                faults += [f"{name} at {width} px: {fault}" for fault in faults_of(page, width)]
            page.close()
        browser.close()
    print(*faults, f"{len(pages)} pages, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


def faults_of(page: Page, width: int) -> Iterator[str]:
    """Give what is wrong with the page that is open."""
    wide = page.evaluate("document.scrollingElement.scrollWidth")
    if wide > width:
        yield f"its content is {wide} px wide"
    found: Any = Axe().run(page, options=RULES).response
    for violation in found["violations"]:
        nodes = violation["nodes"]
        yield f"{violation['id']} ({len(nodes)} times), first {nodes[0]['html'][:150]}"


def searched(page: Page, base: str) -> Iterator[str]:
    """Type each question, and give those whose answer is not among the first three results."""
    for question in yaml.safe_load((ROOT / "tests" / "site" / "questions.yml").read_text()):
        page.goto(base, wait_until="networkidle")  # then the keys are listened to
        page.keyboard.press("Control+k")
        page.get_by_placeholder("Search").press_sequentially(question["ask"])
        links = page.locator("ol li a")
        with contextlib.suppress(TimeoutError):
            links.first.wait_for(timeout=10_000)  # ms
        page.wait_for_timeout(500)  # until it has ranked them
        first = [str(links.nth(i).get_attribute("href")) for i in range(min(3, links.count()))]
        places = [link.removeprefix(base).partition("/?")[0] for link in first]
        print(f"{question['ask']!r}: {', '.join(places)}")
        if question["page"] not in places:
            yield f"search for {question['ask']!r}: {question['page']} is not in {places}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
