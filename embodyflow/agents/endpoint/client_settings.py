"""Settings of a client of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientSettings:
    """Settings of a client, named as the ``openai`` package names them.

    Attributes:
        base_url: Address of the API, such as ``http://127.0.0.1:40123/v1``.
        api_key: Key of the episode.
    """

    base_url: str
    api_key: str
