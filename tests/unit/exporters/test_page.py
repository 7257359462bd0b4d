"""The page: what it says of every report, and what it never holds, whoever gave a thing its name."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.report import Breakdown, Report, Suspect, to_json
from agent.snapshot import State
from agent.timeline import STEPS, Timeline
from exporters import page
from exporters.page import render
from exporters.page.markup import MOST_TEXT
from exporters.page.svg import area, nice
from tests.unit.exporters.app import App
from tests.unit.golden import fixed, hour

#: Of HTML and of SVG; whatever else begins like one must have come from outside.
TAGS = {
    "html", "head", "meta", "title", "link", "script", "style", "body", "header", "main", "section", "footer", "p", "b", "h1", "h2", "h3",
    "ul", "ol", "li", "dl", "dt", "dd", "a", "span", "strong", "div", "pre", "code", "button", "noscript", "figure", "figcaption", "details",
    "summary", "table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "desc", "path", "rect", "line", "text",
}  # fmt: skip
VOID = {"meta", "link", "path", "rect", "line"}
SHORT_OF_CPU = fixed.report("warn", "No cause was found, but work got the CPU only 80% of the time.")
WORTH_KNOWING = fixed.report("pass", "x", replace(fixed.finding(severity="info"), share=None, stalled_share=None))
BESIDE_LESS_CPU = replace(WORTH_KNOWING, status="warn")
REPORTS: dict[str, Report] = {
    "failing": fixed.failing(), "healthy": fixed.healthy(), "blind": fixed.blind(), "short of CPU": SHORT_OF_CPU,
    "info": WORTH_KNOWING, "info beside less CPU": BESIDE_LESS_CPU, "no suspects": fixed.report("warn", "x", fixed.finding(severity="warning"), suspects=()),
}  # fmt: skip
FORMS: dict[str, Callable[..., bytes]] = {"served": render.served, "file": render.file}

each_report = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


class Parsed(HTMLParser):
    """What a browser would make of it: elements, attributes and text; AssertionError where an element is not closed in order."""

    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(document.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def made(report: Report, timeline: Timeline | None = None, form: Callable[..., bytes] = render.served) -> Parsed:
    return Parsed(form(to_json(report), (timeline or hour.timeline(2)).as_json()))


# ---- what it says


@each_form
@each_report
def test_every_report_is_a_whole_document_with_one_headline(report: Report, form: Callable[..., bytes]) -> None:
    found = made(report, form=form)
    assert [attributes["lang"] for attributes in found.of("html")] == ["en"]
    assert len(found.of("h1")) == len(found.of("title")) - len(found.of("figure")) == len(found.of("main")) == 1
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("report", "badge", "headline"),
    [
        (fixed.failing(), "FAILING", "A CPU limit holds the work back"),
        (fixed.healthy(), "HEALTHY", "No cause found in what is looked at"),
        (fixed.blind(), "UNKNOWN", "Cannot tell yet"),
        (SHORT_OF_CPU, "WARNING", "CPU is missing, and no cause was found"),
        (WORTH_KNOWING, "HEALTHY", "A CPU limit holds the work back"),
        (BESIDE_LESS_CPU, "WARNING", "CPU is missing, and no cause was found"),
        (replace(WORTH_KNOWING, conclusive=False), "UNKNOWN", "Cannot tell yet"),
    ],
)
def test_the_first_line_is_the_cause_or_what_stands_in_its_place(report: Report, badge: str, headline: str) -> None:
    document = render.served(to_json(report), Timeline().as_json()).decode()
    assert re.search(r'class="badge">([^<]*)<', document)[1] == badge  # type: ignore[index]
    assert re.search(r"<h1>([^<]*)<", document)[1] == headline  # type: ignore[index]
    assert re.search(r"<title>([^<]*)<", document)[1].startswith(f"{badge}: {headline}")  # type: ignore[index]


def test_the_cause_comes_with_its_share_its_change_and_what_it_looks_like() -> None:
    found = made(fixed.failing())
    opening = found.text.partition("Details")[0]
    for text in (
        "95%", "Ready work was held by the quota 95% of the time.", "It looks like:", 'resources.limits.cpu: "1"',
        "kubectl set resources deployment a-name-that-is-long-but-must-not-be-wrapped-here --limits=cpu=1",
        "more CPU reserved or billed", "a slow database or network",
    ):  # fmt: skip
        assert text in opening
    copied = [attributes["data-copy"] for attributes in found.of("button") if "data-copy" in attributes]
    ids = {attributes.get("id") for attributes in found.of("code")}
    assert copied
    assert set(copied) <= ids


def test_what_nobody_can_press_without_a_script_is_not_shown() -> None:
    assert all("hidden" in attributes for attributes in made(fixed.failing()).of("button"))


@pytest.mark.parametrize(
    ("suspect", "said"),
    [
        (Suspect("CPU", "convicted", "95%"), ["Guilty", "95%"]),
        (Suspect("database", "cleared", "2.1 ms"), ["Cleared", "2.1 ms"]),
        (Suspect("network", "unknown", ""), ["Unknown", "cannot be judged"]),
        (Suspect("logs", "not looked at", "set logs.files"), ["Not looked at", "To look:", "set logs.files"]),
    ],
)
def test_each_suspect_is_convicted_cleared_with_a_number_unknown_or_not_looked_at(
    suspect: Suspect, said: list[str]
) -> None:
    text = made(fixed.report(suspects=(suspect,))).text
    assert all(each in text for each in (suspect.name, *said))


@each_report
def test_nothing_of_the_report_is_missing(report: Report) -> None:
    text = made(report).text
    for finding in report.findings:
        assert all(evidence.text[1:] in text for evidence in finding.evidence)
        assert finding.disproof in text
    for because in [
        each["because"] for name in ("ruled_out", "unknown", "cannot_see") for each in to_json(report)[name]
    ]:
        assert because in text


def test_further_causes_are_named_beside_the_first() -> None:
    others = [replace(fixed.finding(f"r{n}"), title=f"Cause {n}", stalled_share=0.1 * n) for n in range(6)]
    text = made(fixed.report("fail", "x", fixed.finding(), *others)).text
    assert re.search(r"Beside it:.*Cause 1 , 10%.*and 3 more", text)


# ---- the charts


def test_without_a_history_it_says_so() -> None:
    found = made(fixed.healthy(), Timeline())
    assert found.of("figure") == []
    assert "Nothing has been measured yet" in found.text


def test_each_chart_can_be_heard_and_read_as_a_table() -> None:
    found = made(fixed.failing(), hour.timeline())
    assert len(found.of("figure")) == 6
    charts = [attributes for attributes in found.of("svg") if attributes.get("role") == "img"]
    ids = {attributes["id"] for _, attributes in found.tags if "id" in attributes}
    for chart in charts:
        assert set((chart["aria-labelledby"] or "").split()) <= ids
    assert "CPU limit: 70% now, at most 70% at 11:20" in found.text
    assert found.text.count("The same as a table") == len(charts) == 6
    assert "The last hour" in found.text


def test_the_shortest_span_that_holds_all_is_shown() -> None:
    assert "The last 5 minutes" in made(fixed.failing(), hour.timeline(4)).text
    assert "The last 15 minutes" in made(fixed.failing(), hour.timeline(14)).text


def test_causes_that_began_are_marked_by_number() -> None:
    report = fixed.failing()
    found = made(report, hour.timeline())
    assert "began 40 min ago, over 32 min ago" in found.text
    marks = [attributes["x1"] for attributes in found.of("line") if attributes.get("class") == "mark"]
    assert len(marks) == 2 * 6
    assert [float((x or "").rstrip("%")) for x in marks[:2]] == pytest.approx([33.3, 75.0], abs=0.5)


numbers = st.lists(st.none() | st.floats(0, 1e9), min_size=1, max_size=60)


@given(numbers, st.floats(0.001, 1e6))
def test_an_area_stays_within_its_chart_and_covers_what_is_known(values: list[float | None], top: float) -> None:
    covered = [False] * len(values)
    x = 0
    for word, number in re.findall(r"([MhVZ])(\d*)", area(values, top)):
        if word == "M":
            x = int(number)
        elif word == "h":
            for at in range(x, x + int(number)):
                covered[at] = True
            x += int(number)
        elif word == "V":
            assert 0 <= int(number) <= 400
    assert covered == [value is not None for value in values]


@given(st.floats(1e-12, 1e12))
def test_the_scale_ends_at_a_round_number_that_is_not_far_above(most: float) -> None:
    assert most * (1 - 1e-6) <= nice(most) <= 2.6 * most


# ---- what it never does


@each_form
@each_report
def test_nothing_in_it_asks_anybody_else_or_runs(report: Report, form: Callable[..., bytes]) -> None:
    found = made(report, hour.timeline(), form)
    for tag, attributes in found.tags:
        assert tag in TAGS
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src"):
            target = attributes.get(name) or ""
            assert target in (
                "data:,",
                "page.css",
                "page.js",
                "?refresh",
                "./",
                "report.txt",
                "health",
                "timeline",
                "metrics",
                "",
            ) or target.startswith("#")
    assert [attributes.get("src") for attributes in found.of("script")] == (
        ["page.js"] if form is render.served else [None]
    )


def test_what_is_served_comes_with_a_strict_policy() -> None:
    answer = App(fixed.state()).get("/")
    assert answer.headers["content-security-policy"] == page.POLICY
    allowed = dict(each.strip().partition(" ")[::2] for each in page.POLICY.split(";"))
    assert (
        allowed["default-src"]
        == allowed["base-uri"]
        == allowed["form-action"]
        == allowed["frame-ancestors"]
        == "'none'"
    )
    assert allowed["script-src"] == allowed["style-src"] == "'self'"
    assert "unsafe" not in page.POLICY


def test_the_file_allows_by_their_hashes_what_it_holds_and_nothing_else() -> None:
    document = render.file(to_json(fixed.failing()), hour.timeline(2).as_json()).decode()
    (policy,) = (
        a["content"] for a in Parsed(document.encode()).of("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    for name in ("style", "script"):
        (held,) = re.findall(rf"<{name}>(.*?)</{name}>", document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in (policy or "")
    assert "default-src 'none'" in (policy or "")
    assert "unsafe" not in (policy or "")


def hostile(text: str) -> tuple[Report, Timeline]:
    """The text wherever one may come from outside."""
    finding = fixed.finding()
    finding = replace(
        finding, title=text, disproof=text, evidence=(replace(finding.evidence[0], text=text),), since=text, scope=text,  # type: ignore[arg-type]
        advice=replace(finding.advice, summary=text, changes=(text, text), cost=text, will_not_help=text), contributing=(text,),
    )  # fmt: skip
    parts = Breakdown(
        {"running": 0.5, f"suspended_{text}": 0.5},
        postgres={text: {"short": {"wall": 1.0, "network": 0.5, text: 0.5}}}, sessions={text: {text: 1.0}},
        logs={text: {"entries": 3.0, "bytes": 9.0, "backing": text}}, stalled={text: {text: 1.0}},
        memory={text: {"used_bytes": 1.0, "limit_bytes": 2.0}},
    )  # fmt: skip
    plain = fixed.report("fail", text, finding, replace(finding, rule=text, explained_by=finding.rule), breakdown=parts)
    report = replace(
        plain, suspects=(Suspect(text, "not looked at", text), Suspect("CPU", "cleared", text)), generated=text,
        ruled_out=tuple(replace(each, rule=text, because=text) for each in plain.ruled_out),
        unknown=tuple(replace(each, because=text, remedy=text) for each in plain.unknown),
        cannot_see=tuple(replace(each, what=text, because=text) for each in plain.cannot_see),
        platform={"environment": text, "cpus": 2}, agent=replace(plain.agent, version=text),
    )  # fmt: skip
    timeline = Timeline()
    for n in range(3):
        timeline.note(report, n * 15.0)
    return report, timeline


EVIL = [
    "</title><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onclick='alert(1)", "</style><style>*{display:none}",
    "<!--", "]]>", "&lt;b&gt;", "\x00\x1b[2J", "\u202egnp.exe", "\ud800", "javascript:alert(1)", "</svg><script>1</script>",
]  # fmt: skip


ANY = st.text(st.characters(categories=None), max_size=20)
#: With a sign of HTML's in it, as a word that the page knows, and draws in its colour, never has.
WITH_A_SIGN = st.tuples(ANY, st.sampled_from("<>&'\""), ANY).map("".join)


@each_form
@settings(max_examples=40)  # a page takes some ten milliseconds
@given(text=st.sampled_from(EVIL) | WITH_A_SIGN)
def test_a_name_from_outside_stays_a_text(form: Callable[..., bytes], text: str) -> None:
    report, timeline = hostile(text)
    document = form(to_json(report), timeline.as_json())
    found = Parsed(document)
    plain = Parsed(form(to_json(hostile("x")[0]), hostile("x")[1].as_json()))
    assert {tag for tag, _ in found.tags} <= TAGS
    assert [name for _, attributes in found.tags for name in attributes] == [
        name for _, attributes in plain.tags for name in attributes
    ]
    unseen = [c for c in document.decode() if not c.isprintable() and c != "\n"]
    assert unseen == []


def crowd(length: int) -> Report:
    name = "n" * length
    found = [
        replace(
            fixed.finding(f"rule_{n}_{name}"), title=f"{n} {name}",
            evidence=tuple(replace(each, text=f"{each.text} {name}") for each in fixed.finding().evidence),
        )
        for n in range(40)
    ]  # fmt: skip
    queues: dict[str, dict[str, float | str]] = {
        f"{name}{n}: {name}": {"entries": 1.0 * n, "bytes": 5.0, "backing": name} for n in range(200)
    }
    return fixed.report("fail", name, *found, breakdown=replace(fixed.failing().breakdown, logs=queues))


@each_form
@pytest.mark.parametrize("length", [1, 100, 1000, 20_000])
def test_it_is_never_larger_than_150_kb(form: Callable[..., bytes], length: int) -> None:
    timeline = hour.timeline()
    report = crowd(length)
    trips = {
        f"{n}{'d' * length}": {"short": dict.fromkeys(("network", "server", "suspended", "client", "unknown"), 0.0) | {"wall": 1.0}}
        for n in range(9)
    }  # fmt: skip
    for step in range(STEPS):
        for n, parts in enumerate(trips.values()):
            parts["short"] = {part: 1e-3 * (1 + (step * 7 + n + i) % 97) for i, part in enumerate(parts["short"])}
        now = replace(
            report,
            breakdown=replace(
                report.breakdown, postgres=trips, cpu={"running": 0.1, "suspended_quota": 0.01 * (step % 90)}
            ),
        )
        timeline.note(now, 9000.0 + step * 15)
    document = form(to_json(report), timeline.as_json())
    assert len(document) < render.MOST_BYTES
    assert "resources.limits.cpu: &quot;1&quot;" in document.decode()
    if length >= 1000:
        assert "/report.txt" in Parsed(document).text


def test_a_long_text_is_cut_and_a_line_to_copy_is_not() -> None:
    advice = replace(fixed.finding().advice, changes=("x" * 3999,), summary="s" * 5000)
    text = made(fixed.report("fail", "x", replace(fixed.finding(), advice=advice))).text
    assert "x" * 3999 in text
    assert "s" * MOST_TEXT not in text


# ---- how it is served


def test_an_agent_that_nobody_looks_at_does_not_load_it() -> None:
    code = (
        "import sys, exporters.pages, agent.commands.cli; "
        "assert not [name for name in sys.modules if name.startswith('exporters.page.')], sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_is_made_when_asked_for_and_once_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made_: list[object] = []

    def make(*given: object) -> bytes:
        made_.append(given)
        return b"x"

    monkeypatch.setattr(render, "served", make)
    app = App(fixed.state())
    assert made_ == []
    for _ in range(3):
        assert app.get("/").body == b"x"
    assert len(made_) == 1


def test_who_has_this_report_already_is_told_so_and_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(fixed.state())
    tag = app.get("/").headers["etag"]
    monkeypatch.setattr(render, "served", lambda *_: pytest.fail("not needed"))
    again = app.call("GET", "/", if_none_match=tag)
    assert (again.status, again.body) == (304, b"")
    monkeypatch.undo()
    app.state.snapshot = fixed.snapshot(fixed.healthy(), version=2)
    assert app.call("GET", "/", if_none_match=tag).status == 200
    assert App(fixed.state()).get("/").headers["etag"] != tag  # another process, which counts from one again


def test_it_renews_itself_without_a_script_only_when_asked_to() -> None:
    app = App(fixed.state())
    assert "refresh" not in app.get("/").headers
    assert app.get("/", b"refresh").headers["refresh"] == str(page.REFRESH_SECONDS)
    assert app.get("/", b"refresh").body == app.get("/").body


def test_the_guard_stands_before_it() -> None:
    assert App(fixed.state()).call("GET", "/", host="evil.example").status == 421


def test_the_timeline_is_there_for_programs() -> None:
    state = State(fixed.snapshot(), child_alive=True, timeline=hour.timeline(2))
    assert json.loads(App(state).get("/timeline").body) == state.timeline.as_json()


# ---- the colours


def colours(dark: bool) -> dict[str, str]:
    style = render.asset("style.css")
    light_part, dark_part = (part.partition("}")[0] for part in style.split(":root {")[1:3])
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light_part))
    return found | (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", dark_part)) if dark else {})


def contrast(one: str, other: str) -> float:
    """Of WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_areas_stand_out_enough(dark: bool) -> None:
    found = colours(dark)
    for ground in ("ground", "panel"):
        for text in ("text", "quiet", "link", "fail", "warn", "pass", "unknown"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for tone in ("fail", "warn", "pass", "unknown"):
        assert contrast(found["on-tone"], found[tone]) >= 4.5, tone
    for area_ in ("red", "violet", "teal", "ochre", "grey", "green", "blue"):
        assert contrast(found[area_], found["ground"]) >= 3, area_


# ---- of what may come over the network


def documents() -> Iterator[dict[str, Any]]:
    good = hour.timeline(2).as_json()
    yield good | {"step_seconds": 0}
    yield good | {"steps": 10**9}
    yield good | {"series": {"cpu": {"": {"quota": "abc"}}}}
    yield good | {"generated": 7}
    yield {"series": good["series"]}
    yield good | {"series": {"cpu": {"": {"quota": [float("nan"), float("inf"), "<b>", None, True, 1e400]}}}}
    yield good | {"findings": [{}]}


@pytest.mark.parametrize("timeline", [*documents()])
def test_a_timeline_that_is_none_ends_in_a_page_or_a_fault_that_is_caught(timeline: dict[str, Any]) -> None:
    with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        Parsed(render.file(to_json(fixed.failing()), timeline))
