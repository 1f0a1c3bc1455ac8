"""Run a command in a user and network namespace of its own, with loopback, and send sockets of that namespace to the agent.

Started as `python -I -S isolated.py FD COMMAND…`. FD is one end of a pair of unix sockets. It imports no package, because it
has to start in milliseconds. With `-` instead of FD no sockets are sent, which only checks whether the machine allows all this.

Other users cannot enter the namespace, so they cannot connect to the port on which the command listens in there. The command runs
as the same user as before, but no other user id exists for it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

NEW_USER, NEW_NET = 0x10000000, 0x40000000
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41
NOT_FOUND, NOT_STARTED = 127, 126  # the exit codes of a shell


def main(arguments: list[str]) -> None:
    pair, command = arguments[0], arguments[1:]
    try:
        isolate()
    except OSError as error:
        print(f"holdfast: this machine allows no network namespace to this user: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_STARTED)
    if pair != "-":
        end = socket.socket(fileno=int(pair))
        if os.fork() == 0:
            send_sockets(end)
        end.close()
    try:
        os.execvp(command[0], command)  # noqa: S606 - a pool's command is a list of arguments, no line for a shell
    except OSError as error:
        print(f"holdfast: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)


def isolate() -> None:
    """Enters the new namespaces and brings loopback up. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_USER | NEW_NET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", UP_AND_RUNNING))


def send_sockets(end: socket.socket) -> None:
    """Sends sockets until the agent has ended. It blocks while the agent has not taken the last few."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)  # otherwise the command's output would stay open after its end
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes its smallest size, a few messages
    while True:
        try:
            try:
                one = socket.socket(socket.AF_INET6)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # so that it reaches IPv4 as well
            except OSError:
                one = socket.socket(socket.AF_INET)
            with one:
                socket.send_fds(end, [b"s"], [one.fileno()])
        except OSError:  # the agent has ended
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
