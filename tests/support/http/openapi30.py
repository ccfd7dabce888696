"""An OpenAPI 3.1 document as OpenAPI 3.0, for generators that do not read 3.1 yet.

Types with null become `nullable`, constants become enumerations, and shared parameters and responses get names of
their own, because these generators give all components of a document one name space.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_NULL = {"type": "null"}


def as_openapi30(document: bytes) -> bytes:
    """Return the document in the older version."""
    converted = _converted(msgspec.json.decode(document))
    converted["openapi"] = "3.0.3"
    components = converted["components"]
    text = msgspec.json.encode(converted).decode()
    for kind, suffix in (("parameters", "Parameter"), ("responses", "Response")):
        text = re.sub(rf'"#/components/{kind}/([A-Za-z0-9]+)"', rf'"#/components/{kind}/\1{suffix}"', text)
        names = components.get(kind, {})
        renamed = msgspec.json.decode(text)
        renamed["components"][kind] = {f"{name}{suffix}": renamed["components"][kind][name] for name in names}
        text = msgspec.json.encode(renamed).decode()
    return text.encode()


def _converted(node: Any) -> Any:
    if isinstance(node, list):
        return [_converted(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {name: _converted(one) for name, one in node.items()}
    kinds = found.get("type")
    if isinstance(kinds, list):
        found["nullable"] = "null" in kinds
        rest = [kind for kind in kinds if kind != "null"]
        found.pop("type")
        if len(rest) == 1:
            found["type"] = rest[0]
    for key in ("oneOf", "anyOf"):
        if isinstance(found.get(key), list) and _NULL in found[key]:
            rest = [one for one in found.pop(key) if one != _NULL]
            found |= {"nullable": True, "allOf": rest} if len(rest) == 1 else {"nullable": True, key: rest}
    if "const" in found and not isinstance(found["const"], dict | list):
        found["enum"] = [found.pop("const")]
    if isinstance(found.get("examples"), list):
        found.pop("examples")
    return found
