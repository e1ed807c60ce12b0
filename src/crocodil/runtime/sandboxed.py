"""The program that `sandbox.run_checks` starts: it gives up its rights, then runs a program and its doctests.

It is started as a file of its own, without this package and without installed packages. It reads the limits, the
exit status that means success, and the program from stdin. Only Linux can take rights away from a process in this
way; elsewhere it ends with `UNAVAILABLE` and runs nothing.
"""

import ctypes
import doctest
import json
import os
import platform
import resource
import struct
import sys
import types

UNAVAILABLE = 120  # exit status: this system cannot enforce the limits
FAILED = 1
NAME = "answer"  # of the module that is run

# ---------------------------------------------------------------- the kernel's part

# System calls that are refused: network, processes, other processes, changes of files, new kernel interfaces.
REFUSED = {
    "x86_64": (
        41, 42, 49, 53,  # socket, connect, bind, socketpair
        56, 57, 58, 59, 322, 435,  # clone, fork, vfork, execve, execveat, clone3
        62, 101, 200, 234, 311, 310,  # kill, ptrace, tkill, tgkill, process_vm_writev, process_vm_readv
        129, 297, 424, 434, 438,  # rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, pidfd_open, pidfd_getfd
        141, 142, 144, 203, 314, 302,  # setpriority, sched_setparam, ..setscheduler, ..affinity, ..attr, prlimit64
        76, 82, 83, 84, 85, 86, 87, 88, 90, 92, 94,  # truncate, rename, mkdir, rmdir, creat, link, ... lchown
        133, 165, 258, 259, 260, 263, 264, 265, 266, 268, 316,  # mknod, mount, mkdirat ... fchmodat, renameat2
        91, 93, 188, 189, 190, 197, 198, 199, 280,  # fchmod, fchown, setxattr and removexattr, utimensat
        132, 235, 261,  # utime, utimes, futimesat
        272, 319, 321, 425, 437, 452,  # unshare, memfd_create, bpf, io_uring_setup, openat2, fchmodat2
    ),
    "aarch64": (
        198, 199, 200, 203,  # socket, socketpair, bind, connect
        220, 221, 281, 435,  # clone, execve, execveat, clone3
        117, 129, 130, 131, 271, 270,  # ptrace, kill, tkill, tgkill, process_vm_writev, process_vm_readv
        138, 240, 424, 434, 438,  # rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, pidfd_open, pidfd_getfd
        140, 118, 119, 122, 274, 261,  # setpriority, sched_setparam, ..setscheduler, ..affinity, ..attr, prlimit64
        33, 34, 35, 36, 37, 38, 40, 45, 53, 54, 276,  # mknodat, mkdirat ... mount, truncate, fchmodat, fchownat
        52, 55, 5, 6, 7, 14, 15, 16, 88,  # fchmod, fchown, setxattr and removexattr, utimensat
        97, 279, 280, 425, 437, 452,  # unshare, memfd_create, bpf, io_uring_setup, openat2, fchmodat2
    ),
}  # fmt: skip
OPENING = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # open, openat: which argument has the flags
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_ABI = 0x40000000  # x32: other numbers for the same calls
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of the classic BPF
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # the last with errno EPERM


def _program(machine: str) -> bytes:
    """Return a filter of system calls in the kernel's format: code, jumps if true and false, and a value."""
    lines = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, OTHER_ABI), (_RETURN, 0, 0, _KILL),
    ]  # fmt: skip
    for number in REFUSED[machine]:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for number, argument in OPENING[machine].items():
        lines += [
            (_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_ANY_BIT, 0, 1, WRITES),
            (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW),
        ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *line) for line in [*lines, (_RETURN, 0, 0, _ALLOW)])


def _refuse_system_calls() -> bool:
    """Install the filter, which cannot be removed; return whether the kernel took it."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in REFUSED or sys.maxsize < 2**32:
        return False
    code = _program(machine)
    lines = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(lines))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    held = ctypes.create_string_buffer(header, len(header))
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(held), 0, 0) == 0


def _limit(seconds: int, megabytes: int) -> None:
    """Bound processor time, memory and open files."""
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: megabytes * 2**20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


# ---------------------------------------------------------------- Python's part

_REFUSED_EVENTS = (
    "socket.", "subprocess.", "ctypes.", "shutil.", "sqlite3.", "pty.", "webbrowser.", "os.system", "os.exec",
    "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove", "os.rename", "os.mkdir", "os.rmdir",
    "os.link", "os.symlink", "os.truncate", "os.ch", "os.lchown", "os.putenv", "os.utime", "os.setxattr",
    "signal.pthread_kill", "resource.prlimit",
)  # fmt: skip


def _refuse_events() -> None:
    """Refuse the same in Python, with clear errors, and reading outside the standard library and this folder."""
    roots = tuple(os.path.realpath(path) + os.sep for path in (os.path.dirname(os.__file__), os.getcwd()))

    def hook(event: str, arguments: tuple) -> None:
        if event.startswith(_REFUSED_EVENTS):
            raise PermissionError(f"{event} is not allowed here")
        if event in ("open", "os.listdir", "os.scandir") and not isinstance(arguments[0], int):
            path = os.path.realpath(os.fsdecode(arguments[0] or "."))
            if event == "open" and (arguments[2] or 0) & WRITES:
                raise PermissionError(f"{path} may not be written here")
            if not f"{path}{os.sep}".startswith(roots):
                raise PermissionError(f"{path} may not be read here")

    sys.addaudithook(hook)


def _passes(program: str) -> bool:
    """Run a program, with its asserts, and then its doctests."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    exec(compile(program, NAME, "exec"), module.__dict__)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.FAIL_FAST)
    for test in doctest.DocTestFinder(recurse=True).find(module, NAME):
        runner.run(test, out=lambda _: None)
    return not runner.failures


def main() -> int:
    request = json.load(sys.stdin)
    _limit(request["seconds"], request["megabytes"])
    if not _refuse_system_calls():
        return UNAVAILABLE
    _refuse_events()
    try:
        return request["success"] if _passes(request["program"]) else FAILED
    except BaseException:
        return FAILED


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    os._exit(main())  # nothing that the program left behind runs
