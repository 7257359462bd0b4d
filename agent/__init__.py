"""What the readings mean: schedule, history, breakdown, rules, diagnosis and report."""

__version__ = "0.1.0"
