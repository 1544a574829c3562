"""JSON from outside: the same values as the standard library gives, or one kind of error."""

import json
import re

import pytest

from replicax.core import bounded_json

GOOD = [
    "null",
    "[]",
    '{"a": [1, -2, 3.5, 1e300, true, false, null, "x"]}',
    '"\\ud83d\\ude00 \u00e9 [[[{{{ \\" ]"',
    "[" * 100 + "]" * 100,
    json.dumps(["[" * 500, "]", '"' * 500, "\\" * 501]),
    json.dumps([[]] * 1000),
]
BAD = {
    "deep lists": ("[" * 101, "is nested deeper than 100"),
    "deeper than any stack": ("[" * 2_000_000, "is nested deeper than 100"),
    "deep objects": ('{"a":' * 101, "is nested deeper than 100"),
    "deep after a string": ('["[", ' + "[" * 100, "is nested deeper than 100"),
    "half a character": ('"\\ud800"', r"has half a character in it: '\ud800'"),
    "half a character as a name": ('{"\\uDFFF": 1}', r"has half a character in it: '\udfff'"),
    "half a character as it is": ('"\ud800"', r"has half a character in it: '\ud800'"),
    "many digits": ("9" * 5000, "has a number of 5000 digits, more than 30"),
    "no number": ("[NaN]", 'has the number "NaN", which is not finite'),
    "a number without end": ("-Infinity", 'has the number "-Infinity", which is not finite'),
    "a number beyond floats": ("1e999", 'has the number "1e999", which is not finite'),
    "a name twice": ('{"a": 1, "b": 2, "a": 3}', "has 'a' twice in one object"),
    "not JSON": ('{"a": x}', "is not JSON: Expecting value at character 6, near '{\"a\": x}'"),
    "too long": (" " * 1_000_001, "is 1000001 bytes long, more than 1000000"),
    "no UTF-8": (b'"\xff"', "is not UTF-8: invalid start byte at byte 1"),
    "UTF-16": ("[]".encode("utf-16"), "is not UTF-8: invalid start byte at byte 0"),
}


@pytest.mark.parametrize("text", GOOD, ids=range(len(GOOD)))
def test_what_is_right_is_read(text: str):
    assert bounded_json.parse(text) == bounded_json.parse(text.encode()) == json.loads(text)


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_refused_with_the_reason(name: str):
    data, problem = BAD[name]
    with pytest.raises(bounded_json.JsonError, match=f"^{re.escape(problem)}$"):
        bounded_json.parse(data, max_bytes=2_000_000 if "deeper" in name else 1_000_000)
