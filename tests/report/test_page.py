"""The page: whole, valid, escaped, made from run folders alone, and honest about what it cannot read."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from continua.cli.main import main
from continua.report import (
    Page,
    figure_html,
    format_duration,
    format_number,
    mathml,
    pareto_front,
    report_page,
    write_report,
)
from continua.runs import Curve, Passage, Run, Section, Table, read_records, to_plain
from run_folders import written_run

VOID = {"meta", "br", "input", "img", "link", "hr", "mspace"}


class Balance(HTMLParser):
    """Every tag that is opened is closed in its order; names of ids are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        self.ids += [held["id"]] if "id" in held else []
        self.links += [held["href"]] if tag == "a" else []
        self.loads += [f"{tag} {key}={held[key]}" for key in ("src", "srcset", "data") if key in held]
        self.loads += [f"link {held.get('href')}"] if tag == "link" else []
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs): ...

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(tag)


def balanced(text: str) -> Balance:
    parser = Balance()
    parser.feed(text)
    assert parser.faults == [] and parser.stack == []
    return parser


@pytest.fixture
def run(tmp_path: Path):
    return written_run(tmp_path / "first")


def test_the_page_is_whole_and_asks_for_nothing(run):
    text = write_report([run.folder]).read_text(encoding="utf-8")
    parsed = balanced(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {link.removeprefix("#") for link in parsed.links} == set(parsed.ids)  # contents, and nothing outside
    assert parsed.loads == []
    assert "default-src 'none'" in text and not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)


def test_known_headings_come_in_their_order_and_once(run):
    text = report_page([run.folder]).html()
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    wanted = ["Results", "Training", "Anytime depth", "Attention", "Other samplings", "A &lt;claim&gt; &amp; more"]
    assert headings == [*wanted, "Papers", "How it was run"]
    assert text.count("<h3>continuous</h3>") == text.count("<h3>standard</h3>") == 1


def test_models_come_in_the_order_of_the_run_under_every_heading(tmp_path):
    """Whatever their names, and although a model may have fewer sections than another, and so other file names."""
    order = ("continuous", "textbook", "layers")
    run = written_run(tmp_path / "run", learners=order)
    for place, learner in zip((4, 3, 3), order, strict=True):
        run.keep_section(f"{place:02d}-depth-{learner}", Section("Depth", ("Prose.",), source=learner))
    sections = report_page([run.folder]).sections
    for heading in ("Depth", "Attention"):
        assert tuple(each.source for each in sections if each.heading == heading) == order


def test_what_users_name_is_escaped_everywhere(tmp_path):
    evil = "</script><script>alert(1)</script>"
    run = written_run(tmp_path / "run", learners=(evil,))
    text = report_page([run.folder]).html()
    balanced(text)
    assert evil not in text and "\\u003c/script\\u003e" in text and "&lt;/script&gt;" in text


def test_runs_are_compared_on_common_axes(run, tmp_path):
    other = written_run(tmp_path / "second", seed=1, learners=("continuous",))
    page = report_page([run.folder, other.folder])
    training = next(section for section in page.sections if section.heading == "Training")
    names = [series.name for series in training.figures[0].curves]
    assert names == [f"{who}, {what}" for who in ("first · continuous", "first · standard", "second")
                     for what in ("training", "validation")]  # fmt: skip
    assert len({series.colour for series in training.figures[0].curves}) == 3
    balanced(page.html())


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [written_run(tmp_path / place / "run", learners=("continuous",)) for place in ("a", "b")]
    assert report_page([run.folder for run in runs]).title == "a/run and b/run"


def test_the_title_says_which_data_and_how_many(tmp_path):
    run = written_run(tmp_path / "run", learners=("continuous",))
    assert report_page([run.folder]).title == "mnist1d"
    run.note(task={"training examples": 4000, "test examples": 1000})
    page = report_page([run.folder])
    assert page.title == "mnist1d: 4,000 examples to train, 1,000 to test" and "continuous" in page.subtitle
    config, facts = {"task": "text", "text": "/a/b/plays.txt"}, {"task": {"test examples": 7, "characters": 90_000}}
    text = Run.begin(tmp_path / "text", "train", config, facts)
    assert report_page([text.folder]).title == "text plays.txt: 90,000 characters"


def test_options_in_which_runs_differ_stand_beside_each_other(tmp_path):
    options = (
        {"task": "waves", "steps": 4, "compare": [], "output": "a"},
        {"task": "waves", "steps": 8, "output": "b"},
    )
    runs = [Run.begin(tmp_path / name, "train", each) for name, each in zip("ab", options, strict=True)]
    (section,) = (s for s in report_page([run.folder for run in runs]).sections if s.heading == "Results")
    assert section.figures[0].columns == ("option", "a", "b")
    assert section.figures[0].rows == (("steps", "4", "8"), ("compare", "none", "not given"))
    assert report_page([runs[0].folder]).sections == []


def test_cells_of_a_shaded_table_are_coloured_by_their_share_of_the_row():
    rows = (("cat", 6, 2, 0.75), ("dog", None, 4, 1.0))
    text = figure_html(Table(title="t", columns=("label", "cat", "dog", "right"), rows=rows, shaded=True))
    assert re.findall(r"<td(?: style=\"background: ([^\"]*)\")?>([^<]*)</td>", text) == [
        ("color-mix(in srgb, var(--good) 62%, transparent)", "6"),
        ("color-mix(in srgb, var(--accent) 26%, transparent)", "2"),
        ("", "0.7500"),
        ("", ""),
        ("color-mix(in srgb, var(--good) 80%, transparent)", "4"),
        ("", "1"),
    ]


def test_a_passage_colours_what_was_unlikely_and_escapes_it():
    passage = Passage(title="t", pieces=("a", "<", "c"), values=np.array([np.nan, 0.5, 1.0]))
    assert '<b>a</b><span style="background: color-mix(in srgb, var(--c1) 35%, transparent)">&lt;</span>c</pre>' in (
        figure_html(passage)
    )


def test_one_large_loss_does_not_flatten_the_others(tmp_path):
    run = Run.begin(tmp_path / "run", "train", {"task": "waves"})
    steps = {"1": {"loss": 40.0}, "2": {"loss": 0.4}, "4": {"loss": 0.3}, "8": {"loss": 0.31}}
    resolutions = {f"{n} steps": {"evaluations": float(n), "loss": row["loss"]} for n, row in steps.items()}
    run.record("test", model="ours", depth_steps=steps, resolutions=resolutions)
    (section,) = (s for s in report_page([run.folder]).sections if s.heading == "Anytime depth")
    by_steps, by_cost, _ = section.figures
    assert by_steps.y.log and by_cost.y.log
    assert "Hollow" not in by_cost.caption  # no nodes where the model has none


def test_the_loss_stands_against_evaluations_and_milliseconds(tmp_path):
    rows = {"8 steps": (8, 2.0, 0.3), "1 step": (1, 0.3, 0.9), "2 steps": (2, 0.6, 0.95), "rtol 0.01": (33, 7.0, 0.2),
            "rtol 0.001": (70, 9.0, 0.2), "12 head nodes": (2, 0.7, 0.4), "half missing": (2, 0.2, 0.1)}  # fmt: skip
    named = {name: dict(zip(("evaluations", "milliseconds", "loss"), row, strict=True)) for name, row in rows.items()}
    samplings = {"as trained": {"loss": 0.9}, "half missing": {"loss": 0.1}}
    run = Run.begin(tmp_path / "run", "train", {"task": "waves"})
    run.record("test", model="ours", samplings=samplings, depth_steps={"2": {"loss": 0.9}}, resolutions=named)
    (section,) = (s for s in report_page([run.folder]).sections if s.heading == "Anytime depth")
    _, by_evaluations, by_time, table = section.figures
    for figure, place in ((by_evaluations, 0), (by_time, 1)):
        steps, others = figure.curves
        assert figure.x.log and (steps.mark, others.mark) == ("both", "hollow") and steps.colour == others.colour
        assert steps.labels == ("1", "2", "8") and steps.x.tolist() == [
            rows[n][place] for n in ("1 step", "2 steps", "8 steps")
        ]
        assert others.labels == ("rtol 0.01", "rtol 0.001", "12 head nodes", "half missing")
        assert others.y.tolist() == [0.2, 0.2, 0.4, 0.1]
        assert "Hollow points: other tolerances, head nodes, samplings." in figure.caption
    assert by_time.x.label == "milliseconds per sequence" and "median" in by_time.measured
    # two steps take longer than one at more loss, the tighter tolerance gains nothing; other samples are no choice
    stars = [row[0].removesuffix(" *") for row in table.rows if row[0].endswith(" *")]
    assert stars == ["8 steps", "1 step", "rtol 0.01", "12 head nodes"] and "no other is faster" in table.caption
    assert pareto_front({"resolutions": {"1 step": {"milliseconds": 1.0, "loss": None}}}) == []


def test_training_losses_are_the_means_of_groups_of_updates(run):
    rows = [row["loss"] for row in run.records()
            if row["kind"] == "update" and row["model"] == "standard"]  # fmt: skip
    training = next(section for section in report_page([run.folder]).sections if section.heading == "Training")
    series = next(series for series in training.figures[0].curves if series.name == "standard, training")
    assert len(series.x) == 100 and series.y[0] == pytest.approx(sum(rows[:3]) / 3)
    assert series.low[0] <= series.y[0] <= series.high[0]


def test_training_losses_are_shown_without_running_costs_as_validation_reads_them(tmp_path):
    run = Run.begin(tmp_path / "run", "train", {"task": "waves"})
    for update in (1, 2, 3):
        run.record("update", update=update, model="ours", total=5.0, loss=float(update), running={"energy": 2.0})
    (training,) = (section for section in report_page([run.folder]).sections if section.heading == "Training")
    assert training.figures[0].curves[0].y.tolist() == [1.0, 2.0, 3.0]


def test_time_is_that_of_the_learners_own_updates(run):
    training = next(section for section in report_page([run.folder]).sections if section.heading == "Training")
    series = next(s for s in training.figures[1].curves if s.name == "standard, validation")
    assert series.x.tolist() == pytest.approx(
        [12.0, 24.0, 36.0, 48.0, 60.0]
    )  # 0.2 s an update, every 60th is evaluated


def test_training_time_has_one_meaning_on_the_tile_in_the_table_and_on_the_axis(run):
    """300 updates of 0.2 s; the clock, which counts the turns of the other learner too, says 120 s."""
    page = report_page([run.folder])
    assert ("1 min 0 s", "training time, 300 updates of continuous") in page.cards
    results, training = (next(s for s in page.sections if s.heading == name) for name in ("Results", "Training"))
    assert results.figures[0].rows[-1] == ("training time", "1 min 0 s", "1 min 0 s")
    assert training.figures[1].x.label == "training time in seconds"
    assert training.figures[1].curves[0].x[-1] == pytest.approx(60.0, abs=1.0)
    assert page.html().count("Training time is that of a model&#x27;s own updates") == 1


def test_validation_on_the_test_samples_is_said_where_it_is_shown(run, tmp_path):
    def said(*folders: Path) -> dict[str, list[str]]:
        sections = {s.heading: s for s in report_page(folders).sections}
        accuracy = next(f for f in sections["Training"].figures if f.title == "Validation accuracy")
        prose = {name: [t for t in sections[name].prose if "Validation" in t] for name in ("Results", "Training")}
        return {**prose, "measured": [accuracy.measured]}

    assert said(run.folder) == {"Results": [], "Training": [], "measured": ["all of the validation split"]}
    run.note(task={"test examples": 1000, "validation": "the test examples"})
    told = ["Validation reads the test examples: this task keeps none apart for it. Training chooses nothing by them."]
    assert said(run.folder) == {"Results": told, "Training": told, "measured": ["all of the test examples"]}
    other = written_run(tmp_path / "second", learners=("continuous",))
    both = said(run.folder, other.folder)
    assert both["Results"][0].startswith("Validation of first · continuous, first · standard reads the test examples")
    assert both["measured"] == ["all of the test examples; all of the validation split"]


def test_a_run_without_records_still_has_a_page(tmp_path):
    run = written_run(tmp_path / "run")
    (run.folder / "records.jsonl").unlink()
    assert report_page([run.folder]).sections[0].heading == "Attention"


def test_the_command_prints_the_path_and_writes_where_it_is_told(run, tmp_path, capsys):
    assert main(["report", str(run.folder)]) == 0
    assert capsys.readouterr().out.strip() == str(run.folder / "report.html")
    assert main(["report", str(run.folder), "--output", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_bytes() == (run.folder / "report.html").read_bytes()


def test_mistakes_are_told_with_their_cure(run, tmp_path, capsys):
    def told(*words: str) -> str:
        assert main(["report", *words]) == 2
        return capsys.readouterr().err

    assert "no manifest.json" in told(str(tmp_path))
    assert "this is a folder" in told(str(run.folder), "--output", str(tmp_path))
    with (run.folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "update", "loss"\n{"kind": "update"}\n')
    assert main(["report", str(run.folder)]) == 0
    assert "1 of " in (message := capsys.readouterr().err) and "rows are damaged and passed over" in message


def test_a_half_written_last_row_is_passed_over(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"kind": "begin"}\n{"kind": "upd')
    assert read_records(tmp_path / "records.jsonl") == [{"kind": "begin"}]


@pytest.mark.parametrize(
    ("value", "text"),
    [(59010, "59,010"), (0.76543, "0.7654"), (9351.2, "9,351"), (1.3e-7, "1.30·10⁻⁷"), (-2.5, "−2.500"),
     (8.0, "8"), (0.0, "0"), (None, ""), (float("nan"), ""), (True, "yes"), ("word", "word"), (3.2e8, "3.20·10⁸")],
)  # fmt: skip
def test_numbers_have_sensible_digits(value, text):
    assert format_number(value) == text


def test_times_are_said_in_the_unit_that_fits():
    assert [format_duration(x) for x in (3.21, 24.2, 98.0, 7300.0)] == ["3.2 s", "24 s", "1 min 38 s", "2 h 1 min"]
    assert [format_duration(x) for x in (59.4, 59.99, 3599.8)] == ["59 s", "1 min 0 s", "1 h 0 min"]


@pytest.mark.parametrize(
    ("formula", "typeset"),
    [
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("frac{1}{n}", "<mfrac><mrow><mn>1</mn></mrow><mrow><mi>n</mi></mrow></mfrac>"),
        ("sum_j w_j", '<munder><mo movablelimits="false">∑</mo><mi>j</mi></munder><msub><mi>w</mi><mi>j</mi></msub>'),
        ("e^{beta x}", "<msup><mi>e</mi><mrow><mi>β</mi><mi>x</mi></mrow></msup>"),
        ("a < b", "<mi>a</mi><mo>&lt;</mo><mi>b</mi>"),
    ],
)
def test_formulas_are_typeset(formula, typeset):
    assert typeset in mathml(formula)
    balanced(mathml(formula))


@pytest.mark.parametrize("formula", ["", "{", "x_", "}", "frac{1}", '"open', "a^{b_{c"])
def test_unfinished_formulas_do_no_harm(formula):
    balanced(mathml(formula))


def test_columns_of_words_are_set_as_words_and_empty_ones_as_numbers():
    table = Table(
        title="t", columns=("", "counts", "none", "words"), rows=(("a", 3, None, "x"), ("b", None, None, None))
    )
    heads = re.findall(r'<th scope="col"([^>]*)>', figure_html(table))
    assert heads == ["", "", "", ' class="word"']


def test_headings_of_one_word_have_anchors_of_their_own():
    page = Page("t", "s", [Section("Ω"), Section("Ψ"), Section("a b"), Section("a-b")])
    assert len(set(balanced(page.html()).ids)) == 4


def test_the_script_gets_no_numbers_that_json_has_no_word_for():
    assert to_plain(Curve.of("a", [0.0], [float("inf")]))["y"]["values"] == [None]
