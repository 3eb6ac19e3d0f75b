"""The page of a training step with AdamW of a Llama of 32 layers: how large it is, and how soon a browser shows it."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row, cold, options, print_table

VIEWS = ("overview", "layers", "graph", "mesh", "timeline", "memory", "lines", "passes")


def page(layers: int) -> tuple[str, float]:
    """Return the page of the decided step, and the CPU seconds to write it."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    import spmdir
    from benchmarks.gloo_step import VOCABULARY, Sizes, llama, loss_of
    from spmdir.pictures.report_page import write_html
    from spmdir.pipeline.pipeline import Pipeline

    model = llama(Sizes(layers, 128, 128, 8))
    step, state = spmdir.training_step(model, loss_of, torch.optim.AdamW(model.parameters()))
    traced = make_fx(step, tracing_mode="fake")(state, torch.randint(0, VOCABULARY, (8, 128)))
    given = {"*q_proj.weight": "tp: S(0)", "*gate_proj.weight": "tp: S(0)", "arg1_1": "dp: S(0)"}
    module = spmdir.run_passes(spmdir.import_fx(traced, spmdir.Mesh({"dp": 2, "tp": 4}), given), "propagate")
    start = time.process_time()
    return write_html(module, Pipeline(), "step"), time.process_time() - start


def opened(text: str) -> float:
    """Return the seconds until the slowest view has been shown, the best of three times."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    given = webdriver.ChromeOptions()
    given.binary_location = chromium or ""
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,800"):
        given.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(text, encoding="utf-8")
        browser = webdriver.Chrome(options=given, service=webdriver.ChromeService(driver))
        try:
            return max(min(_shown(browser, f"{path.as_uri()}#{view}") for _ in range(3)) for view in VIEWS)
        finally:
            browser.quit()


def _shown(browser, address: str) -> float:
    browser.get("about:blank")
    browser.get(address)
    return browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=32)
    layers = parser.parse_args().layers
    text, seconds = cold(page, layers)
    rows = [
        Row("MB", len(text) / 1e6, 3.0),
        Row("s until a browser shows it", opened(text), 1.0, detail="the slowest view"),
        Row("s to write it", seconds, detail="of the decided program"),
    ]
    print_table(f"the page of a step of {layers} layers", rows)


if __name__ == "__main__":
    main()
