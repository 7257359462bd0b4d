"""The settings for an occasion, made from those that a user gave: ``doctor``, a demo, one more database."""

from __future__ import annotations

from agent.config import Config


def for_doctor(config: Config) -> Config:
    """The settings for one short, attentive look: closer slots, and spins up to the longest in seconds."""
    tree = config.model_dump()
    tree["suspension"] |= {
        "every_seconds": 1.0,
        "budget_ratio": 0.05,
        "spin_every_seconds": tree["suspension"]["spin_every_seconds"] or (2.5, 6.0, 12.0, 25.0),
    }
    tree["cgroup"]["every_seconds"] = tree["requests"]["every_seconds"] = 1.0
    tree["processes"]["every_seconds"] = 2.0
    tree["platform"]["every_seconds"] = 5.0
    tree["pool"]["every_seconds"] = tree["logs"]["every_seconds"] = 2.0
    tree["postgres"] |= {"every_seconds": 2.0, "timeout_seconds": min(1.5, tree["postgres"]["timeout_seconds"])}
    tree["budget"]["cpu_ratio"] = 0.5
    return Config.model_validate(tree)


def for_demo(config: Config, look_back: float) -> Config:
    """The settings of a demo: those of ``doctor``, and a history of ``look_back`` seconds.

    A verdict then follows within that time.  It is less than a user may set: rules whose span is longer see less
    than they say.
    """
    closer = for_doctor(config)
    history = closer.history.model_copy(update={"seconds": look_back})  # past the check, which is for users
    connections = closer.connections.model_copy(update={"every_seconds": closer.postgres.every_seconds})
    return closer.model_copy(update={"history": history, "connections": connections})


def watching(config: Config, name: str, place: str) -> Config:
    """The settings with one more database to watch; ``place`` is where its DSN stands."""
    targets = {**config.postgres.targets, name: place}
    return config.model_copy(update={"postgres": config.postgres.model_copy(update={"targets": targets})})
