"""The parent of a server's process: a standalone program that ends the server's whole process
tree.

    python -I -S supervisor.py CHANNEL PARENT PATH ARG0 [ARG …]

It starts PATH with the standard streams it was given and releases them. CHANNEL is one end of a
socket pair. The supervisor writes `started PID` or `failed ERRNO`, then `exited CODE`
(negative: a signal), and closes CHANNEL when the server and everything it started are gone. It
reads `T` (SIGTERM to all) or `K` (SIGKILL). When the other end closes, or PARENT is no longer
its parent, it ends the tree by itself: a grace period, SIGTERM, a grace period, SIGKILL.

On Linux it is a subreaper, so processes that forked twice or made their own session come back
to it. Elsewhere it reaches the server's process group only. It must import nothing but fast
parts of the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TERMINATE_GRACE = 0.5
"""Seconds from the parent's end to SIGTERM, and from there to SIGKILL."""
KILL_TIMEOUT = 5.0
"""Seconds to wait after SIGKILL. Processes that cannot be killed (another user's) are left."""
PARENT_CHECK_INTERVAL = 1.0
GIVE_UP = 0
"""Stands for a signal in the shutdown plan: stop waiting for the server."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
IGNORED_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD")


def main(arguments: list[str]) -> None:
    inherited, parent = int(arguments[0]), int(arguments[1])
    # `select` needs a low number, and the server must not inherit the channel.
    channel = os.dup(inherited)
    os.close(inherited)
    woken = wake_on_signals()
    control_process(PR_SET_CHILD_SUBREAPER, 1)
    # The server may stop this process. When the parent dies, continue and end the server.
    control_process(PR_SET_PDEATHSIG, signal.SIGCONT)
    server = start_server(channel, arguments[2], arguments[3:])
    if server is not None:
        detach_streams()
        report(channel, f"started {server}")
        code, signalled = supervise(channel, parent, server, woken)
        if code is not None:
            report(channel, f"exited {code}")
            stop_descendants(channel, parent, server, woken, signalled)


def wake_on_signals() -> int:
    """Make every signal wake `select` and do nothing else. Returns the descriptor to select on.
    An exec resets handlers, so the server inherits none of them."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for name in IGNORED_SIGNALS:
        signal.signal(getattr(signal, name), ignore_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return woken


def ignore_signal(number: int, frame: object) -> None:
    """Do nothing. A handler instead of SIG_IGN, which the server would inherit."""


def control_process(option: int, value: int) -> None:
    """Call prctl(2), on Linux."""
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def start_server(channel: int, path: str, arguments: list[str]) -> int | None:
    """Start the server and return its pid. None: it could not be started, which is reported."""
    supervisor = os.getpid()
    error_reader, error_writer = os.pipe()  # a successful exec closes the writer
    pid = os.fork()
    if pid == 0:
        try:
            become_server(path, arguments, supervisor)
        except OSError as error:
            os.write(error_writer, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(error_writer)
    errno = os.read(error_reader, 16)
    os.close(error_reader)
    if errno:
        report(channel, f"failed {errno.decode()}")
        return None
    return pid


def become_server(path: str, arguments: list[str], supervisor: int) -> None:
    """Run the program in this process, which is killed when the supervisor dies."""
    os.setsid()
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        return  # the supervisor died before the signal was set
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(path, arguments)


def detach_streams() -> None:
    """Point this process's standard streams at the null device: they belong to the server."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)


def report(channel: int, line: str) -> None:
    try:
        os.write(channel, f"{line}\n".encode())
    except OSError:
        return  # the parent is gone


def supervise(channel: int, parent: int, server: int, woken: int) -> tuple[int | None, bool]:
    """Obey commands until the server has ended. Returns its exit code (None: it cannot be ended),
    and whether the tree was sent a signal."""
    listening, signalled = True, False
    plan: list[tuple[float, int]] = []
    """The times and signals of the shutdown after the parent's end."""
    while True:
        timeout = max(0.0, plan[0][0] - time.monotonic()) if plan else PARENT_CHECK_INTERVAL
        ready = wait([woken, channel] if listening else [woken], timeout)
        code, _ = reap(server)
        if code is not None:
            return code, signalled
        command = read_command(channel, parent, ready) if listening else None
        if command == "":
            listening, now = False, time.monotonic()
            plan = [
                (now + TERMINATE_GRACE, signal.SIGTERM),
                (now + 2 * TERMINATE_GRACE, signal.SIGKILL),
                (now + 2 * TERMINATE_GRACE + KILL_TIMEOUT, GIVE_UP),
            ]
        elif command is not None:
            signal_all(server, signal.SIGKILL if "K" in command else signal.SIGTERM)
            signalled = True
        while plan and plan[0][0] <= time.monotonic():
            number = plan.pop(0)[1]
            if number == GIVE_UP:
                return None, signalled
            signal_all(server, number)
            signalled = True


def read_command(channel: int, parent: int, ready: list[int]) -> str | None:
    """The parent's commands. "": the parent is gone. None: no new command."""
    if os.getppid() != parent:
        return ""
    if channel not in ready:
        return None
    try:
        return os.read(channel, 16).decode()
    except OSError:
        return ""


def stop_descendants(channel: int, parent: int, server: int, woken: int, signalled: bool) -> None:
    """End the processes that the server left behind, and those that they start meanwhile.

    The program may have been a wrapper and one of these the real server with data to save, so
    they get a grace period, which a `K` ends.
    """
    if reap(server)[1] and not signalled:
        signal_all(server, signal.SIGTERM)
    grace_end, listening = time.monotonic() + TERMINATE_GRACE, True
    while reap(server)[1] and time.monotonic() < grace_end:
        ready = wait([woken, channel] if listening else [woken], 0.02)
        command = read_command(channel, parent, ready) if listening else None
        listening = listening and command != ""
        if command and "K" in command:
            break
    signal_group(server, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT
    while reap(server)[1] and time.monotonic() < deadline:
        signal_all(server, signal.SIGKILL)
        wait([woken], 0.02)


def reap(server: int) -> tuple[int | None, bool]:
    """Reap ended children. Returns the server's exit code, if it was one of them, and whether
    children are left."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == server:
            code = os.waitstatus_to_exitcode(status)


def signal_all(server: int, number: int) -> None:
    """Signal all descendants or, where they are unknown, the server's process group."""
    # Never both: to many programs a second SIGTERM means "exit at once".
    pids = descendants(os.getpid())
    for pid in pids or ():
        try:
            os.kill(pid, number)
        except OSError:
            continue
    if pids is None:
        signal_group(server, number)


def signal_group(server: int, number: int) -> None:
    try:
        os.killpg(server, number)
    except OSError:
        return


def descendants(ancestor: int) -> set[int] | None:
    """All processes below this one. None: the system has no /proc."""
    parents = all_parents()
    if parents is None:
        return None
    tree = {ancestor}
    while True:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        if not more:
            return tree - {ancestor}
        tree |= more


def all_parents() -> dict[int, int] | None:
    """The parent's pid of every process. None: the system has no /proc."""
    if not os.path.isdir("/proc/self"):
        return None
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # the process has just ended
        # "pid (name) state ppid …", and a name may contain blanks and parentheses
        parents[int(name)] = int(stat[stat.rindex(b")") + 1 :].split()[1])
    return parents


def wait(files: list[int], timeout: float) -> list[int]:
    """Wait for readable descriptors. The first, of `wake_on_signals`, is emptied."""
    ready, _, _ = select.select(files, [], [], timeout)
    if files[0] in ready:
        try:
            os.read(files[0], 4096)
        except BlockingIOError:
            return ready
    return ready


if __name__ == "__main__":
    main(sys.argv[1:])
