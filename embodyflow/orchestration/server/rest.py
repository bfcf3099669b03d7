"""A request to a server's REST API with the standard library, since Prefect's client takes two seconds to import."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any


def ask(
    method: str, url: str, body: Mapping[str, Any] | None = None, *, headers: Mapping[str, str], timeout: float
) -> Any:
    """Return the JSON answer to a request, or None if the answer has no body.

    Args:
        method: HTTP method.
        url: Address.
        body: JSON body; ``None`` sends none.
        headers: Headers besides the content type, such as credentials.
        timeout: Seconds until the server must answer.

    Raises:
        urllib.error.URLError: The server cannot be reached or refuses; HTTPError carries its answer.
        ValueError: The answer is not JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, headers={"Content-Type": "application/json", **headers}, method=method
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        content = answer.read()
    return json.loads(content) if content else None
