"""A JSON object that the API of a platform has sent, read field by field.

Whatever it holds, a field is of the type that was asked for, or there is one error that shows what
was received. `json_api` makes them; the resolvers read them.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from typing import Any

from replicax.cluster import bounds
from replicax.core import bounded_json
from replicax.core.errors import PlatformReplyError


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """An object in the answer of a platform. A field that is null counts as absent.

    Attributes:
        fields: What it holds.
        where: What messages call it.

    Example:
        >>> reply = Reply({"name": "a", "index": "x"}, "pod 0 of the answer")
        >>> reply.text("name"), reply.text("phase")
        ('a', '')
        >>> reply.number("index")
        Traceback (most recent call last):
        ...
        replicax.core.errors.PlatformReplyError: pod 0 of the answer has "index": "x"; expected ...
    """

    fields: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """A string that can be printed on one line; empty if there is none."""
        value = self.fields.get(name)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.isprintable():
            raise self._not(name, "a string of printable characters")
        return value

    def ip(self, name: str) -> str:
        """An IP address; empty if there is none."""
        value = self.text(name)
        try:
            return str(ipaddress.ip_address(value)) if value else ""
        except ValueError:
            raise self._not(name, "an IP address") from None

    def number(self, name: str) -> int | None:
        """A whole number, also written as a string; None if there is none."""
        value = self.fields.get(name)
        if value is None:
            return None
        number = bounds.whole_number(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise self._not(name, "a whole number")
        return number

    def object(self, name: str) -> Reply:
        """An object; an empty one if there is none."""
        value = self.fields.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self._not(name, "an object")
        return Reply(value, f"{name} of {self.where}")

    def objects(self, name: str) -> list[Reply]:
        """A list of objects; an empty one if there is none."""
        values = self.fields.get(name)
        if values is None:
            values = []
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self._not(name, "a list of objects")
        if len(values) > bounds.MAX_TASKS:
            raise PlatformReplyError(
                f"{self.where} lists {len(values)} {name}; a cluster has at most "
                f"{bounds.MAX_TASKS} tasks."
            )
        return [Reply(value, f"{name} {i} of {self.where}") for i, value in enumerate(values)]

    def _not(self, name: str, expected: str) -> PlatformReplyError:
        value = bounded_json.shown(self.fields[name])
        return PlatformReplyError(f'{self.where} has "{name}": {value}; expected {expected}.')
