"""Work after the response and the hook's own timer, as the Python hook tells them: what is none, and threads of one's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.hooks.python.conftest import Stage

LAST = {"type": "http.response.body", "body": b"whole"}


def after(stage: Stage, seconds: float = 2.0) -> dict[str, float]:
    """What a look says, so much later."""
    stage.clock.now += seconds
    while stage.told() is not None:
        pass
    stage.look()
    message = stage.told()
    found: dict[str, float] = (message or stage.hook._newest)["after_response"]
    return found


async def discard(_: object) -> None: ...


def test_a_background_task_is_told_once_it_has_outlived_a_look_with_all_its_time(stage: Stage) -> None:
    seen = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send(LAST)
        stage.clock.now += 1
        seen.extend([after(stage), after(stage), after(stage)])

    stage.clock.now += 1
    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, discard))
    assert [each["now"] for each in seen] == [0, 1, 1]
    assert [each["seconds"] for each in seen] == [0, 5, 7]
    assert after(stage) == {"now": 0, "pieces": 1, "seconds": 7}


def test_the_last_lines_of_a_handler_are_none_however_late_they_come(stage: Stage) -> None:
    """A platform may take the CPU away as soon as the response is out."""

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send(LAST)
        stage.clock.now += 40

    wrapped = stage.module.asgi(app)
    asyncio.run(wrapped({"type": "http"}, None, discard))
    assert after(stage) == {"now": 0, "pieces": 0, "seconds": 0}


@pytest.mark.parametrize("sent", [{"type": "http.response.body", "more_body": True}, {"type": "websocket.close"}, None])
def test_what_is_not_the_end_of_a_response_begins_nothing(stage: Stage, sent: object) -> None:
    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send(sent)
        assert not stage.hook.after.begun

    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, discard))


def test_a_wsgi_response_s_close_is_work_after_it(stage: Stage) -> None:
    class Body:
        def __iter__(self) -> Any:
            return iter([b"a"])

        def close(self) -> None:
            seen.extend([len(stage.hook.requests), after(stage)["now"], after(stage)["now"]])

    seen: list[float] = []
    stage.clock.now += 1
    stage.module.wsgi(lambda *_: Body())({}, None).close()
    assert seen == [0, 0, 1]
    assert after(stage)["now"] == 0


def test_threads_of_one_s_own_say_it_themselves_and_a_failing_one_ends(stage: Stage) -> None:
    stage.module.asgi(None)

    def work() -> None:
        with stage.module.after_response(), stage.module.after_response():
            after(stage)
            assert after(stage)["now"] == 2
            raise LookupError

    with pytest.raises(LookupError):
        work()
    assert after(stage)["now"] == 0
    assert after(stage)["pieces"] == 2


def test_without_the_hook_it_is_nothing(stage: Stage) -> None:
    stage.module._hook = None
    with stage.module.after_response():
        pass


def test_an_app_whose_requests_are_not_counted_is_not_said_to_have_none(stage: Stage) -> None:
    assert "after_response" not in stage.message()


def test_a_child_process_has_none_of_its_parent_s(stage: Stage) -> None:
    stage.module.asgi(None)
    stage.hook.after.begun["a"] = 0.0
    stage.hook.note(40.0)
    stage.hook.begin_child()
    assert after(stage)["now"] == 0
    assert stage.hook.late == 0


@pytest.mark.parametrize(("late", "told"), [(0.99, (0, 0)), (1.0, (1, 1)), (40.0, (1, 40))])
def test_a_look_that_came_a_second_late_is_told(stage: Stage, late: float, told: tuple[int, float]) -> None:
    stage.hook.note(late)
    timers = stage.message()["timers"]
    assert (timers["late"], timers["late_seconds"]) == told
