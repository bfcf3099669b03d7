"""From Hydra overrides to a checked configuration: files and recipes, mistakes in one line, descriptions."""
