"""Environment classes, whose public methods are an agent's tools, as TRL's ``environment_factory`` has them."""
