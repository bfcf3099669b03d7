"""The JSON schema of pipeline files, for editors. ``python -m embodyflow.graph.schema`` rewrites ``schema.json``."""

import json
from pathlib import Path

from embodyflow.graph.yaml_loader import PipelineFile

SCHEMA_FILE = Path(__file__).with_name("schema.json")


def schema_text() -> str:
    """Return the contents of ``schema.json``."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **PipelineFile.model_json_schema()}
    schema["$defs"]["Node"]["required"] = ["node_id"]  # type and function may follow from each other
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
