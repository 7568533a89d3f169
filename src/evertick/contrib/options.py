"""The options of an App in the settings of a framework."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from evertick.domain.errors import InvalidInput


def checked(options: Any, known: Collection[str], setting: str) -> Mapping[str, Any]:
    """The options of a setting. One that is not known is refused, and the nearest is named."""
    if not isinstance(options, Mapping):
        raise InvalidInput(setting, f"must be a dict, not a {type(options).__qualname__}")
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InvalidInput(setting, f"has no option {name!r}: {hint}")
    return options
