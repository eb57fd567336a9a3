"""Takes secrets out of command lines and messages before they are recorded or shown.

What it knows: options whose name speaks of a secret (``--token``), what looks like a Hub token,
credentials in a URL, and the values of environment variables that are called after a secret
(``HF_TOKEN``). It cannot know a secret of another shape that is given in another way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_NAME = re.compile(r"token|secret|passw|api[-_]?key|credential|authorization", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}")
# A password may hold an @ itself; as a path a URL has lost a slash.
_CREDENTIALS = re.compile(r"\b([a-z][a-z0-9+.-]*:/{1,2})[^/\s?#]+@", re.IGNORECASE)
_QUERY = re.compile(rf"([?&][^=&#\s]*(?:{_NAME.pattern}|key|sig)[^=&#\s]*=)[^&#\s]+", re.IGNORECASE)
_SHORTEST_VALUE = 6


def without_secrets(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return a command line with every secret replaced by ``***``."""
    known = _values(environment)
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = argument.startswith("-") and _NAME.search(name) is not None
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            secret = False
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_masked(argument, known))
        hide_next = secret and not equals
    return shown


def without_secrets_in(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text, such as an error message, with every secret replaced by ``***``."""
    return _masked(text, _values(environment))


def without_credentials(text: str) -> str:
    """Return a text with what looks like a secret replaced by ``***``; asks no environment.

    Hub tokens, a user's name and password in a URL, and secrets among its parameters.
    """
    text = _CREDENTIALS.sub(rf"\1{HIDDEN}@", _HUB_TOKEN.sub(HIDDEN, text))
    return _QUERY.sub(rf"\1{HIDDEN}", text)


def _masked(text: str, known: Sequence[str]) -> str:
    for value in known:
        text = text.replace(value, HIDDEN)
    return without_credentials(text)


def _values(environment: Mapping[str, str] | None) -> list[str]:
    variables = os.environ if environment is None else environment
    values = {value for name, value in variables.items() if _NAME.search(name)}
    # Short ones (`GIT_ASKPASS=1`) are no secrets; the longest first, as one may hold another.
    return sorted((v for v in values if len(v) >= _SHORTEST_VALUE), key=len, reverse=True)
