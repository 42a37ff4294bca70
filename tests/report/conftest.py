"""A report in a real browser: `make test-report` brings the browser and runs these; a missing browser fails them, never skips."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.artifacts import Cell
from pipeline.paper.stages import assemble
from tests.unit import synthetic_results as synthetic

# runs in the page once it is laid out and leaves what it saw in the document around it
PROBE = """<script>
const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, nav, svg, pre"))
  .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.tagName + "." + e.className);
const seen = {
  width: window.innerWidth, scroll: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight, wide,
  images: [...document.images].filter(i => !i.complete || i.naturalWidth === 0).map(i => i.src),
  drawings: [...document.querySelectorAll("figure svg")].map(e => [e.getBoundingClientRect().width, e.getBBox().width]),
  requests: performance.getEntriesByType("resource").map(e => e.name),
  ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
};
const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
parent.document.body.append(out);
</script></body>"""


@dataclass(frozen=True)
class Browser:
    """Headless Chromium with a profile of its own."""

    program: str
    folder: Path

    def look(self, page: Path, width: int = 1280, *, dark: bool = False) -> tuple[dict, list[str]]:
        """What the probe saw on the page at that width, and the console's messages.

        The page stands in a frame of that width, because the window cannot be as narrow as a phone.
        """
        inner = html.escape(page.read_text(encoding="utf-8").replace("</body>", PROBE))
        probed = page.with_name("probed.html")
        frame = f'<iframe srcdoc="{inner}" style="width: {width}px; height: 900px; border: 0"></iframe>'
        probed.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>', encoding="utf-8")
        command = [
            self.program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={self.folder}", "--window-size=1400,1000",
            "--enable-logging=stderr", f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=3000",
            "--dump-dom", probed.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, "the page was not laid out to its end: " + done.stderr[-2000:]
        return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Browser:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert program, "no Chromium; `make test-report` installs it"
    return Browser(program, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> Path:
    """The report of one seed of all cells: some collapse, one is missing, mismatch was decomposed, a plan was made."""
    world = synthetic.World({("gspo", "8"): 150, ("grpo-uncorrected", "8-15"): 110}, missing=[Cell("dppo", "8", 0)])
    run = synthetic.write_run(tmp_path_factory.mktemp("report"), world)
    folder = run.root / run.layout.results
    (folder / "mismatch.json").write_text(json.dumps(synthetic.MISMATCH))
    (folder / "plan.json").write_text(json.dumps(synthetic.plan(run.settings)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run.root)
        assemble(run.layout, run.settings)
    return folder / "report.html"
