"""Labels of claims: short names and values by which users find their claims again."""

import re
from typing import Annotated

import msgspec

MOST = 16  # labels per claim; each label is an entry in an index for every change of the claim
NAME = r"^[a-zA-Z0-9]([-_./a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$(?!\n)"
# Neither a comma nor an equals sign, because these separate labels and their values in a filter.
VALUE = r"^[-_./:@+a-zA-Z0-9]{0,63}$(?!\n)"
NAME_MUST = "have 1 to 63 letters, digits, '-', '_', '.' and '/', with a letter or a digit at both ends"
VALUE_MUST = "have at most 63 letters, digits, '-', '_', '.', '/', ':', '@' and '+'"
LabelName = Annotated[str, msgspec.Meta(pattern=NAME, extra={"must": NAME_MUST})]
LabelValue = Annotated[str, msgspec.Meta(pattern=VALUE, extra={"must": VALUE_MUST})]
Labels = Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=MOST)]


class LabelFilter(msgspec.Struct, frozen=True):
    """Which labels a claim must have: these with these values, and these with any value."""

    equal: dict[str, str] = {}
    present: tuple[str, ...] = ()


def parse_filter(text: str) -> LabelFilter:
    """Returns the filter of a text such as `team=x,ci`: the label team has the value x, and there is a label ci. Raises
    ValueError with what is wrong."""
    equal: dict[str, str] = {}
    present: list[str] = []
    for part in text.split(","):
        name, given, value = part.partition("=")
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r} is not the name of a label, which must {NAME_MUST}; a filter is for example team=x,ci")
        if not re.fullmatch(VALUE, value):
            raise ValueError(f"{value!r} is not the value of a label, which must {VALUE_MUST}")
        if not given:
            present.append(name)
        elif equal.setdefault(name, value) != value:
            raise ValueError(f"the label {name!r} cannot have two values")
    return LabelFilter(equal, tuple(present))
