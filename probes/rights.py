"""The rights to look into another process, and how a remedy says them.

The links in /proc/PID/root, /exe and /ns, and /maps, are shown to who might trace the process (ptrace(2), PTRACE_MODE_READ_FSCREDS):
with its uid and gid and every capability that it has, unless it cannot be dumped (it changed its user after it began, or
its program has capabilities), else with CAP_SYS_PTRACE.  The directory /proc/PID/fd moreover is its user's alone (mode
0500), and so is /environ (0400): for any other, root without capabilities too, CAP_DAC_READ_SEARCH opens it.  Name, state, CPU time and run delay are
anybody's to read.  What each right opens is shown by tests/integration/test_rights.py on a real kernel.

A container gets an added capability only when it runs as root: neither Kubernetes nor Docker sets ambient ones.
"""

from __future__ import annotations

#: For /proc/PID/root: the process's control groups.
ITS_FILES = "the app's runAsUser and runAsGroup, or root with the capability SYS_PTRACE"
#: For /proc/PID/fd and /environ.
ITS_DESCRIPTORS = "the app's runAsUser and runAsGroup, or root with the capabilities SYS_PTRACE and DAC_READ_SEARCH"
REFUSED = "another user's, or with more rights than this agent"
