"""Addresses in a configuration or of a server, which are recorded and shown with the run."""

import re
from urllib.parse import parse_qsl, urlsplit

_SECRET = re.compile(
    r"(?:api|access|secret|[-_]|^)key(?![a-z])|token|secret|password|passwd|pwd|signature|credential"
    r"|(?:^|[-_])(?:auth|sig)(?![a-z])",
    re.IGNORECASE,
)
"""Parts of the names of parameters that hold secrets, such as ``tavilyApiKey`` and ``X-Amz-Signature``."""


def check_address(address: str, instead: str) -> None:
    """Check that an address has a host and no credentials.

    Args:
        address: Address that begins with ``http://`` or ``https://``.
        instead: Thing that is allowed in place of credentials.

    Raises:
        ValueError: It is no address, or it has a user name, a password or a parameter that holds a secret.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"must be an address such as http://localhost:8000: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"must have no user name and no password, which are recorded and shown; allowed is {instead}")
    names = (name for part in (parts.query, parts.fragment) for name, _ in parse_qsl(part, keep_blank_values=True))
    if (secret := next(filter(_SECRET.search, names), None)) is not None:
        raise ValueError(f"must have no parameter {secret}, which is recorded and shown; allowed is {instead}")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"must be an address such as http://localhost:8000, not {address}")
