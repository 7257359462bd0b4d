"""One short, attentive look without a server: ``stallscope doctor``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Mapping
from typing import Any, TextIO

from agent.app import Agent
from agent.report import to_json
from agent.settings.load import Config
from agent.settings.presets import for_doctor
from probes.reading import Code

#: With a look this long every probe has had its slots, those that are due once a minute too.
LONG_ENOUGH_SECONDS = 90.0


def too_short_for(report: Mapping[str, Any], seconds: float) -> list[str]:
    """What ``seconds`` were too short for: each reason, and the rules that stay unknown for it."""
    if seconds >= LONG_ENOUGH_SECONDS:
        return []
    waiting: dict[str, list[str]] = {}
    for each in report["unknown"]:
        if each["code"] == Code.NOT_YET:
            waiting.setdefault(each["because"], []).append(each["rule"])
    return [
        f"not known after {seconds:g} s, --for {LONG_ENOUGH_SECONDS:g}s may tell: {', '.join(rules)}: {why}"
        for why, rules in waiting.items()
    ]


async def examine(config: Config, seconds: float, progress: TextIO) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure for ``seconds`` and return the JSON forms of report and timeline.  Raises OSError when no child can be started."""
    agent = Agent(for_doctor(config))
    await agent.start()
    gc.enable()
    task = asyncio.create_task(agent.run())
    try:
        await _wait(seconds, progress, task)
        return to_json(agent.publish()), agent.state.timeline.as_json()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await agent.aclose()


async def _wait(seconds: float, progress: TextIO, task: asyncio.Task[None]) -> None:
    """Let time pass and show it: one moving line on a terminal, a word every ten seconds elsewhere."""
    start, terminal, said = time.monotonic(), progress.isatty(), -1
    while (passed := time.monotonic() - start) < seconds and not task.done():
        if terminal:
            done = round(passed / seconds * 30)
            _show(progress, f"\rmeasuring {'█' * done}{'·' * (30 - done)} {passed:4.0f} of {seconds:.0f} s ")
        elif passed // 10 > said:
            said = int(passed // 10)
            _show(progress, f"measuring: {passed:.0f} of {seconds:.0f} s\n")
        await asyncio.sleep(min(0.5, seconds - passed))
    if terminal:
        _show(progress, "\r" + " " * 64 + "\r")
    if task.done():
        await task


def _show(progress: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # a report is worth having although nobody can watch it being made
        progress.write(text)
        progress.flush()
