"""Telling those who do not ask: OTLP, a webhook, Alertmanager, Kubernetes Events.  Loaded only where the settings ask for one."""
