"""The keywords of the clients' constructors as types: a `TypedDict` for each class of settings, with its fields.

A constructor is written as `**keywords: Unpack[ProducerKeywords]` (PEP 692), so type checkers and editors know every
keyword. They accept only a literal `TypedDict` there: none can be derived from a dataclass in their terms, and a
`ParamSpec` of the settings cannot stand beside keywords of the constructor's own. So the fields are written once, in
`settings.py`; at run time these types are derived from them, and `keywords.pyi`, which type checkers read instead of
this file, is generated from them too (`python -P -m tests.support.client.stubs`); a test keeps it fresh.
"""

from __future__ import annotations

from typing import TypedDict, get_type_hints

from raftlog.client.settings import AdminSettings, ConsumerSettings, GroupConsumerSettings, ProducerSettings

AdminKeywords, ProducerKeywords, ConsumerKeywords, GroupConsumerKeywords = (
    TypedDict(made.__name__.replace("Settings", "Keywords"), get_type_hints(made), total=False)
    for made in (AdminSettings, ProducerSettings, ConsumerSettings, GroupConsumerSettings)
)
