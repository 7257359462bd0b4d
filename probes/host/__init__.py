"""Where the agent runs: the platform, its cgroups, and which of the kernel's counters can count there."""
