"""The settings for an occasion, made from those that a user gave: ``doctor``, a demo, one more database."""

from __future__ import annotations

from agent.settings.load import Config


def for_doctor(config: Config) -> Config:
    """The settings for one short, attentive look: what each section says of it."""
    return Config.model_validate({name: section.model_dump() | section.for_doctor() for name, section in config})


def for_demo(config: Config, history_seconds: float) -> Config:
    """The settings of a demo: those of ``doctor``, and a history of ``history_seconds`` seconds.

    A verdict then follows within that time.  It is less than a user may set: rules whose span is longer see less
    than they say.
    """
    closer = for_doctor(config)
    history = closer.history.model_copy(update={"seconds": history_seconds})  # past the check, which is for users
    connections = closer.connections.model_copy(update={"every_seconds": closer.postgres.every_seconds})
    return closer.model_copy(update={"history": history, "connections": connections})


def watching(config: Config, name: str, place: str) -> Config:
    """The settings with one more database to watch; ``place`` is where its DSN stands."""
    targets = {**config.postgres.targets, name: place}
    return config.model_copy(update={"postgres": config.postgres.model_copy(update={"targets": targets})})
