"""The flows of this project, one per file; ``python -m flows.<name>`` runs one without a server."""

import embodyflow.orchestration  # noqa: F401  # sets Prefect's settings, which Prefect reads when it is first imported
