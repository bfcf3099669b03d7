"""Addresses in a configuration, which is recorded and shown with the run."""

from urllib.parse import urlsplit


def check_address(address: str, instead: str) -> None:
    """Check that an address has a host and no credentials.

    Args:
        address: Address that begins with ``http://`` or ``https://``.
        instead: Thing that is allowed in place of credentials.

    Raises:
        ValueError: It is no address, or it has a user name or a password.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"must be an address such as http://localhost:8000: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"must have no user name and no password, which a run records; allowed is {instead}")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"must be an address such as http://localhost:8000, not {address}")
