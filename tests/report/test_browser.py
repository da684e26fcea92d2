"""The page in a real browser: nothing is loaded, nothing fails, sliders move pictures, phones scroll one way."""

import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from continua.report import write_report
from continua.runs import Curve, Lines, Run, Scale, Section, Table
from run_folders import figures, written_run

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
    assert page.locator(".plot[data-zoomed=no]").count() == page.locator("script.figure").count()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.plot')].every((p) => p.clientHeight > 100)")
    opened.context.close()


def test_numbers_at_the_ends_of_double_precision_are_drawn(browser, tmp_path):
    run = Run.begin(tmp_path / "far", "lab", {"task": "far"})
    ends = [Curve.of(f"{low:g}", range(600), np.geomspace(low, 1e300, 600)) for low in (1e-300, 1.0, 1e300)]
    axes = {"x": Scale("updates"), "y": Scale("size", log=True)}
    figures = (Lines(title="all", curves=tuple(ends), **axes), *(Lines(title="one", curves=(s,), **axes) for s in ends))
    run.keep_section("far", Section("far", figures=figures))
    opened = Opened(browser, write_report([run.folder]))
    paths = opened.page.locator("figure .plot path").evaluate_all("(all) => all.map((p) => p.getAttribute('d'))")
    assert opened.words == [] and len(paths) == 6
    assert all(path.count("L") == 599 and "NaN" not in path and "Infinity" not in path for path in paths)
    opened.context.close()


def pixels(page) -> str:
    return page.evaluate("document.querySelector('figure.heat .window image').getAttribute('href')")


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
            "f => [...f.querySelectorAll('.token')].map((c) => c.getAttribute('d').match(/[\\d.]+/g).map(Number))"
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
    lines = figure.locator(".plot path:visible").count()
    figure.locator(".key").first.click()
    assert figure.locator(".plot path:visible").count() < lines
    assert figure.locator(".key").first.get_attribute("aria-pressed") == "false"
    figure.locator(".key").first.press("Enter")
    assert figure.locator(".plot path:visible").count() == lines
    opened.context.close()


def test_named_points_are_told_together_and_hide_with_their_curve(browser, tmp_path):
    curves = (Curve.of("steps", [1, 4, 8], [3, 2, 1], mark="both", labels=("1", "4", "8")),
              Curve.of("others", [4, 4, 4.1], [2.5, 1.5, 1.45], mark="hollow",
                       labels=("rtol 0.01", "12 head nodes", "24 axis nodes of a wide page")))  # fmt: skip
    run = Run.begin(tmp_path / "named", "lab", {"task": "named"})
    figure = Lines(title="named", x=Scale("x", log=True), y=Scale("y"), curves=curves)
    run.keep_section("named", Section("named", figures=(figure,)))
    page_path = write_report([run.folder])
    shown = {}
    for width in (360, 1280):
        opened = Opened(browser, page_path, width)
        found = opened.page.locator("figure.lines").first
        shown[width] = found.locator("text.name:visible").count()
        box = found.locator("svg.window").bounding_box()
        dot = found.locator("text.name", has_text="rtol 0.01").bounding_box()
        assert box["x"] <= dot["x"] and dot["x"] + dot["width"] <= box["x"] + box["width"]
        if width == 1280:
            opened.page.mouse.move(box["x"] + box["width"] * 0.667, box["y"] + box["height"] / 2)
            told = found.locator(".tip").inner_text()
            assert all(word in told for word in ("steps, 4", "others, rtol 0.01", "others, 12 head nodes"))
            found.locator(".key").nth(1).click()
            assert found.locator("text.name:visible").count() == 3
        assert opened.words == []
        opened.context.close()
    assert 5 <= shown[360] <= shown[1280] == 6


def test_values_of_a_heat_map_are_those_that_were_measured(browser, page_path):
    opened = Opened(browser, page_path[0])
    heat = opened.page.locator("figure.heat").first
    heat.locator("svg.window").scroll_into_view_if_needed()
    image = heat.locator("image.heat").bounding_box()
    across, along = image["width"] / 20, image["height"] / 20
    opened.page.mouse.move(image["x"] + 3.5 * across, image["y"] + image["height"] - 7.5 * along)  # column 3, row 7
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


def window(figure) -> tuple[float, float, float, float]:
    """Where the window of a figure is on the screen: left, top, width and height."""
    root = figure.locator("svg.drawing").bounding_box()
    place = [float(figure.locator("svg.window").get_attribute(name)) for name in ("x", "y", "width", "height")]
    return root["x"] + place[0], root["y"] + place[1], place[2], place[3]


def view(figure) -> list[float]:
    """What part of the window is seen, in its own units: left, top, width and height."""
    return [float(word) for word in figure.locator(".window").get_attribute("viewBox").split(" ")]


def test_a_dragged_box_zooms_and_the_ticks_say_so(browser, page_path):
    opened = Opened(browser, page_path[0])
    figure = opened.page.locator("figure.lines").first
    figure.locator(".plot").scroll_into_view_if_needed()
    (left, top, wide, high), mouse = window(figure), opened.page.mouse
    ticks = figure.locator("g.tx text").all_text_contents()
    mouse.move(left + 0.25 * wide, top + 0.2 * high)
    mouse.down()
    mouse.move(left + 0.75 * wide, top + 0.7 * high, steps=3)
    assert figure.locator(".chosen").is_visible()
    mouse.up()
    assert view(figure) == pytest.approx([2500.0, 2000.0, 5000.0, 5000.0], abs=60.0)
    assert figure.locator("g.tx text").all_text_contents() != ticks and not figure.locator(".chosen").is_visible()
    mouse.dblclick(left + 0.5 * wide, top + 0.5 * high)
    assert view(figure) == [0.0, 0.0, 10000.0, 10000.0]
    assert figure.locator("g.tx text").all_text_contents() == ticks and opened.words == []
    opened.context.close()


def test_buttons_and_the_wheel_with_ctrl_zoom_but_the_wheel_alone_scrolls(browser, page_path):
    opened = Opened(browser, page_path[0])
    figure = opened.page.locator("figure.lines").first
    figure.get_by_label("zoom in").click()
    assert view(figure)[2:] == pytest.approx([6250.0, 6250.0])
    figure.get_by_label("show the whole figure").click()
    assert view(figure)[2:] == [10000.0, 10000.0] and not figure.get_by_label("zoom out").is_visible()
    left, top, wide, high = window(figure)
    opened.page.mouse.move(left + 0.5 * wide, top + 0.5 * high)
    opened.page.mouse.wheel(0, 40)
    opened.page.wait_for_timeout(500)  # scrolling is smooth
    assert window(figure)[1] < top and view(figure)[2:] == [10000.0, 10000.0]
    left, top, wide, high = window(figure)
    opened.page.mouse.move(left + 0.5 * wide, top + 0.5 * high)
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -60)
    opened.page.wait_for_selector(".plot[data-zoomed=yes]")
    assert view(figure)[2] < 9000.0 and opened.words == []
    opened.context.close()


@pytest.mark.parametrize("kind", ["lines", "steps", "bars", "heat", "paths"])
def test_a_figure_is_saved_as_svg_and_as_png(browser, page_path, kind, tmp_path):
    opened = Opened(browser, page_path[0], scheme="dark")
    figure = opened.page.locator("figure").filter(has_text=figures()[kind].title).first
    for end, head in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with opened.page.expect_download() as waiting:
            figure.get_by_label(f"save as {end.upper()}").click()
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        assert path.suffix == f".{end}" and path.read_bytes().startswith(head)
    saved = path.with_suffix(".svg").read_text()
    ElementTree.fromstring(saved)
    assert "var(" not in saved and "#1b5e8c" in saved  # light, whatever the reader's scheme
    shown = opened.context.new_page()
    shown.goto(path.with_suffix(".svg").as_uri())
    assert shown.evaluate("document.documentElement.getBoundingClientRect().height") > 200
    assert opened.words == [] and opened.page.url == page_path[0].as_uri()
    opened.context.close()


def test_a_finger_moves_what_is_zoomed(browser, page_path):
    opened = Opened(browser, page_path[0], 390)
    figure = opened.page.locator("figure.lines").first
    figure.get_by_label("zoom in").click()
    before = view(figure)
    figure.locator("svg.drawing").evaluate(
        """(root) => {
          const box = root.querySelector(".window").getBoundingClientRect();
          const at = (x) => ({ clientX: box.left + x, clientY: box.top + 60, pointerType: "touch", button: 0 });
          const send = (name, x) => root.dispatchEvent(new PointerEvent(name, at(x)));
          send("pointerdown", 150); send("pointermove", 100); send("pointerup", 100);
        }"""
    )
    after = view(figure)
    assert after[0] > before[0] + 300.0 and after[1:] == before[1:] and opened.words == []
    opened.context.close()


def test_tables_show_all_their_columns_on_a_phone(browser, tmp_path):
    columns = ("model", "parameters", "optimiser", *(f"a measure of number {k}" for k in range(6)))
    many = Table(title="many", columns=columns, rows=(("ours", 59_010, "recipe", *([0.123] * 6)), ("theirs",) * 9))
    words = Table(
        title="few", columns=("experiment", "verdict", "size", "seconds"), rows=(("limit", "holds", "x", 5.3),)
    )
    counts = Table(title="counts", columns=("", *"0123456789", "right"), rows=((f"{0}", *range(90, 100), 0.1981),) * 3)
    run = Run.begin(tmp_path / "run", "lab", {"task": "tables"})
    run.keep_section("tables", Section("Tables", figures=(many, words, counts)))
    opened = Opened(browser, write_report([run.folder]), 360)
    frames = opened.page.locator(".scroll").evaluate_all("(all) => all.map((f) => [f.scrollWidth, f.clientWidth])")
    assert len(frames) == 3 and all(needed <= there for needed, there in frames)
    right = opened.page.locator(".scroll td:visible").evaluate_all("(all) => all.map((c) => c.getBoundingClientRect())")
    assert len(right) == 8 + 8 + 3 + 3 * 11 and all(cell["width"] > 0 and cell["right"] <= 360 for cell in right)
    opened.context.close()
