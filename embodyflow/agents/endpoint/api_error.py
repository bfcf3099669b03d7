"""Errors of requests."""

from typing import Any


class RequestError(RuntimeError):
    """A program asks for something that an episode cannot have, which fails the episode; the message says what."""


class ApiError(Exception):
    """A request is refused, with an answer in OpenAI's shape.

    Args:
        message: One line that names the parameter and what is allowed.
        status: HTTP status. Clients repeat requests after 408, 409, 429 and 5xx, so a refusal has none of these.
        param: Name of the parameter at fault.
        code: Code of the error, which programs compare.
    """

    def __init__(self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, Any]:
        """Return the body of the answer: ``error`` with message, type, param and code."""
        error = {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}
        return {"error": error}
