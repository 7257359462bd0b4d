"""The page in a real browser: by eye, by keyboard, by ear, on a narrow screen, in the dark, without scripts, and as a file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.report import to_json
from agent.snapshot import State
from exporters import listen, server
from exporters.page import render
from tests.integration.conftest import RunningAgent, eventually
from tests.lab.chromium import Chromium, Tab
from tests.unit.exporters.app import App
from tests.unit.golden import fixed, hour

NARROW = 400
TAB, ENTER = ("Tab", 9), ("Enter", 13, "\r")
#: What is read, without what a script adds.
TEXT = "['.opening', '.hour', '.details', 'footer'].map(e => document.querySelector(e).textContent).join()"


@pytest.fixture(scope="module")
def state() -> State:
    return hour.state()


@contextmanager
def _serving(state: State) -> Iterator[str]:
    """The real server of these pages in a thread; its address."""
    sock = listen.bind("127.0.0.1", 0)
    host, port = sock.getsockname()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        prepared, ended = server.Server(App(state).asgi, 32), asyncio.Event()
        running.set_result((asyncio.get_running_loop(), ended))
        await prepared.serve([sock], ended)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, ended = running.result(10)
    yield f"http://{host}:{port}/"
    loop.call_soon_threadsafe(ended.set)
    thread.join(10)


@pytest.fixture(scope="module")
def address(state: State) -> Iterator[str]:
    """The page of a report in which there is something of everything."""
    with _serving(state) as found:
        yield found


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_real_agents_page_needs_nobody_else_and_breaks_no_rule(
    agent: RunningAgent, browser: Chromium, scripts: bool
) -> None:
    base = f"http://{agent.host}:{agent.port}"
    tab = Tab(browser, scripts=scripts).open(f"{base}/")
    assert tab.complaints() == []
    assert {url for url in tab.asked_for() if not url.startswith(f"{base}/")} <= {"data:,"}
    assert tab.value("getComputedStyle(document.querySelector('.badge')).fontWeight") == "700"  # the style was taken


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, 1000])
def test_it_is_never_wider_than_the_screen_and_axe_finds_nothing(
    browser: Chromium, address: str, width: int, dark: bool
) -> None:
    tab = Tab(browser, width=width, dark=dark).open(address)
    tab.value("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.violations() == []


def test_dark_is_dark(browser: Chromium, address: str) -> None:
    asked = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.area')).fill].join('; ')"
    light, dark = (Tab(browser, dark=dark).open(address).value(asked).split("; ") for dark in (False, True))
    assert light[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_without_scripts_it_says_the_same(browser: Chromium, address: str) -> None:
    with_, without = (Tab(browser, scripts=scripts).open(address) for scripts in (True, False))
    assert without.value(TEXT) == with_.value(TEXT)
    assert with_.value("document.querySelector('button[data-copy]').hidden") is False
    assert without.value("document.querySelector('button[data-copy]').hidden") is True  # it could not do anything
    assert "Renew" in without.value("document.querySelector('noscript').innerText")
    assert without.value("getComputedStyle(document.querySelector('.code code')).userSelect") == "all"


def test_the_keyboard_reaches_the_copy_button_and_what_is_folded(browser: Chromium, address: str) -> None:
    tab = Tab(browser).open(address)
    seen = []
    for _ in range(30):
        tab.press(*TAB)
        seen.append(tab.value("document.activeElement.dataset.copy || document.activeElement.tagName"))
    assert seen.index("change-1") < seen.index("SUMMARY")
    tab.value("document.querySelector('.details summary').focus()")
    tab.press(*ENTER)
    assert tab.value("document.querySelector('.details details').open") is True
    tab.value("document.querySelector('[data-copy=change-1]').focus()")
    tab.press(*ENTER)
    eventually(lambda: tab.value("document.getElementById('news').textContent"), what="that it was copied or selected")


def test_it_renews_itself_in_place_and_keeps_what_is_open(browser: Chromium) -> None:
    """By its own script, from the server; nothing of it is a script of the page that it fetches."""
    own = State(fixed.snapshot(fixed.healthy()), child_alive=True)
    with _serving(own) as base:
        tab = Tab(browser).open(base)
        tab.value(
            "document.getElementById('ruled_out').open = true; document.querySelector('#ruled_out summary').focus()"
        )
        tab.value(
            "document.getElementById('renew').dataset.seconds = '0.1'; document.getElementById('renew').click(); document.getElementById('renew').click()"
        )
        own.snapshot = fixed.snapshot(fixed.failing(), version=2)
        eventually(
            lambda: "A CPU limit" in tab.value("document.querySelector('h1').textContent"), what="the new report"
        )
        assert tab.value("document.getElementById('ruled_out').open") is True
        assert tab.value("document.activeElement.parentElement.id") == "ruled_out"
        assert "FAILING" in tab.value("document.getElementById('news').textContent")
        assert tab.complaints() == []


def test_the_file_to_send_says_the_same_and_asks_for_nothing(
    browser: Chromium, address: str, state: State, tmp_path: Path
) -> None:
    assert state.snapshot is not None
    file = tmp_path / "report.html"
    file.write_bytes(render.file(to_json(state.snapshot.report), state.timeline.as_json()))
    tab = Tab(browser).open(file.as_uri())
    assert tab.complaints() == []
    assert [url for url in tab.asked_for() if url != "data:,"] == [file.as_uri()]
    assert tab.value("getComputedStyle(document.querySelector('.badge')).fontWeight") == "700"
    assert tab.value("document.querySelector('h1').textContent") == Tab(browser).open(address).value(
        "document.querySelector('h1').textContent"
    )
    assert tab.value("document.querySelector('button[data-copy]').hidden") is False
