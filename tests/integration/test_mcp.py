"""The tools for assistants as an assistant calls them: the SDK's own client, over standard input and output."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from agent.commands.mcp import MOST_BYTES
from tests.integration.conftest import ROOT, RunningAgent

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="an installation without the extra mcp")

PATIENCE = 120.0


def test_an_assistant_finds_three_read_only_tools_and_their_answers(agent: RunningAgent) -> None:
    from mcp import Client, StdioServerParameters  # noqa: PLC0415 - after the check that it is there
    from mcp.types import TextContent  # noqa: PLC0415 - same

    words = ["-m", "stallscope", "mcp", f"http://{agent.host}:{agent.port}/health"]
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    place = StdioServerParameters(command=sys.executable, args=words, env=environ, cwd=ROOT)

    async def work() -> None:
        async with asyncio.timeout(PATIENCE), Client(place) as client:

            async def told(tool: str, **arguments: object) -> tuple[bool, str]:
                result = await client.call_tool(tool, arguments)
                (part,) = result.content
                assert isinstance(part, TextContent)
                assert result.structured_content is None
                assert len(part.text.encode()) <= MOST_BYTES
                return bool(result.is_error), part.text

            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert tools.keys() == {"get_verdict", "explain_rule", "list_cannot_see"}
            for tool in tools.values():
                assert tool.annotations is not None
                assert tool.annotations.read_only_hint
                assert tool.description
            failed, verdict = await told("get_verdict")
            assert not failed
            assert "(status " in verdict.splitlines()[0]
            assert (await told("explain_rule", id="cpu_quota_throttled"))[1].startswith("cpu_quota_throttled: ")
            failed, hidden = await told("list_cannot_see")
            assert not failed
            assert hidden
            failed, why = await told("get_verdict", agent="127.0.0.1:1")
            assert failed
            assert "measure_seconds" in why
            assert (await told("explain_rule", id="nonsense"))[0]
            failed, measured = await told("get_verdict", measure_seconds=3)
            assert not failed, measured
            assert "(status " in measured.splitlines()[0]

    asyncio.run(work())


def test_without_the_sdk_one_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['mcp'] = None; from agent.commands.cli import main; sys.exit(main(['mcp']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "stallscope: mcp needs a package more: pip install 'stallscope[mcp]'\n"
