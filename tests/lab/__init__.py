"""The proving ground: real environments in which the CPU is really taken away.

A fake can only repeat what its author believes, so everything here is the real thing: a process under a CFS
quota, the same process inside gVisor, and inside a guest kernel whose host process is throttled or frozen.
What is missing on a machine is said by `Unavailable`, which the tests turn into a skip with that reason.
"""


class Unavailable(Exception):
    """This environment cannot be had here; the message says why and what would bring it."""
