"""What the agent costs and how fast it answers, measured on the real thing: `python -m tests.bench`, `make bench`.

A measuring tool, not a test: nothing fails when a goal is missed, the table says so. Figures hold for the machine
and the hour; compare runs of one machine, and read the ratio to node_exporter where machines differ.
"""
