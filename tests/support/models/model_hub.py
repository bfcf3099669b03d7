"""A stand-in for the Hugging Face hub on this machine: repositories that ``huggingface_hub`` can push to."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ModelHub(ThreadingHTTPServer):
    """The hub's API as far as creating a repository and committing files needs it.

    Attributes:
        files: Content of each pushed file, by repository and path.
        tokens: Authorization headers that came with commits.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.tokens: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ModelHub

    def log_message(self, *words: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        repo = self.path.removeprefix("/api/models/").partition("?")[0]
        name = "/".join(repo.split("/")[:2])
        if name not in self.server.files:
            self._answer({"error": "Repository not found"}, 404)
        elif "/tree/" in repo:
            self._answer([])
        else:
            self._answer({"id": name, "sha": "0" * 40, "siblings": [], "private": False})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        words = self.path.partition("?")[0].removeprefix("/api/").split("/")
        if words == ["repos", "create"]:
            wanted = json.loads(body)
            name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
            self.server.files.setdefault(name, {})
            self._answer({"url": f"{self.server.endpoint}/{name}", "name": name, "id": name})
        elif words == ["validate-yaml"]:
            self._answer({"errors": [], "warnings": []})
        elif "preupload" in words:
            files = [{"path": each["path"], "uploadMode": "regular"} for each in json.loads(body)["files"]]
            self._answer({"files": [each | {"shouldIgnore": False} for each in files]})
        elif "paths-info" in words:
            self._answer([])
        elif "commit" in words:
            self._commit("/".join(words[1:3]), body)
        else:
            self._answer({"error": f"no such address: {self.path}"}, 404)

    def _commit(self, name: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.server.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        self.server.tokens.append(self.headers["Authorization"])
        url = f"{self.server.endpoint}/{name}/commit/{'1' * 40}"
        self._answer({"success": True, "commitUrl": url, "commitOid": "1" * 40, "hookOutput": ""})

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    """Run the stand-in."""
    hub = ModelHub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
