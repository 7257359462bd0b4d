"""What is registered: that it is whole, that it has a name in the settings, and that planning touches nothing."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from pathlib import Path

import pytest

import probes
from agent.settings.load import Config, predicted_cpu_ratio
from probes import READINGS, REGISTERED, planned
from probes.hooks.message import Message
from probes.hooks.probe import REGISTRATION, HooksProbe
from probes.reading import R, Reading
from probes.registration import Context, Question, Registration, cpu_ratio, load
from probes.section import Section
from probes.sockets.connections import ConnectionsReading
from tests.unit.fake_kernel import FakeKernel

#: Settings with which every registered probe is wanted at least once.
EVERYTHING = Config.model_validate({
    "app": {"process": "web"},
    "requests": {"metrics_url": "http://127.0.0.1/metrics"},
    "pool": {"metrics_url": "http://127.0.0.1/metrics"},
    "postgres": {"targets": {"main": "env:URL"}},
    "redis": {"targets": {"cache": "env:URL"}},
    "logs": {"files": {"app": "/var/log/app"}, "metrics_urls": {"vector": "http://127.0.0.1/metrics"}},
    "log_delivery": {"canary_log": "canary", "leader": "always"},
    "names": {"watched": ["db.example.com"]},
})  # fmt: skip


def all_of(base: type[Reading]) -> set[type[Reading]]:
    """Every reading type; slots make of each class two of one name."""
    return {
        each
        for child in base.__subclasses__()
        for each in (child, *all_of(child))
        if each.__module__.startswith("probes.")
    }


def every_module() -> list[str]:
    return [each.name for each in pkgutil.walk_packages(probes.__path__, "probes.") if not each.ispkg]


def test_every_reading_of_a_probe_is_registered() -> None:
    for name in every_module():
        if not name.endswith("spinner"):  # the child: it is run, and never imported by name
            importlib.import_module(name)
    missing = {f"{each.__module__}.{each.__name__}" for each in all_of(Reading) if each.probe}
    missing -= {f"{each.__module__}.{each.__name__}" for each in READINGS}
    assert not missing, f"name the module that holds their REGISTRATION in probes/__init__.py: {missing}"


def test_every_section_beside_a_probe_has_a_name_in_the_settings() -> None:
    known = set(Config().sections)
    missing = [each for each in Section.__subclasses__() if each.__module__.startswith("probes.") and each not in known]
    assert not missing, f"give them a name in Config of agent/settings/schema.py: {missing}"


@pytest.mark.parametrize("registration", REGISTERED, ids=lambda each: str(each.probes.__module__))
def test_a_plan_makes_a_probe_of_a_registered_reading_at_a_cost(registration: Registration, tmp_path: Path) -> None:
    FakeKernel(tmp_path)
    plans = list(registration.probes(Context(EVERYTHING.sections, root=tmp_path, environ={})))
    assert plans, "EVERYTHING in this file must hold settings with which it is wanted"
    for plan in plans:
        assert plan.every > 0
        assert plan.cpu_seconds >= 0
        assert plan.history_bytes >= 0
        probe = plan.make()
        assert probe.reading_type in registration.readings
        asyncio.run(probe.aclose())


def test_everything_that_is_registered_can_be_wanted() -> None:
    assert {plan.make().reading_type for plan in planned(Context(EVERYTHING.sections))} == set(READINGS)


def test_a_module_without_a_registration_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"probes\.reading is named in probes/__init__\.py and has no REGISTRATION"):
        load("probes", "reading")


def test_a_section_without_a_name_is_refused_by_name() -> None:
    class Stray(Section):
        """Of nobody."""

    with pytest.raises(LookupError, match=r"Stray is no section: give it a name in Config"):
        Context(Config().sections).settings(Stray)


def test_a_question_is_answered_by_whoever_comes_later() -> None:
    asked: Question[tuple[int, ...]] = Question(())
    assert asked() == ()
    asked.let(lambda: (1, 2))
    assert asked() == (1, 2)


def test_databases_are_told_when_they_are_found_or_have_moved() -> None:
    context, told = Context({}), list[dict[str, set[tuple[str, int]]]]()
    context.on_databases.append(lambda found: told.append({name: set(peers) for name, peers in found.items()}))
    context.found_database("main", ())
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        context.found_database("main", [(address, 5432)])
    assert told == [{"main": {("10.0.0.1", 5432)}}, {"main": {("10.0.0.2", 5432)}}]


def _cpu_ratio(config: Config, *readings: Reading) -> float:
    """What these settings are said to cost where these are the latest readings."""

    def latest(reading_type: type[R], target: str = "") -> R | None:
        return next((each for each in readings if isinstance(each, reading_type) and each.target == target), None)

    return cpu_ratio(planned(Context(config.sections, latest=latest)))


def test_what_is_said_to_be_its_most_grows_with_connections_and_endpoints() -> None:
    def seen(**connections: float) -> ConnectionsReading:
        return ConnectionsReading(taken=0.0, seconds=10.0, connections=connections)

    costs = [
        _cpu_ratio(Config(), *these)
        for these in ((), (seen(),), (seen(a=1.0),), (seen(a=2000.0),), (seen(**{f"e{n}": 50.0 for n in range(40)}),))
    ]
    assert costs[0] == costs[1], "where there are none nothing is asked for"
    assert costs == sorted(costs)
    assert len(set(costs)) == 4
    assert costs[0] == predicted_cpu_ratio(Config()), "check-config says the same"


def test_and_with_processes_that_have_a_hook() -> None:
    settings = Config.model_validate({"logs": {"hook_listen": ["udp:127.0.0.1:0"]}})
    plans = list(REGISTRATION.probes(Context(settings.sections)))
    hooks = plans[0].make()
    assert isinstance(hooks, HooksProbe)
    costs = []
    for pid in range(1, 4):
        costs.append(cpu_ratio(plans))
        hooks.state.hear(Message(pid=pid, name="orders", queues={}, in_flight=None, pools={}, lost=None))
    assert costs == sorted(set(costs)), "more with each"
