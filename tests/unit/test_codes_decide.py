"""Codes decide, sentences only tell: no code of the agent or of an exporter looks into a text that is meant for people.

A sentence may be reworded at any time, also by somebody who does not know who reads it.  What a program needs to know of it
stands beside it: ``Report.conclusive``, ``severity``, ``share``, and the ``code`` of a reason (``probes.reading.Code``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.reading import Code

ROOT = Path(__file__).parents[2]
FILES = sorted(path for package in ("agent", "exporters") for path in (ROOT / package).rglob("*.py"))

#: Fields, and keys of the JSON form, that hold sentences.
TEXTS = {
    "because", "remedy", "verdict", "title", "summary", "text", "output", "meaning", "disproof", "cost", "will_not_help",
}  # fmt: skip
#: Variables of these names hold a sentence wherever they come from; others when a sentence is put into them.
NAMES = {"because", "remedy", "verdict"}
LOOKS = {
    "startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition", "removeprefix", "removesuffix",
    "fullmatch", "match", "search", "findall", "finditer", "fnmatch", "fnmatchcase",
}  # fmt: skip
#: What ``verdict`` is where it is the state of a rule: a code.
CODES = {"present", "absent", "unknown"}
INSTEAD = (
    "decide by a code: report.conclusive, finding.severity or .share, and of a reason its .code (probes.reading.Code); "
    "where there is none for it, let whoever writes the sentence give one"
)


class Looks(ast.NodeVisitor):
    """Where a sentence is looked into, in one function or module after the other."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._names = set(NAMES)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._names = self._names, set(NAMES)
        for each in ast.walk(node):
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.NamedExpr) and each.value and self.is_text(each.value):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                self._names |= {name.id for name in targets if isinstance(name, ast.Name)}
        self.generic_visit(node)
        self._names = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's own name

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            looked = [node.func.value, *node.args]
            self._note(node, any(self.is_text(each) for each in looked))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        kinds = ast.Eq | ast.NotEq | ast.In | ast.NotIn
        coded = any(isinstance(side, ast.Constant) and side.value in CODES for side in sides)
        is_state = coded and any(isinstance(side, ast.Attribute) and side.attr == "verdict" for side in sides)
        compared = any(isinstance(operator, kinds) for operator in node.ops) and not is_state
        self._note(node, compared and any(self.is_text(side) for side in sides))
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        self._note(node, self.is_text(node.subject))
        self.generic_visit(node)

    def _note(self, node: ast.expr | ast.stmt, looks: bool) -> None:
        if looks:
            self.found.append((node.lineno, ast.unparse(node).partition("\n")[0]))

    def is_text(self, node: ast.expr) -> bool:
        """Whether this is a sentence, or something made of one."""
        match node:
            case ast.Name(id=name):
                return name in self._names
            case ast.Attribute(attr=name):
                return name in TEXTS
            case ast.Subscript(value=mapping) | ast.Call(func=ast.Attribute(attr="get", value=mapping)) if (
                "unseen" in _named(mapping)
            ):
                return True
            case (
                ast.Subscript(slice=ast.Constant(value=str(key)))
                | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_])
            ):
                return key in TEXTS
            case (
                ast.Call(func=ast.Attribute(attr="lower" | "upper" | "strip" | "split" | "casefold", value=value))
                | ast.Call(func=ast.Name(id="str"), args=[value])
            ):
                return self.is_text(value)
            case ast.BoolOp(values=values):
                return any(map(self.is_text, values))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_text(body) or self.is_text(orelse)
        return False


def _named(node: ast.expr) -> set[str]:
    """The attributes and variables in an expression."""
    nodes = list(ast.walk(node))
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


def looks_into_texts(code: str) -> Iterator[str]:
    visitor = Looks()
    visitor.visit(ast.parse(code))
    for line, source in visitor.found:
        yield f"{line}: {source}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_code_looks_into_a_sentence(path: Path) -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for each in looks_into_texts(path.read_text())]
    assert not found, "\n".join([*found, INSTEAD])


@pytest.mark.parametrize(
    "code",
    [
        'report["verdict"].startswith("Cannot tell")',
        "LATE in slot.because",
        'finding.title == "A CPU limit"',
        "because in KNOWN",
        're.search("no limit", absent.because)',
        "_PATTERN.match(check.output)",
        'reading.unseen["memory"] == "no limit"',
        'def judge(latest):\n    why = (latest.unseen if latest else {}).get("memory", "")\n    return why.startswith("no limit")',
        'def judge(found):\n    if (said := found.remedy or ""):\n        return "wait" in said.lower()',
        'async def show(answer):\n    match answer.get("summary"):\n        case "x": pass',
    ],
)  # fmt: skip
def test_such_a_look_is_found(code: str) -> None:
    assert list(looks_into_texts(code))


@pytest.mark.parametrize(
    "code",
    [
        'report["conclusive"]',
        "reason.code is Code.ABSENT",
        'state.verdict != "present"',
        '"checked_out" in reading.unseen',
        "Unknown(missing.because or also)",
        'def parse(text):\n    return text.startswith("http://")',
    ],
)
def test_what_decides_by_a_code_is_none(code: str) -> None:
    assert not list(looks_into_texts(code))


# ---- every reason has a code


def test_every_code_is_documented() -> None:
    page = (ROOT / "docs" / "health-contract.md").read_text()
    assert not [code for code in Code if f"| `{code}` |" not in page], "add it to the table in docs/health-contract.md"


def without_a_code(code: str) -> Iterator[str]:
    """Reasons that nobody can decide by.  A ``NoData`` of a variable has the code that its ``Unseen`` brings."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        if starred or any(keyword.arg == "code" for keyword in node.keywords):
            continue
        literal = bool(node.args) and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
        name, most = node.func.id, len(node.args)
        if (
            (name, most < 3) == ("Unknown", True)
            or (name, most < 4) == ("CannotSee", True)
            or (name == "NoData" and literal)
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("package", ["agent", "probes", "exporters"])
def test_every_reason_has_a_code(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for each in without_a_code(path.read_text())
    ]
    assert not found, "\n".join([*found, "say which of probes.reading.Code it is: code=Code..."])


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('Unknown("too dark", "light a candle")', True),
        ('Unknown("too dark", "light a candle", Code.NOT_YET)', False),
        ("Unknown(*history.why_missing(kind, 60.0))", False),
        ('CannotSee("a pause", because, "")', True),
        ('raise NoData(f"no process {pid}")', True),
        ('raise NoData("nobody", code=Code.UNREACHABLE)', False),
        ("raise NoData(places.unseen[controller], _REMEDY)", False),
    ],
)
def test_a_reason_without_a_code_is_found(code: str, found: bool) -> None:
    assert bool(list(without_a_code(code))) is found
