"""An MCP server with planned faults, of the standard library alone, so that it starts at once.

``faulty_mcp_server.py stdio <tool> …`` and ``faulty_mcp_server.py <port> <tool> …``. Each tool answers with the place
that it is asked for. A file of that place in the folder ``FAULTS`` is a fault, which happens once and is what the tool
is named after.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLOW_SECONDS = 1.5
FOLDER, SESSION = Path(os.environ["FAULTS"]), str(os.getpid())


def claim(place: str) -> bool:
    """Return True once for each place that has a fault."""
    try:
        (FOLDER / place.replace("/", "-")).unlink()
    except FileNotFoundError:
        return False
    return True


def answer(message: dict[str, Any], tools: Sequence[str]) -> dict[str, Any]:
    """Return the answer to a request."""
    schema = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    listed = [{"name": tool, "description": "Look a place up.", "inputSchema": schema} for tool in tools]
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "faulty", "version": "1"}
            result: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": listed}
        case "tools/call":
            text = message["params"]["arguments"]["place"].replace("/", "*")
            result = {"content": [{"type": "text", "text": text}]}
        case method:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": f"no {method}"}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def fault_of(message: dict[str, Any]) -> str | None:
    """Return the name of the tool if this call of it has a fault."""
    if message["method"] != "tools/call" or not claim(message["params"]["arguments"]["place"]):
        return None
    name: str = message["params"]["name"]
    return name


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP without streams. All sessions of a process have its id as theirs; it knows no others."""

    protocol_version = "HTTP/1.1"
    tools: list[str]

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("mcp-session-id", SESSION) != SESSION:
            self._reply(404, b"")
            return
        match fault_of(message):
            case "server_error":
                self._reply(503, b"")
            case "disconnect":
                self.close_connection = True
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case _ if "id" in message:
                self._reply(200, json.dumps(answer(message, self.tools)).encode())
            case _:
                self._reply(202, b"")

    def do_GET(self) -> None:
        self._reply(405, b"")

    do_DELETE = do_GET

    def log_message(self, *words: Any) -> None:
        """Log nothing."""

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("mcp-session-id", SESSION)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Accepts the connections of all episodes of an iteration at once; the default queue of 5 resets some of them."""

    request_queue_size = 256


def main(transport: str, *tools: str) -> None:
    """Serve until the end of stdin, or for ever."""
    if transport != "stdio":
        Handler.tools = list(tools)
        Server(("127.0.0.1", int(transport)), Handler).serve_forever()
    for line in sys.stdin:
        message = json.loads(line)
        match fault_of(message):
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                threading.Timer(SLOW_SECONDS, reply, (message, tools)).start()
            case "stall":
                pass
            case _ if "id" in message:
                reply(message, tools)


def reply(message: dict[str, Any], tools: Sequence[str]) -> None:
    """Write the answer to a request to stdout."""
    print(json.dumps(answer(message, tools)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
