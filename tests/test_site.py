"""The documentation site: every page is reached, every link leads somewhere, every public name has its entry, every
tutorial runs and draws the figure that it shows, every mistake is answered as the page says."""

import importlib
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

import continua
from tools.figures import TUTORIALS, run_page
from tools.formulas import split_formula, typeset
from tools.reference import ROOMS, pages
from tools.stage import stage

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    return stage(tmp_path_factory.mktemp("site") / "pages")


def nav_pages(entry) -> list[str]:
    if isinstance(entry, dict):
        entry = list(entry.values())
    return [page for each in entry for page in nav_pages(each)] if isinstance(entry, list) else [entry]


def test_every_page_is_in_the_navigation(staged):
    """A page that is missing there: add it to `nav` in mkdocs.yml."""
    assert sorted(nav_pages(CONFIG["nav"])) == sorted(str(p.relative_to(staged)) for p in staged.rglob("*.md"))


def anchors(text: str) -> set[str]:
    """As the site names headings, and those that a page names itself."""
    plain = (re.sub(r"[^\w\s-]", "", head.lower()).strip() for head in re.findall(r"^#+ (.*?)(?: \{.*)?$", text, re.M))
    return {re.sub(r"[\s-]+", "-", words) for words in plain} | set(re.findall(r"\{ #([\w.]+) \}", text))


def test_every_link_leads_to_a_page_and_to_a_heading_of_it(staged):
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in staged.rglob("*.md")}
    broken = []
    for page, text in texts.items():
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists() or (anchor and anchor not in anchors(texts.get(there, ""))):
                broken.append(f"{page.relative_to(staged.resolve())}: {target}")
    assert broken == []


def test_every_public_name_has_its_entry_with_what_somebody_wrote():
    made = pages()
    whole = "\n".join(made.values())
    shown = re.findall(r"\{ #(continua\.[\w.]+) \}", whole)
    assert {f"continua.{name}" for name in dir(continua)} <= set(shown) and len(shown) == len(set(shown))
    assert {"continua.load", "continua.model.load"} <= set(shown)  # two functions of one name
    assert {"ContinuousClassifier", "ContinuousForecaster"} <= set(re.findall(r"\| \[(\w+)\]\(", made["index.md"]))
    for room in ROOMS:
        names = importlib.import_module(f"continua.{room}").__all__
        missing = [name for name in names if not re.search(rf"\{{ #continua(?:\.\w+)?\.{name} \}}", whole)]
        assert missing == []
    assert "softmax" in made["operators.md"].split("### Attention {")[1].split("###")[0]


@pytest.mark.parametrize(
    ("docstring", "formula", "rest"),
    [
        ("r = |f|^2. Under splitting more.", "r = |f|^2", "Under splitting more."),
        ("x' = x + dz f(z, x), of order 1: the step.", "x' = x + dz f(z, x)", "of order 1: the step."),
        ("f(x) = inner(norm(x)): the operator of GPT-2.", "f(x) = inner(norm(x))", "The operator of GPT-2."),
        ("A class whose size = 3 matters.", "", "A class whose size = 3 matters."),
        ("Solves dx/dz = f(z, x), up to the end.", "", "Solves dx/dz = f(z, x), up to the end."),
    ],
)
def test_formulas_at_the_beginning_of_docstrings_are_found(docstring, formula, rest):
    assert split_formula(docstring) == (formula, rest)


def test_formulas_are_typeset_without_a_script():
    text = typeset("m <- b1 m ,   <p, g> <= sqrt(v (1 + eps))")
    assert text.count("<math") == 2 and "⟨" in text and "≤" in text and "<msqrt><mrow>" in text
    assert "<msub><mi>b</mi><mn>1</mn></msub>" in text and "script>" not in text


def words(svg: str) -> list[str]:
    """Titles and names in legends: what a figure is about, without its numbers."""
    return re.findall(r'<text class="title"[^>]*>([^<]*)</text>|<title>([^<]*)</title>', svg)


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_tutorials_run_and_draw_what_they_show(tutorial, tmp_path, unchecked):
    shown = run_page(tutorial, tmp_path)
    assert shown, "a tutorial shows a figure"
    for figure in shown:
        made, kept = ((folder / figure).read_text() for folder in (tmp_path, DOCS / "figures"))
        assert words(made) == words(kept), f"make figures: docs/figures/{figure} is not what the page draws"


PAGE = (DOCS / "mistakes.md").read_text(encoding="utf-8")
SETUP = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
MISTAKES = re.findall(r"^### (.*?)\n.*?```python\n(.*?)```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("code", "message"), [each[1:] for each in MISTAKES], ids=[each[0] for each in MISTAKES])
def test_mistakes_are_answered_as_the_page_says(code, message, unchecked):
    names = {}
    exec(SETUP, names)
    with warnings.catch_warnings(), pytest.raises(Exception) as caught:
        warnings.simplefilter("error")
        exec(code, names)
    assert f"{caught.type.__name__}: {caught.value}" == message


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no program named chromium: make browser")
def test_the_site_is_built_and_opens_from_disk_without_a_request(tmp_path, staged):
    zensical = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if zensical is None:
        pytest.skip("zensical is not installed: make docs")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(staged, tmp_path / "build" / "pages")
    built = subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page, asked = browser.new_page(viewport={"width": 390, "height": 800}), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "build" / "site" / "mathematics.html").as_uri())
        assert page.locator("math").count() > 20 and page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("Control+k")
        search = page.get_by_placeholder("Search")
        search.wait_for(state="visible")
        search.press_sequentially("pontryagin", delay=30)
        page.get_by_text("PontryaginReport").first.wait_for(state="visible")  # the search runs in a frame from disk
        assert search.input_value() == "pontryagin"
        assert asked and all(url.startswith(("file:", "data:")) for url in asked)
        browser.close()
