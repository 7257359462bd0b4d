"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# These machines are shared: whoever takes the CPU away for 200 ms would fail an example that takes none of that.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
