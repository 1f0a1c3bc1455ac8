"""Write a program that does nothing and depends on nothing: `python -m holdfast.agent.noop PATH`.

The user's image runs this program before its worker counts as warm. This proves that the image is on the node and can start. An
image may have neither a shell nor a C library, so the program is a complete ELF file with a few instructions: exit(0).
"""

import os
import platform
import struct
import sys
from pathlib import Path

BASE = 0x400000
HEADERS = 64 + 56  # one ELF header, one program header
CODE = {  # machine: (ELF's number for it, instructions)
    "x86_64": (62, bytes.fromhex("b83c00000031ff0f05")),  # mov eax, 60; xor edi, edi; syscall
    "aarch64": (183, bytes.fromhex("a80b8052000080d2010000d4")),  # mov w8, 93; mov x0, 0; svc 0
}


def program(machine: str) -> bytes:
    """Returns the ELF file for this machine type."""
    number, code = CODE[machine]
    size = HEADERS + len(code)
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64 bits, little endian
    header = identity + struct.pack("<HHIQQQIHHHHHH", 2, number, 1, BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)  # readable and executable
    return header + load + code


def main() -> int:
    path, machine = Path(sys.argv[1]), platform.machine()
    if machine not in CODE:
        print(f"holdfast: no program for {machine}; known: {', '.join(CODE)}", file=sys.stderr)
        return 1
    path.write_bytes(program(machine))
    os.chmod(path, 0o755)  # noqa: S103 - the user's container may run as any user
    return 0


if __name__ == "__main__":
    sys.exit(main())
