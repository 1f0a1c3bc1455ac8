"""Make text safe for people to read. A terminal obeys control characters, and some characters hide or reorder what is written."""

import re

# Control characters, separators of lines, marks and overrides of the writing direction, and the invisible byte order mark.
# A newline could forge a second line, an escape sequence could change the screen, and an override could show a name backwards.
UNSAFE = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
ONE_LINE_MUST = "must be one line without control characters"
_UNSAFE = re.compile(rf"[{UNSAFE}\ud800-\udfff]")  # lone surrogates cannot be printed
_BREAKS = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")


def is_safe(text: str) -> bool:
    """Returns whether the text can be shown as it is, in one line."""
    return _UNSAFE.search(text) is None


def shown(text: str) -> str:
    """Returns the text as one line for people. Line breaks and tabs become a space, other unsafe characters their escapes."""
    return text if is_safe(text) else _UNSAFE.sub(_escape, _BREAKS.sub(" ", text))


def shown_lines(text: str) -> str:
    """Returns text of several lines for people. It keeps its newlines and tabs."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found), text)


def escaped(json: str) -> str:
    """Returns JSON of the same meaning without unsafe characters. A JSON encoder escapes the control characters itself, except
    DEL and those above 0x7f."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", json)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
