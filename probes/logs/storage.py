"""Whether what is written to a place lies in memory or on a disk.

The type of the file system is asked of the file or directory itself, by fstatfs(2) through ctypes: Python's own
statvfs leaves ``f_type`` out.  A look-up of st_dev in mountinfo was the alternative and is worse: files on overlayfs
and on btrfs carry device numbers that stand in no mountinfo, and a path of another container needs that one's.
Numbers: statfs(2) and linux/magic.h.

* overlayfs says nothing of its upper layer.  A file that was written since the agent began lies there, and FIEMAP
  (kernel Documentation filesystems/fiemap.rst) reaches through: tmpfs does not have it (EOPNOTSUPP), disks do.  A file
  that was not written may come from the image, which is elsewhere.  Without such a file mountinfo's ``upperdir`` is
  asked where it can be seen, as on the host.
* Cloud Run: the writable file system of a container is memory by its contract, in both generations, and so are its
  volumes in memory.  Other mounts are what their type says.
* gVisor otherwise: its overlay and its tmpfs may be backed by memory or by a file on the host, which looks the
  same from inside (gVisor's user guide, filesystem): not known.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Mapping

from probes.host.cgroup_mounts import unescape
from probes.host.platform import find_environment
from probes.kernel_files import read_text
from probes.logs.reading import Backing

OVERLAY, TMPFS = 0x794C7630, 0x01021994
_MEMORY = {TMPFS: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"}
_DISK = {
    0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0xF2F52010: "f2fs", 0x2FC12FC1: "zfs", 0xCA451A4E: "bcachefs",
    0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB", 0x00C36400: "Ceph",
}  # fmt: skip
_OTHER = {0x65735546: "FUSE", 0x01021997: "9p"}
_FS_IOC_FIEMAP = 0xC020660B
_WHOLE_FILE = struct.pack("=QQIIII", 0, 2**64 - 1, 0, 0, 0, 0)  # room for no extent: they are only counted
_STATFS_BYTES = 256  # 120 on 64-bit machines
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_DESCRIPTOR = re.compile(r"/proc/(\d+|self)/fd/\d+$")


class Backings:
    """Tells where a file or a directory is.  ``gvisor`` says whether this is one, as the platform probe found it."""

    def __init__(
        self,
        *,
        gvisor: Callable[[], bool] = lambda: False,
        environ: Mapping[str, str] = os.environ,
        type_of: Callable[[int], int] | None = None,
        has_extents: Callable[[str], bool] | None = None,
        mountinfo: str = "/proc/self/mountinfo",
        began: float | None = None,
    ) -> None:
        self._gvisor = gvisor
        self._cloud_run = find_environment(environ)[0].startswith("cloud_run")
        self._type_of, self._has_extents = type_of or fs_type, has_extents or fiemap
        self._mountinfo = mountinfo
        self._began = time.time() if began is None else began

    def room(self, fd: int) -> float | None:
        """Bytes that still fit there; None where there is no bound, or none that can be believed."""
        try:
            held = os.fstatvfs(fd)
            bounded = held.f_blocks > 0 and not self._gvisor() and not self._by_contract(fd)
        except OSError:
            return None
        return float(held.f_bavail * held.f_frsize) if bounded else None

    def _by_contract(self, fd: int) -> bool:
        return self._cloud_run and os.fstat(fd).st_dev == os.stat("/").st_dev

    def of(self, fd: int, written: str = "", modified: float = 0.0) -> Backing:
        """Where the file or directory ``fd`` is; O_PATH will do.

        ``written`` is the file there that was written last, at ``modified`` (seconds since the epoch).
        """
        try:
            kind = self._type_of(fd)
            if self._by_contract(fd):
                return Backing("memory", "Cloud Run's writable file system is memory, by its contract")
        except OSError as error:
            return Backing("unknown", f"statfs: {error.strerror}")
        if self._gvisor() and not self._cloud_run and (kind == OVERLAY or kind in _MEMORY):
            return Backing("unknown", "gVisor may keep this in memory or in a file on its host, and does not say")
        if kind == OVERLAY:
            block_bytes = os.fstatvfs(fd).f_bsize
            return self._overlay(os.fstat(fd), block_bytes, written if modified >= self._began else "")
        if kind in _MEMORY:
            return Backing("memory", f"{_MEMORY[kind]} is memory, charged to who wrote it")
        if kind in _DISK:
            return Backing("disk", f"{_DISK[kind]} is no memory of this instance")
        return Backing(
            "unknown", f"a file system of type {_OTHER.get(kind) or hex(kind)} does not say where it keeps this"
        )

    def _overlay(self, held: os.stat_result, block_bytes: int, written: str) -> Backing:
        """The upper layer of an overlay."""
        because = "an overlay, and nothing was written there since the agent began that could be looked at"
        if written:
            try:
                extents = self._has_extents(written)
            except OSError as error:
                because = f"an overlay, and its newest file cannot be looked at: {error.strerror}"
            else:
                if extents:
                    return Backing("disk", "an overlay whose upper layer has extents (FIEMAP)")
                if block_bytes == _PAGE_BYTES:  # zfs, the other one without FIEMAP, has larger blocks
                    return Backing("memory", "an overlay whose upper layer has no FIEMAP, as tmpfs")
                because = "an overlay whose upper layer has no FIEMAP, and larger blocks than tmpfs"
        upper = self._upper(held.st_dev) if stat.S_ISDIR(held.st_mode) else ""
        if upper:
            kind = self._type_at(upper)
            if kind in _MEMORY:
                return Backing("memory", f"an overlay whose upper layer is on {_MEMORY[kind]} (mountinfo)")
            if kind in _DISK:
                return Backing("disk", f"an overlay whose upper layer is on {_DISK[kind]} (mountinfo)")
        return Backing("unknown", because)

    def _upper(self, device: int) -> str:
        """The ``upperdir`` of the overlay with this device number; "" where mountinfo does not say."""
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            lines = read_text(self._mountinfo).splitlines()
        except OSError:
            return ""
        for words in (line.split() for line in lines):
            if len(words) > 2 and words[2] == wanted:
                options = (option for word in words[-1:] for option in word.split(","))
                found = next((option for option in options if option.startswith("upperdir=")), "")
                return unescape(found.removeprefix("upperdir="))
        return ""

    def _type_at(self, path: str) -> int:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            return self._type_of(fd)
        except OSError:
            return 0
        finally:
            os.close(fd)


def fs_type(fd: int) -> int:
    """The ``f_type`` of the file system that ``fd`` is on: the first word of struct statfs.  Raises OSError."""
    import ctypes  # noqa: PLC0415 - 0.5 MB, for where a file is watched

    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(fd, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def fiemap(path: str) -> bool:
    """Whether the file system of this regular file can tell extents; False for tmpfs.  Raises OSError.

    A descriptor in /proc is a link, and the only way to a file without a name.
    """
    link = 0 if _DESCRIPTOR.search(path) else os.O_NOFOLLOW
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | link | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fcntl.ioctl(fd, _FS_IOC_FIEMAP, _WHOLE_FILE)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        raise
    finally:
        os.close(fd)
    return True
