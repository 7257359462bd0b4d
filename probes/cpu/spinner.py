"""The child process that feels the CPU being taken away: it sleeps, it spins, and it writes records.

Why a process of its own: a thread beside a busy Python thread waits for the GIL, and the event loop
waits for its own callbacks; both look exactly like throttling.  Here there is one thread, the standard
library, and nothing else.  It is started with ``python -I -S -B`` and must stay
importable without side effects, because the parent takes the wire format from this module.  It is one
file of more than 300 lines for that reason: the child must not import the project to start.

Two measurements, each blind where the other sees:

*Heartbeat*, always on.  Sleep until a target time and note how late the wake-up was.  Nearly free,
and strong while the app burns CPU; blind in an idle container, where the sleeper alone never uses up
a quota.  Targets follow a golden-ratio sequence, ``t0 + n*interval + jitter*frac(n*phi)``: it never
locks onto the scheduler's 100 ms period, and it covers the period more evenly than random jitter
would, so that the share of late targets estimates the suspended share with an error near 1/N instead
of 1/sqrt(N).  After twenty seconds without a late wake-up every other target is left out, and one that is asked counts as
two, a late one too: the estimate stays what it is, its error is up to twice as large (``asked`` of the record says of how many), and the first late wake-up ends it.  After two minutes
three of four are left out; a late one still counts as two, since one alone is no proof of more.  Where every late wake-up of two
minutes was a limit's whose throttled time the kernel counts, targets are four times as far apart: the counter says how much it takes.

A wake-up as short as that often runs from the millisecond of quota that an idle CPU keeps back (kernel/sched/fair.c: min_cfs_rq_runtime),
and then meets a fraction of what busy work on another CPU does: measured 6 to 50 % behind limits that held the app 94 %.  Where a limit's throttled
time is counted the kernel says how much.  While something holds the wake-ups that no such counter explains, one of them in ``WORK_EVERY_SECONDS`` goes on to
*work* for longer than that millisecond, and whether it is stopped samples what busy work meets.

*Spin*, rare: a busy-loop probe.  Burn CPU and look for gaps between clock reads, stopping at the first large one.  It
sees an idle container's quota, and it costs: the burst is taken from the budget that is measured.
Lengths form a ladder, because a fresh quota shows no gap before ``quota x period`` of CPU is burned.

Units on the wire: seconds (monotonic clock), NaN for a counter that could not be read.  The ends of gaps are reported as
seconds since the record's start, beside their lengths; 0 and 0 where there is none.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from struct import Struct

clock = time.monotonic

BEAT, SPIN = 1, 2
#: Upper bounds of the gap histogram in seconds; a last bucket takes the rest.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.06, 0.1, 0.2, 0.5, 1.0)
FIELDS = (
    "kind", "level", "worked", "stopped", "samples", "asked", "gaps", "skipped", "start", "end", "gap_seconds", "longest_seconds",
    "run_delay_seconds", "throttled_seconds", "steal_seconds", "lost_seconds",
)  # fmt: skip
#: Gaps of a record whose end and length are reported, for :mod:`agent.views.comb`: a limit's gaps end on its clock.
MOST_ENDS = 6
RECORD = Struct(f"<BBBBIIII8d{len(BUCKETS) + 1}I{2 * MOST_ENDS}f")

#: A wake-up later than this is a gap (4 ms: above a scheduler slice, below the gap of an 80 % quota).
LATE_SECONDS = 0.004
#: A heartbeat that works does so for this long, which is more than a CPU keeps back; one in so many seconds, while a gap from ``STOP_GAP_SECONDS`` on
#: that throttled time does not explain is no longer ago than the last: 0.7 ms of CPU a second, a third of the budget of the spins.
WORK_SECONDS, WORK_EVERY_SECONDS, HELD_SECONDS = 0.0013, 2.0, 30.0
BRIEF_SECONDS = 0.0001
#: Inside a spin this much between two clock reads is a gap.
SPIN_GAP_SECONDS = 0.0005
#: A spin ends at its first gap of this length: the smallest that noise rarely makes.
STOP_GAP_SECONDS = 0.015
#: A late wake-up of this length proves a suspension without any spin.
PROOF_SECONDS = 0.030
#: A spin that is interrupted takes longer, up to so many times its length.
MOST_STRETCH = 3.0
#: /proc/stat is read so far: a line of some 80 bytes for each CPU comes first.
MOST_STAT, MOST_CPUS = 65536, 800
#: Aim of one uninterrupted stretch between two clock reads.
CHUNK_SECONDS = 60e-6
#: Without a late wake-up for this long only every ``CALM_STEP``-th target is asked.
CALM_SECONDS, CALM_STEP = 20.0, 2
#: Without one for this long only every ``QUIET_STEP``-th, and records are of two seconds; without one that throttled time does not explain, targets come
#: ``TOLD_TIMES`` as far apart; and without one or a change of contention planned spins come ``Config.quiet`` times as far apart.
UNDISTURBED_SECONDS, QUIET_STEP, TOLD_TIMES = 120.0, 4, 4
#: Targets after which the sequence starts afresh; bounds the catching up after a long freeze.
MOST_TARGETS = 10_000
#: A quota below one core is met by a spin once in this time, so that the knowledge stays fresh.
CONFIRM_SECONDS = 480.0
CONFIRM_TRIES = 4
#: Without a large gap for this long, trouble is over.
QUIET_SECONDS = 3.0
#: The first spin waits until the agent's own start is over.
FIRST_SPIN_SECONDS = 1.0
#: Nothing is known at the start, and a limit that leaves something to a spin is met by some of them only: in so many first seconds spins come no
#: further apart than this, 0.15 CPU seconds in all.
EARLY_SECONDS, EARLY_EVERY = 60.0, 5.0
#: Signs of contention bring the next spin forward, but not closer than this to the last one.
ODD_SECONDS = 10.0
#: A spin that waited in the run queue for this share of its time (:class:`Outcome`) was contended ...
WAITED_SHARE = 0.25
#: ... and a short spin is one throw of the dice: so many more follow when contention seems to begin or to end,
#: far enough apart that another process's start, which takes the CPUs for seconds, does not meet all of them, and close enough that five in a row
#: (:mod:`agent.rules.cpu.cpu_contended`) are there in time where one in between met a free CPU.
MORE_SPINS = 4
MORE_SECONDS = 3.0
#: Mean wait of a wake-up in the run queue from which CPUs look crowded: 0 to 20 us where one is free, 0.3 to 1 ms beside one busy thread more
#: than there are CPUs.  Where it has changed since the last spin, twice in a row (one long wait is chance), another one is brought forward, so
#: often in so many seconds.
CROWDED_SECONDS, IN_A_ROW, MOST_ASKED, ASKED_SECONDS = 0.0002, 2, 3, 120.0
#: Gaps that show whether their ends lie on the comb of a limit, and the time between the spins that look for them:
#: six in about 18 s.  They are gathered when a gap is found that no throttled time explains, and not again for a while; sooner where there
#: were enough, because what wake-ups do not meet is known by them alone.
GATHER_GAPS, GATHER_TRIES, GATHER_SECONDS, GATHER_AGAIN_SECONDS = 6, 9, 2.3, 60.0
#: Most CPU seconds that the budget of spins may have saved up: six at half a core, or the whole ladder.
MOST_TOKENS = 1.0
#: Of it this much is kept for gaps that were found: what noise asks for has the rest.
RESERVED_TOKENS = 0.4
#: The ladder is climbed again so long after it met nothing, and each time after twice as long, up to so many times: a host that takes the CPU now and
#: then gives a reason all the time.
CLIMB_AGAIN_SECONDS, MOST_TIMES = 60.0, 8
#: What crowded CPUs ask for has this share of the budget, and so much saved up, three changes' spins: beside neighbours they change all the time.
CROWD_SHARE, CROWD_TOKENS = 0.15, 0.2
#: What it has at the start: the noise of a start may ask for spins, and six gaps at half a core take a third of a second.
#: Where counters are blind it is all that may be saved up: the ladder is climbed first, for half a second, and what it finds must be followed.
START_TOKENS = 0.6
GOLDEN = 0.6180339887498949
NAN = float("nan")


def escape(path: str) -> str:
    """A path for the settings line, where some characters have a meaning: cgroup v1 is mounted at .../cpu,cpuacct."""
    return "".join(f"%{ord(each):02x}" if each in "%,;|" else each for each in path)


def unescape(text: str) -> str:
    """The path that was meant."""
    first, *rest = text.split("%")
    return first + "".join(chr(int(each[:2], 16)) + each[2:] for each in rest)


class Config:
    """The child's settings, as one flat line: ``key=value`` pairs joined with ``;``."""

    def __init__(self, text: str) -> None:
        given = dict(part.split("=", 1) for part in text.split(";") if part)
        self.interval = float(given.get("interval", "0.2"))
        self.jitter = float(given.get("jitter", "0.2"))
        self.flush = float(given.get("flush", "1.0"))
        self.send = float(given.get("send", "4.0"))
        self.budget = float(given.get("budget", "0.002"))
        self.levels = [float(x) for x in given.get("levels", "0.012,0.04,0.13,0.32").split(",")]
        self.every = [float(x) for x in given.get("every", "24,0,0,0").split(",")]
        #: Whose child this is: asked for by number, because a parent may be gone before it is asked.
        self.parent = int(given.get("parent", "0")) or os.getppid()
        self.climb = given.get("climb", "0") == "1"
        self.quiet = float(given.get("quiet", "1"))
        self.root = unescape(given.get("root", "/"))
        self.ticks = given.get("ticks", "1") == "1"
        self.delay = given.get("delay", "1") == "1"
        #: version:stat:quota:period for each level of the cgroup that may be limited
        self.cgroups = [tuple(map(unescape, x.split("|"))) for x in given.get("cgroups", "").split(",") if x]

    @property
    def told(self) -> tuple[object, ...]:
        """The counters that the child is told of: they are opened once, when it starts."""
        return self.ticks, self.delay, self.cgroups


class KernelCounters:
    """Raw kernel counters read with pread on files kept open: two microseconds each, parsed only when needed."""

    def __init__(self, config: Config) -> None:
        self.schedstat = _open(os.path.join(config.root, "proc/self/schedstat")) if config.delay else -1
        self.proc_stat = _open(os.path.join(config.root, "proc/stat")) if config.ticks else -1
        self.cgroups = [
            (b"throttled_usec " if version == "2" else b"throttled_time ", 1e-6 if version == "2" else 1e-9,
             _open(stat), _open(quota), _open(period))
            for version, stat, quota, period in config.cgroups
        ]  # fmt: skip
        self.own_stat = _open(os.path.join(config.root, "proc/self/stat")) if config.ticks else -1
        self.hertz = os.sysconf("SC_CLK_TCK")

    def raw(self) -> list[bytes]:
        """Read schedstat and every cpu.stat, unparsed."""
        return [_pread(self.schedstat), *(_pread(stat) for _, _, stat, _, _ in self.cgroups)]

    def since(self, before: list[bytes], now: list[bytes]) -> tuple[float, float]:
        """(run delay, throttled time) in seconds between two raw snapshots."""
        run_delay = _word(now[0], 1) - _word(before[0], 1)
        throttled = NAN
        for (key, unit, *_), old, new in zip(self.cgroups, before[1:], now[1:], strict=True):
            grown = (_value_of(key, new) - _value_of(key, old)) * unit
            if grown == grown:
                throttled = grown if throttled != throttled else throttled + grown
        return run_delay * 1e-9, throttled

    def wait_since(self, before: list[bytes], now: list[bytes]) -> float:
        """Seconds for which a wake-up waited in the run queue, on average, without what a quota held: NaN where that is not counted."""
        run_delay, throttled = self.since(before, now)
        slices = _word(now[0], 2) - _word(before[0], 2)
        return (run_delay - (throttled if throttled == throttled else 0.0)) / slices if slices > 0 else NAN

    def ticks(self) -> tuple[bytes, int]:
        """/proc/stat, unparsed, and the number of the CPU that this thread is on (-1: not known)."""
        return (_pread(self.proc_stat, MOST_STAT) if self.proc_stat >= 0 else b"", self.own_cpu())

    def own_cpu(self) -> int:
        """The CPU that this thread ran on last: column 39 of /proc/self/stat (proc(5))."""
        words = _pread(self.own_stat).rpartition(b")")[2].split()
        return int(words[36]) if len(words) > 36 else -1

    def lost_between(self, before: tuple[bytes, int], now: tuple[bytes, int], wall: float) -> tuple[float, float]:
        """(steal, lost) in seconds on the CPUs that this thread was on: those of others are not its loss.

        Where their lines are not there, a CPU's mean share of the sum over all, as long as these stay the same.
        """
        whose = {b"cpu%d" % cpu for cpu in (before[1], now[1]) if cpu >= 0}
        old, new = (_columns(raw, whose) for raw, _ in (before, now))
        lines = [key for key in new if key in old]
        shared = 1
        if not lines or len(lines) < len(whose):
            old, new = (_columns(raw, {b"cpu"}) for raw, _ in (before, now))
            shared = count_cpus(now[0])
            lines = [key for key in new if key in old and count_cpus(before[0]) == shared]
        if not lines:
            return NAN, NAN
        steal = sum(new[key][0] - old[key][0] for key in lines) / self.hertz
        grown = sum(new[key][1] - old[key][1] for key in lines) / self.hertz
        return steal / shared, max(0.0, wall * len(lines) - grown / shared)

    def needed_burn(self) -> float:
        """CPU seconds after which the smallest quota below one core bites; 0 when there is none."""
        burns = [0.0]
        for _, _, _, quota_fd, period_fd in self.cgroups:
            words = _pread(quota_fd).split() + _pread(period_fd).split()
            try:
                quota, period = int(words[0]), int(words[1])
            except (IndexError, ValueError):
                continue  # "max", or a file that is not there
            if 0 < quota < period:
                burns.append(quota * 1e-6)
        return min(burns[1:], default=0.0)


def count_cpus(proc_stat: bytes) -> int:
    """CPUs that /proc/stat adds up: its own cpuN lines, which may be virtualised (lxcfs)."""
    return max(1, proc_stat.count(b"cpu") - 1) if proc_stat.startswith(b"cpu") else os.cpu_count() or 1


def _columns(raw: bytes, wanted: set[bytes]) -> dict[bytes, tuple[int, int]]:
    """Of these lines of /proc/stat (steal, sum of the first eight columns) in ticks."""
    rows = (line.split() for line in raw.split(b"\n", MOST_CPUS)[:MOST_CPUS] if line.startswith(b"cpu"))
    return {row[0]: (int(row[8]), sum(map(int, row[1:9]))) for row in rows if row[0] in wanted and len(row) > 8}


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
    except OSError:
        return -1


def _pread(fd: int, most: int = 4096) -> bytes:
    try:
        return os.pread(fd, most, 0) if fd >= 0 else b""
    except OSError:
        return b""


def _word(raw: bytes, index: int) -> float:
    words = raw.split()
    return float(words[index]) if len(words) > index else NAN


def _value_of(key: bytes, raw: bytes) -> float:
    at = raw.find(key)
    return float(raw[at + len(key) :].split(b"\n", 1)[0]) if at >= 0 else NAN


def bucket_of(seconds: float) -> int:
    """Index of the histogram bucket that takes a gap of this length."""
    for index, bound in enumerate(BUCKETS):
        if seconds <= bound:
            return index
    return len(BUCKETS)


class Window:
    """What one BEAT or SPIN record gathers."""

    def __init__(self, kind: int, start: float, level: int = 0) -> None:
        self.kind, self.level, self.start = kind, level, start
        self.samples = self.asked = self.gaps = self.worked = self.stopped = 0
        self.gap_seconds = self.longest = 0.0
        self.run_delay = self.throttled = 0.0
        self.counts = [0] * (len(BUCKETS) + 1)
        self.ends: list[float] = []

    def add(self, gap: float, end: float | None = None) -> None:
        """Count one gap; ``end`` is when it was over, None for a target that another one's gap swallowed."""
        self.gaps += 1
        self.gap_seconds += gap
        self.longest = max(self.longest, gap)
        self.counts[bucket_of(gap)] += 1
        if end is not None:
            # The first ones and the last, which may be the one that stopped a spin.
            self.ends[2 * MOST_ENDS - 2 :] = (end - self.start, gap)

    def pack(self, end: float, skipped: int, steal: float = NAN, lost: float = NAN) -> bytes:
        """The record's wire form."""
        return RECORD.pack(
            self.kind, self.level, self.worked, self.stopped, self.samples, self.asked, self.gaps, skipped, self.start, end,
            self.gap_seconds, self.longest, self.run_delay, self.throttled, steal, lost, *self.counts,
            *self.ends, *(0.0,) * (2 * MOST_ENDS - len(self.ends)),
        )  # fmt: skip


class Outcome:
    """What a spin met, and what the plan asks of it: its ``record``, the ``longest`` gap in seconds, the CPU seconds ``burned`` (wall time without gaps).

    ``explained`` says whether the scheduler's own counters, run delay or throttled time, tell of half of the gaps or more; ``throttled``, whether
    throttled time alone does (no where none is counted): run delay grows behind a limit and beside neighbours.  ``waited`` is the share of the
    time that was spent in the run queue; where that is not counted, in gaps that did not stop the spin.
    """

    def __init__(
        self, record: bytes, longest: float, burned: float, *, explained: bool, throttled: bool, waited: float
    ) -> None:
        self.record, self.longest, self.burned = record, longest, burned
        self.explained, self.throttled, self.waited = explained, throttled, waited


class Spinner:
    """Burns CPU for up to a given length and measures its gaps; stops at the first large one."""

    def __init__(self, counters: KernelCounters) -> None:
        self.counters = counters
        self.loops = 1000

    def works(self, seconds: float) -> bool:
        """Work for so long, and wake up once more; whether that came through, without a gap of ``LATE_SECONDS``.

        What has run out is seen at the scheduler's next tick, which may be 4 ms away, or when a thread wakes up.
        """
        last = clock()
        end = last + seconds
        for _ in range(round(4 * seconds / CHUNK_SECONDS)):  # a clock may stand still
            for _ in range(self.loops):
                pass
            now = clock()
            if now - last > LATE_SECONDS:
                return False
            last = now
            if now >= end:
                break
        time.sleep(BRIEF_SECONDS)
        return clock() - last <= LATE_SECONDS

    def spin(self, seconds: float, level: int, skipped: int) -> Outcome:
        """Spin once."""
        counters, loops, stop = self.counters, self.loops, STOP_GAP_SECONDS
        raw, ticks = counters.raw(), counters.ticks()
        durations: list[float] = []
        start = last = clock()
        deadline, latest = start + seconds, start + seconds * MOST_STRETCH
        while last < deadline:
            for _ in range(loops):
                pass
            now = clock()
            gap, last = now - last, now
            durations.append(gap)
            if gap > stop:
                break
            if gap > SPIN_GAP_SECONDS:  # its length is in CPU time: beside neighbours less would not meet the limit
                deadline = min(latest, deadline + gap)
        ticks_now = counters.ticks()
        window = Window(SPIN, start, level)
        window.run_delay, window.throttled = counters.since(raw, counters.raw())
        # p25 of the chunk durations is what a chunk takes undisturbed: the spin's own yardstick,
        # immune to how fast this machine is today.  Of fewer than four it is the shortest, which may be a gap itself.
        quarter = sorted(durations)[len(durations) // 4]
        usual = quarter if len(durations) >= 4 else CHUNK_SECONDS
        end = start
        for duration in durations:
            end += duration
            gap = duration - usual
            if gap > SPIN_GAP_SECONDS:
                window.add(gap, end)
        wall = last - start
        window.samples = len(durations)
        self.loops = max(50, min(100_000, (loops + int(loops * CHUNK_SECONDS / max(quarter, 1e-7))) // 2))
        steal, lost = counters.lost_between(ticks, ticks_now, wall)
        record = window.pack(last, skipped, steal, lost)
        explained = sum(x for x in (window.run_delay, window.throttled) if x == x)
        # Run delay grows while a quota holds the thread too (Linux 6.18): that part is not contention.
        waited = window.run_delay - (window.throttled if window.throttled == window.throttled else 0.0)
        if waited != waited:
            waited = window.gap_seconds - (window.longest if window.longest > stop else 0.0)
        half = window.gap_seconds / 2
        return Outcome(
            record, window.longest, wall - window.gap_seconds,
            explained=explained >= half, throttled=window.throttled >= half, waited=waited / wall,
        )  # fmt: skip


class Plan:
    """Decides when to spin and how long: rarely, within a budget, and further only on suspicion.

    ``turn`` is where :meth:`jitter` begins: another one in each agent.  From the same one agents that were started together spin together
    for good, and each takes the others for neighbours.
    """

    def __init__(self, config: Config, now: float, turn: int = 0) -> None:
        self.config = config
        self.began = now
        self.tokens = MOST_TOKENS if config.climb else START_TOKENS
        self.crowd_tokens, self.filled = CROWD_TOKENS, now
        self.next_check = now
        self.skipped = 0
        self.level = 0  # the level that found a gap last: kept until that level comes back clean
        self.outcome: list[bool | None] = [None] * len(config.levels)
        self.turn = turn
        # Two short spins in the first seconds, so that even a healthy answer rests on more than one.
        first = now + FIRST_SPIN_SECONDS * (1 + 0.5 * self.jitter())
        self.due = [first if every and not i else now + every if every else 0.0 for i, every in enumerate(config.every)]
        wanted = any(config.every) or config.climb
        #: A spin out of turn: when, which level, what it leaves of the budget, and whether crowded CPUs ask for it.
        again = first + FIRST_SPIN_SECONDS * (1 + self.jitter())
        self.extra: tuple[float, int, float, bool] | None = (again, 0, 0.0, False) if wanted else None
        self.climbing = config.climb
        self.cooled, self.vain = now, 1
        self.last_spin = now
        self.confirmed = now
        self.tries = 0
        self.contended, self.more = False, 0
        self.changed, self.asked = 0, list[float]()
        self.wanted, self.gathers, self.gathered = 0, 0, -CONFIRM_SECONDS
        self.proofs: list[float] = []
        self.oddities: list[float] = []
        self.noted = now  # the last late wake-up, or change of contention

    def plan_spin(self, at: float, level: int, *, noise: bool = False, crowd: bool = False) -> None:
        """Spin at this level then, out of turn; for mere noise only while there is more than the reserve, and for crowded CPUs from their share."""
        self.extra = (at, level, RESERVED_TOKENS if noise or crowd else 0.0, crowd)
        self.next_check = min(self.next_check, at)

    def jitter(self) -> float:
        """A well-spread number in [0, 1)."""
        self.turn += 1
        return self.turn * GOLDEN % 1.0

    def beat(self, now: float, late: float, explained: float) -> None:
        """Take one late wake-up, with the seconds of it that kernel counters explain."""
        if late >= PROOF_SECONDS:
            self.proofs = [t for t in self.proofs if now - t < 10.0][-9:]
            self.proofs.append(now)
        self.oddities = [t for t in self.oddities if now - t < 5.0][-19:]
        self.oddities.append(now)
        self.noted = now
        if self.extra is None:
            if late >= 0.012 and explained < late / 2 and now >= self.cooled and len(self.oddities) > 1:
                self.climbing = True
                self.plan_spin(now + 0.2, self.level)
            elif len(self.oddities) >= 4 and now - self.last_spin > ODD_SECONDS:
                self.plan_spin(now + 0.2, self.level, noise=True, crowd=not self.level)

    def expect(self, now: float, burn: float) -> None:
        """A quota below one core has appeared that bites after ``burn`` CPU seconds: confirm it once.

        A spin that begins late in a period burns through its rest and the next one's quota before it
        is stopped: twice the burn at the worst.
        """
        index = self.enough_for(burn)
        self.outcome[index], self.confirmed, self.tries = None, now, CONFIRM_TRIES
        self.plan_spin(now + 0.2, index)

    def enough_for(self, burn: float) -> int:
        """The lowest ladder level that is sure to meet a quota of ``burn`` CPU seconds a period."""
        lengths = self.config.levels
        sure = (i for i, length in enumerate(lengths) if length >= burn * 2.1 + 0.001)
        return next(sure, len(lengths) - 1)

    def pick(self, now: float) -> int | None:
        """The ladder level to spin now, or None."""
        level = self.due_level(now)
        self.next_check = min([due for due in self.due if due] + ([self.extra[0]] if self.extra else []), default=now)
        return level

    def due_level(self, now: float) -> int | None:
        """The level that is due, if the budget has it and no heartbeat has proved a suspension anyway."""
        level, kept, crowd = None, 0.0, False
        if self.extra is not None and now >= self.extra[0]:
            _, level, kept, crowd = self.extra
            self.extra = None
        else:
            for index, due in enumerate(self.due):
                if due and now >= due:
                    level = index
                    self.due[index] = now + self.interval(index, now) * (0.75 + 0.5 * self.jitter())
            if level is None:
                return None
            level = max(level, self.level)
        if len(self.proofs) >= 3 and now - self.proofs[-3] < 10.0:
            return None  # the heartbeat proves it already; do not eat what little CPU is left
        self.fill(now)
        length = self.config.levels[level]
        if self.tokens < length + kept or (crowd and self.crowd_tokens < length):
            self.skipped += 1
            return None
        self.crowd_tokens -= length if crowd else 0.0
        self.last_spin = now
        return level

    def interval(self, level: int, now: float) -> float:
        """Seconds to the next regular spin of this level, on average."""
        every = self.config.every[level]
        if not level and now - self.began < EARLY_SECONDS:
            return min(every, EARLY_EVERY)
        quiet = now - self.noted >= UNDISTURBED_SECONDS and not (self.contended or self.level)
        return every * self.config.quiet if quiet else every

    def fill(self, now: float) -> None:
        """Save up what the budget has given since."""
        given = (now - self.filled) * self.config.budget
        self.tokens = min(MOST_TOKENS, self.tokens + given)
        self.crowd_tokens = min(CROWD_TOKENS, self.crowd_tokens + CROWD_SHARE * given)
        self.filled = now

    def spend(self, now: float, burn: float) -> bool:
        """Take so many CPU seconds for something else than a spin; False where they are not there."""
        self.fill(now)
        if self.tokens < burn:
            return False
        self.tokens -= burn
        return True

    def take_outcome(self, now: float, level: int, met: Outcome) -> None:
        """Take a spin's outcome: confirm a change at once, climb the ladder only while in doubt.

        A gap that the kernel's own counters explain needs neither: they will tell when it ends.  Where that is run delay
        alone more gaps are asked for nevertheless: a limit on a group above makes it as well as neighbours do.
        """
        self.tokens -= met.burned
        found, explained = met.longest > STOP_GAP_SECONDS, met.explained
        self.tries = max(0, self.tries - 1) if not found else 0
        if self.tries:
            # It began so late in a period that the gap was short, or had saved-up quota to burn: once more.
            self.plan_spin(now + 0.5 + 0.5 * self.jitter(), level)
            return
        if found and explained:
            self.climbing = False
            if not met.throttled:
                self.gather(now, level, found=True, noise=True)
            return
        before, self.outcome[level] = self.outcome[level], found
        if found:
            self.level, self.climbing, self.vain = min(level, self.enough_for(met.burned)), False, 1
        elif level >= self.level and before is False:
            self.level = 0
        if found != before and (found or before is not None):
            self.plan_spin(now + 0.35 + 0.65 * self.jitter(), level)
        elif self.climbing and not found:
            if level + 1 < len(self.config.levels):
                self.plan_spin(now + 0.5 + 0.5 * self.jitter(), level + 1)
            else:
                if now - self.cooled > MOST_TIMES * CLIMB_AGAIN_SECONDS:
                    self.vain = 1
                self.climbing, self.cooled = False, now + self.vain * CLIMB_AGAIN_SECONDS
                self.vain = min(MOST_TIMES, 2 * self.vain)
        self.gather(now, self.level, found=found)

    def gather(self, now: float, level: int, *, found: bool, noise: bool = False) -> None:
        """Ask for more gaps where one was found that no throttled time explains: alone, it does not tell a limit from a neighbour.

        Ends when there are enough of them, or when too many spins met none.
        """
        rest = CONFIRM_SECONDS if self.wanted > 0 else GATHER_AGAIN_SECONDS
        if found and not self.gathers and now - self.gathered >= rest:
            self.gathered, self.wanted, self.gathers = now, GATHER_GAPS, GATHER_TRIES
        self.wanted -= found
        self.gathers = self.gathers - 1 if self.gathers and self.wanted > 0 else 0
        if self.gathers and self.extra is None:
            self.plan_spin(now + GATHER_SECONDS * (0.8 + 0.4 * self.jitter()), level, noise=noise)

    def note_contention(self, now: float, waited: float) -> None:
        """Take the share of a spin that was spent in the run queue: ask again when that changed."""
        contended = waited >= WAITED_SHARE
        if contended != self.contended:
            self.contended, self.more, self.noted = contended, MORE_SPINS, now
        if self.more and self.extra is None:
            self.more -= 1
            self.plan_spin(now + MORE_SECONDS * (0.8 + 0.4 * self.jitter()), 0, crowd=True)

    def note_wait(self, now: float, mean: float) -> None:
        """Take the mean wait of the last wake-ups: a spin says whether work that goes on waits as well, or no longer does."""
        self.changed = self.changed + 1 if mean == mean and (mean >= CROWDED_SECONDS) != self.contended else 0
        if self.changed < IN_A_ROW:
            return
        self.asked = [t for t in self.asked if now - t < ASKED_SECONDS]
        if self.extra is None and len(self.asked) < MOST_ASKED and now - self.last_spin > ODD_SECONDS:
            self.asked.append(now)
            self.plan_spin(now + 0.2, 0, crowd=True)


class Child:
    """The loop: heartbeat, now and then a spin, once a second a record.  Its plan begins at ``turn`` (:class:`Plan`)."""

    def __init__(self, config: Config, out: int, turn: int = 0) -> None:
        self.config, self.out = config, out
        self.counters = KernelCounters(config)
        self.spinner = Spinner(self.counters)
        self.base = now = clock()
        self.number, self.burn, self.flushes = 1, 0.0, 0
        #: Targets for one that is asked, how many times as far apart as the settings have it they are, and the last late wake-ups: any, one untold.
        self.step, self.times = 1, 1
        self.late_at = self.untold_at = now
        self.target = self.set_next_target()
        self.plan = Plan(config, now, turn)
        self.window = Window(BEAT, now)
        self.raw = self.flushed = self.counters.raw()
        self.flushed_at = now
        self.unsent, self.sent_at, self.flush_early = b"", now, True
        self.troubled = 0.0
        self.held_at, self.work_at = -HELD_SECONDS, now

    def set_next_target(self) -> float:
        """Set and return the next heartbeat's target."""
        jitter = self.config.jitter * self.step * (self.number * GOLDEN % 1.0)
        self.target = self.base + (self.number * self.config.interval + jitter) * self.times
        return self.target

    def beat(self) -> float:
        """Sleep until the target, take what came late.  Returns the time.

        This runs five times a second for ever: a wake-up that was on time does no more than it must.
        """
        now = clock()
        if self.target > now:
            time.sleep(self.target - now)
            now = clock()
        first = now - self.target
        if first > LATE_SECONDS:
            self.late(now, first)
        else:
            self.window.samples += self.step
            self.window.asked += 1
            self.number += self.step
            self.set_next_target()
        if now >= self.work_at and now - self.held_at < HELD_SECONDS:
            self.work(now, late=first > LATE_SECONDS)
        return now

    def work(self, now: float, *, late: bool) -> None:
        """Let this heartbeat work, or take it for stopped where it came late already."""
        if not late and not self.plan.spend(now, WORK_SECONDS):
            return
        self.work_at = now + WORK_EVERY_SECONDS * (0.5 + self.plan.jitter())
        self.window.worked += 1
        if late or not self.spinner.works(WORK_SECONDS):
            self.window.stopped += 1
            self.raw = self.counters.raw()  # what they count of this gap is not the next late wake-up's

    def late(self, now: float, first: float) -> None:
        """Take a late wake-up.  Every target that it swallowed counts: the share of late ones is the estimate."""
        window, known = self.window, self.window.gap_seconds
        if self.step > 1:
            for _ in range(min(self.step, CALM_STEP) - 1):  # it stands for those that were left out
                window.samples += 1
                window.add(first)
            self.step, self.number, self.base, self.untold_at = 1, 0, self.target, now
        self.late_at = now
        while (late := now - self.target) >= 0:
            window.samples += 1
            window.asked += 1
            if late > LATE_SECONDS:
                window.add(late, now if late == first else None)
            self.number += 1
            if self.number > MOST_TARGETS:
                self.number, self.base = 1, now
            self.set_next_target()
        if first > PROOF_SECONDS:
            self.note_trouble(now)
        before, self.raw = self.raw, self.counters.raw()
        run_delay, throttled = self.counters.since(before, self.raw)
        self.plan.beat(now, first, sum(x for x in (run_delay, throttled) if x == x))
        if not 2 * throttled >= first:  # NaN, which counts nothing, among them
            self.untold_at = now
            self.ask_each(1, now)
            if first > STOP_GAP_SECONDS:
                self.held_at = now
        # The counters' share of the first target's lateness stands for that of all swallowed ones.
        scale = (window.gap_seconds - known) / first
        window.run_delay += min(run_delay, first) * scale
        window.throttled += min(throttled, first) * scale

    def ask_each(self, times: int, now: float) -> None:
        """From now on targets are so many times as far apart as the settings have it."""
        if times != self.times:
            self.times, self.number, self.base = times, 1, now
            self.set_next_target()

    def note_trouble(self, now: float) -> None:
        """Work is being held: flush early when that begins and when it ends, not while it lasts."""
        self.flush_early = self.flush_early or not self.troubled
        self.troubled = now

    def spin(self, level: int) -> bytes:
        """Spin at this level; the heartbeat starts afresh after it.  Returns the record."""
        length, skipped = self.config.levels[level], self.plan.skipped
        met = self.spinner.spin(length, level, skipped)
        self.flush_early = self.flush_early or met.longest > STOP_GAP_SECONDS or self.plan.outcome[level] is True
        self.plan.take_outcome(clock(), level, met)
        self.plan.note_contention(clock(), met.waited)
        self.number, self.base, self.raw = 1, clock(), self.counters.raw()
        self.set_next_target()
        return met.record

    def flush(self, now: float) -> bytes:
        """Close the second's record; every other one, look at the counters and for a quota to confirm."""
        record = self.window.pack(now, self.plan.skipped)
        self.window = Window(BEAT, now)
        undisturbed = now - self.late_at
        self.step = QUIET_STEP if undisturbed > UNDISTURBED_SECONDS else CALM_STEP if undisturbed > CALM_SECONDS else 1
        self.ask_each(TOLD_TIMES if self.step == 1 and now - self.untold_at > UNDISTURBED_SECONDS else 1, now)
        self.flushes += 1
        if self.flushes % 2:
            return record
        # KernelCounters are read here and after every late wake-up: a read costs as much as a beat.
        self.raw = self.counters.raw()
        throttled = self.counters.since(self.flushed, self.raw)[1]
        if self.plan.last_spin < self.flushed_at:  # a spin's own waits are not a wake-up's
            self.plan.note_wait(now, self.counters.wait_since(self.flushed, self.raw))
        self.flushed, self.flushed_at = self.raw, now
        if throttled > PROOF_SECONDS:
            self.note_trouble(now)
        elif self.troubled and now - self.troubled > QUIET_SECONDS:
            self.troubled, self.flush_early = 0.0, True
        needed = self.counters.needed_burn()
        if needed and (needed != self.burn or now - self.plan.confirmed > CONFIRM_SECONDS):
            self.plan.expect(now, needed)
        self.burn = needed
        return record

    def run(self) -> int:
        """Run until the parent is gone.  Returns the exit code."""
        plan = self.plan
        while True:
            now = self.beat()
            if now >= plan.next_check and (level := plan.pick(now)) is not None:
                self.unsent += self.spin(level)
            if now - self.window.start >= (self.config.flush if self.step < QUIET_STEP else 2 * self.config.flush):
                self.unsent += self.flush(now)
                if (self.flush_early or now - self.sent_at >= self.config.send) and not self.send(now):
                    return 0

    def send(self, now: float) -> bool:
        """Hand the records over: every few seconds, or early when something changed.  False: no parent."""
        output, self.unsent, self.sent_at, self.flush_early = self.unsent, b"", now, False
        try:
            os.write(self.out, output)
        except BlockingIOError:
            self.plan.skipped += 1  # the parent does not read: records are lost, never waited for
        except OSError:
            return False
        return os.getppid() == self.config.parent


def main(text: str) -> int:
    """The child's entry: records go to standard output, a pipe.  Returns the exit code."""
    gc.disable()
    os.set_blocking(1, False)
    return Child(Config(text), 1, int.from_bytes(os.urandom(2))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
