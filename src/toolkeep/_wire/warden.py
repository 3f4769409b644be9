"""The parent of a server's process: a program by itself, which sees to it that nothing survives.

    python -I -S warden.py CHANNEL PARENT PATH ARG0 [ARG …]

It starts PATH with the standard streams that it was given, and lets go of them. CHANNEL is one end
of a socket pair. The warden says there `started PID` or `failed ERRNO`, then `exited CODE`
(negative: by that signal), and closes it when the server and all that the server ever started are
gone. It is told `T` (SIGTERM to all of them) or `K` (SIGKILL). When the other end closes, or PARENT
is no longer the parent (a copy of that end may live on in a process that was forked from it), it
ends the tree by itself: a grace, SIGTERM, a grace, SIGKILL.

On Linux it is a subreaper: processes that forked twice or made a session of their own come back
to it. Elsewhere it reaches the server's process group only. It imports nothing of toolkeep, and
of the standard library only what starts fast.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

GRACE = 0.5
"""Seconds from the parent's end to SIGTERM, and from there to SIGKILL."""
PATIENCE = 5.0
"""Seconds in which SIGKILL must have worked. What it cannot kill (another user's) stays."""
PARENT_CHECK = 1.0
GIVE_UP = 0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
NOT_FOR_US = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD")


def main(arguments: list[str]) -> None:
    given, parent = int(arguments[0]), int(arguments[1])
    # A low number, because `select` takes no high one; and no copy for the server.
    channel = os.dup(given)
    os.close(given)
    woken = wake_on_signals()
    control_process(PR_SET_CHILD_SUBREAPER, 1)
    # The server may stop us; when our parent dies, we go on, and end the server.
    control_process(PR_SET_PDEATHSIG, signal.SIGCONT)
    server = start(channel, arguments[2], arguments[3:])
    if server is not None:
        let_go_of_streams()
        tell(channel, f"started {server}")
        code, told = watch(channel, parent, server, woken)
        if code is not None:
            tell(channel, f"exited {code}")
            end_all(channel, parent, server, woken, told)


def wake_on_signals() -> int:
    """Have every signal end a `select`, and do nothing else. Handlers end with an exec, so the
    server has none of them."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for name in NOT_FOR_US:
        signal.signal(getattr(signal, name), ignore)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return woken


def ignore(number: int, frame: object) -> None:
    """Not SIG_IGN, which the server would inherit."""


def control_process(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def start(channel: int, path: str, arguments: list[str]) -> int | None:
    """The server's pid; None: it could not be started, which is told."""
    warden = os.getpid()
    result, problem = os.pipe()  # the latter closes with a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            become_server(path, arguments, warden)
        except OSError as error:
            os.write(problem, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(problem)
    errno = os.read(result, 16)
    os.close(result)
    if errno:
        tell(channel, f"failed {errno.decode()}")
        return None
    return pid


def become_server(path: str, arguments: list[str], warden: int) -> None:
    os.setsid()
    control_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != warden:
        return  # it died before we asked to be told
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(path, arguments)


def let_go_of_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)


def tell(channel: int, what: str) -> None:
    try:
        os.write(channel, f"{what}\n".encode())
    except OSError:
        return  # nobody is there any more


def watch(channel: int, parent: int, server: int, woken: int) -> tuple[int | None, bool]:
    """Do as we are told until the server has ended; its exit code (None: it cannot be ended), and
    whether all were sent a SIGTERM."""
    listening, told = True, False
    plan: list[tuple[float, int]] = []
    while True:
        pause = max(0.0, plan[0][0] - time.monotonic()) if plan else PARENT_CHECK
        ready = wait([woken, channel] if listening else [woken], pause)
        code, _ = reap(server)
        if code is not None:
            return code, told
        order = order_on(channel, parent, ready) if listening else None
        if order == "":
            listening, now = False, time.monotonic()
            plan = [(now + GRACE, signal.SIGTERM), (now + 2 * GRACE, signal.SIGKILL)]
            plan.append((now + 2 * GRACE + PATIENCE, GIVE_UP))
        elif order is not None:
            signal_all(server, signal.SIGKILL if "K" in order else signal.SIGTERM)
            told = True
        while plan and plan[0][0] <= time.monotonic():
            number = plan.pop(0)[1]
            if number == GIVE_UP:
                return None, told
            signal_all(server, number)
            told = True


def order_on(channel: int, parent: int, ready: list[int]) -> str | None:
    """What we are told; "": nobody is there any more to tell us; None: nothing new."""
    if os.getppid() != parent:
        return ""
    if channel not in ready:
        return None
    try:
        return os.read(channel, 16).decode()
    except OSError:
        return ""


def end_all(channel: int, parent: int, server: int, woken: int, told: bool) -> None:
    """End what the server left behind, and what that starts meanwhile.

    What was started may have been a wrapper, and this the server, which has something to save: it
    has a grace, as long as nobody says otherwise.
    """
    if reap(server)[1] and not told:
        signal_all(server, signal.SIGTERM)
    grace, listening = time.monotonic() + GRACE, True
    while reap(server)[1] and time.monotonic() < grace:
        ready = wait([woken, channel] if listening else [woken], 0.02)
        order = order_on(channel, parent, ready) if listening else None
        listening = listening and order != ""
        if order and "K" in order:
            break
    signal_group(server, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while reap(server)[1] and time.monotonic() < deadline:
        signal_all(server, signal.SIGKILL)
        wait([woken], 0.02)


def reap(server: int) -> tuple[int | None, bool]:
    """The server's exit code, if it has just ended, and whether there are other children."""
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
    # One or the other, not both: to many programs a second SIGTERM means "at once".
    family = descendants(os.getpid())
    for pid in family or ():
        try:
            os.kill(pid, number)
        except OSError:
            continue
    if family is None:
        signal_group(server, number)


def signal_group(server: int, number: int) -> None:
    try:
        os.killpg(server, number)
    except OSError:
        return


def descendants(ancestor: int) -> set[int] | None:
    """All processes below this one. None: this system does not tell."""
    parents = parents_of_all()
    if parents is None:
        return None
    family = {ancestor}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return family - {ancestor}
        family |= more


def parents_of_all() -> dict[int, int] | None:
    if not os.path.isdir("/proc/self"):
        return None
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # it ended while we looked
        # "pid (name) state ppid …", and a name may hold blanks and parentheses
        parents[int(name)] = int(stat[stat.rindex(b")") + 1 :].split()[1])
    return parents


def wait(files: list[int], pause: float) -> list[int]:
    ready, _, _ = select.select(files, [], [], pause)
    if files[0] in ready:
        try:
            os.read(files[0], 4096)
        except BlockingIOError:
            return ready
    return ready


if __name__ == "__main__":
    main(sys.argv[1:])
