"""The secret of a job: read from a file, proved without being sent."""

from __future__ import annotations

import hashlib
import hmac
import pathlib
import stat

from replicax.core.errors import ClusterError

_MIN_LENGTH = 16


def read_token(path: pathlib.Path) -> bytes:
    """The token in a file that nobody but its owner can read.

    Raises:
        ClusterError: If others can read or change it, or it is too short to be a secret.
    """
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ClusterError(
            f"the token file {path} has mode {stat.S_IMODE(mode):04o}: others than its owner have "
            f"access to it. Make a new token, and run: chmod 600 {path}"
        )
    token = path.read_bytes().strip()
    if len(token) < _MIN_LENGTH:
        raise ClusterError(
            f"the token in {path} has {len(token)} characters, expected at least {_MIN_LENGTH}. "
            "Make one with: python -c 'import secrets; print(secrets.token_hex())'"
        )
    return token


def proof(token: bytes, *, role: str, challenge: str, answer: str) -> str:
    """What only a holder of the token can say of a challenge.

    Args:
        token: The secret; empty where the job has none.
        role: Who says it, so that a proof cannot be sent back to where it came from.
        challenge: What the other end has made up for this connection.
        answer: What this end has made up for it.

    Example:
        >>> one = proof(b"secret", role="node", challenge="ab", answer="cd")
        >>> one == proof(b"another", role="node", challenge="ab", answer="cd")
        False
    """
    text = "\0".join((role, challenge, answer)).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def is_proof(said: object, expected: str) -> bool:
    """Whether the two are equal, in a time that does not tell where they differ.

    Example:
        >>> is_proof("ab", "ab"), is_proof(None, "ab")
        (True, False)
    """
    return isinstance(said, str) and hmac.compare_digest(said.encode(), expected.encode())
