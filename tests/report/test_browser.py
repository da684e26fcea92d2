"""The page in a real browser: nothing is loaded, nothing fails, sliders move pictures, phones scroll one way."""

import shutil

import numpy as np
import pytest

from continua.report import write_report
from continua.runs import Lines, Run, Scale, Section, Series
from run_folders import written_run

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no program named chromium: make browser")


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [written_run(folder / name, seed).folder for seed, name in enumerate(("first", "second"))]
    return write_report(runs[:1]), write_report(runs, folder / "both.html")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        launched = started.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield launched
        launched.close()


class Opened:
    """A page, and what it asked for and complained of."""

    def __init__(self, browser, path, width=1280, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page, self.words, self.requests = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.words.append(message.text))
        self.page.on("pageerror", lambda error: self.words.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", state="attached")


@pytest.mark.parametrize("which", [0, 1], ids=["one run", "two runs"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_draws_everything_without_a_word_and_without_a_request(browser, page_path, width, which):
    opened = Opened(browser, page_path[which], width)
    page = opened.page
    assert opened.words == [] and opened.requests == [page_path[which].as_uri()]
    assert page.locator("script.figure").count() == page.locator("figure .plot > svg[role=img]").count() > 10
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.plot')].every((p) => p.clientHeight > 100)")
    opened.context.close()


def test_numbers_at_the_ends_of_double_precision_are_drawn(browser, tmp_path):
    run = Run.begin(tmp_path / "far", "lab", {"task": "far"})
    ends = [Series.of(f"{low:g}", range(600), np.geomspace(low, 1e300, 600)) for low in (1e-300, 1.0, 1e300)]
    axes = {"x": Scale("updates"), "y": Scale("size", log=True)}
    figures = (Lines(title="all", series=tuple(ends), **axes), *(Lines(title="one", series=(s,), **axes) for s in ends))
    run.keep_section("far", Section("far", figures=figures))
    opened = Opened(browser, write_report([run.folder]))
    paths = opened.page.locator("figure .plot path").evaluate_all("(all) => all.map((p) => p.getAttribute('d'))")
    assert opened.words == [] and len(paths) == 6
    assert all(path.count("L") == 599 and "NaN" not in path and "Infinity" not in path for path in paths)
    opened.context.close()


def pixels(page) -> str:
    return page.evaluate("document.querySelector('figure.heat canvas').toDataURL()")


def slide(slider, to: int) -> None:
    slider.evaluate("(input, to) => { input.value = to; input.dispatchEvent(new Event('input')); }", to)


def test_the_slider_moves_the_picture_and_the_choice_changes_the_head(browser, page_path):
    opened = Opened(browser, page_path[0])
    page, heat = opened.page, opened.page.locator("figure.heat").first
    before = pixels(page)
    slide(heat.locator("input[type=range]"), 4)
    moved = pixels(page)
    assert moved != before and heat.locator("output").inner_text() == "1"
    heat.locator("select").select_option("2")
    assert pixels(page) not in (before, moved)
    heat.locator("select").select_option("0")
    slide(heat.locator("input[type=range]"), 0)
    assert pixels(page) == before and opened.words == []
    opened.context.close()


def test_the_slider_moves_the_tokens(browser, page_path):
    opened = Opened(browser, page_path[0])
    paths = opened.page.locator("figure.paths").first

    def places() -> list[list[float]]:
        return paths.evaluate(
            "f => [...f.querySelectorAll('.token')].map((c) => [+c.getAttribute('cx'), +c.getAttribute('cy')])"
        )

    end = places()
    slide(paths.locator("input[type=range]"), 0)
    start = places()
    assert len(start) == 12 and all(a != b for a, b in zip(start, end, strict=True))
    opened.context.close()


def test_values_are_shown_under_the_pointer_and_names_hide_curves(browser, page_path):
    opened = Opened(browser, page_path[0])
    figure = opened.page.locator("figure.lines").first
    figure.locator(".plot").scroll_into_view_if_needed()
    box = figure.locator(".plot").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = figure.locator(".tip")
    assert tip.is_visible() and "continuous, training" in tip.inner_text() and "update 1" in tip.inner_text()
    lines = figure.locator(".plot path").count()
    figure.locator(".legend button").first.click()
    assert figure.locator(".plot path").count() < lines
    assert figure.locator(".legend button").first.get_attribute("aria-pressed") == "false"
    opened.context.close()


def test_values_of_a_heat_map_are_those_that_were_measured(browser, page_path):
    from run_folders import figures

    opened = Opened(browser, page_path[0])
    heat = opened.page.locator("figure.heat").first
    heat.locator("canvas").scroll_into_view_if_needed()
    canvas = heat.locator("canvas").bounding_box()
    cell = canvas["width"] / 20
    opened.page.mouse.move(canvas["x"] + 3.5 * cell, canvas["y"] + canvas["height"] - 7.5 * cell)  # column 3, row 7
    value = figures()["heat"].values[0, 0, 7, 3]
    assert f"α {value:.4g}" in heat.locator(".tip").inner_text()
    opened.context.close()


def test_dark_scheme_is_dark_and_drawings_follow_the_width(browser, page_path):
    opened = Opened(browser, page_path[0], scheme="dark")
    red = opened.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert int(red) < 60
    view = "document.querySelector('figure.lines svg[role=img]').getAttribute('viewBox')"
    wide = opened.page.evaluate(view)
    opened.page.set_viewport_size({"width": 360, "height": 800})
    opened.page.wait_for_function(f"{view} !== '{wide}'")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360 and opened.words == []
    opened.context.close()
